//! What becomes of a record of the directory. Pure.
//!
//! A record that its form alone refuses is rejected as it is read. All others wait for [`settle`], which knows what the store
//! held under the batch's locks, since the admin API writes the same tables.

use super::state::{Preference, Stamp, State, UserFacts, live_user};
use crate::runtime::vertical::{Effects, Item};
use millrace_schemas::directory::{Change, DirectoryRecord, LONGEST, UserStatus, is_text};
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::time::Micros;

/// A record that waits for the store's word.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Where it stands.
    pub id: RecordId,
    /// When, and where.
    pub stamp: Stamp,
    /// What it says.
    pub record: DirectoryRecord,
}

/// A rejection, as it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The record.
    pub id: RecordId,
    /// Its workspace.
    pub ws: i32,
    /// Its user; empty where that is no id.
    pub user: String,
    /// What it would have changed.
    pub change: &'static str,
    /// Why not.
    pub reason: &'static str,
    /// When it was accepted.
    pub at: Micros,
}

/// Overlay and effects of one attempt.
#[derive(Debug, Default)]
pub struct Draft {
    /// Records in their order.
    pub asked: Vec<Asked>,
    /// What they name, once it was loaded; then with their changes.
    pub state: State,
    /// What was refused.
    pub rejects: Vec<Reject>,
}

const fn change_name(change: Change) -> &'static str {
    match change {
        Change::User => "user",
        Change::Login => "login",
        Change::Link => "link",
        Change::Unlink => "unlink",
        Change::Preference => "preference",
    }
}

fn reject(draft: &mut Draft, effects: &mut Effects, asked: &Asked, reason: &'static str) {
    let user = &asked.record.user;
    effects.tally.add(asked.id, Outcome::Rejected, reason, 1);
    draft.rejects.push(Reject {
        id: asked.id,
        ws: asked.record.ws,
        user: if is_text(user, LONGEST) {
            user.clone()
        } else {
            String::new()
        },
        change: change_name(asked.record.change),
        reason,
        at: asked.stamp.at,
    });
}

/// Takes one record.
pub fn record(draft: &mut Draft, effects: &mut Effects, item: &Item<DirectoryRecord>) {
    let asked = Asked {
        id: item.id,
        stamp: Stamp::of(item.id, item.accepted_at),
        record: item.record.clone(),
    };
    match asked.record.check() {
        Ok(()) => draft.asked.push(asked),
        Err(reason) => reject(draft, effects, &asked, reason),
    }
}

/// Settles all that was asked, in order.
pub fn settle(draft: &mut Draft, effects: &mut Effects) {
    for asked in std::mem::take(&mut draft.asked) {
        if !draft.state.workspaces.contains(&asked.record.ws) {
            reject(draft, effects, &asked, reason::WORKSPACE_UNKNOWN);
            continue;
        }
        match settle_one(&mut draft.state, &asked) {
            Ok(()) => effects.tally.add(asked.id, Outcome::Applied, "", 1),
            Err(Refused::Older) => {
                effects
                    .tally
                    .add(asked.id, Outcome::Duplicate, reason::SUPERSEDED, 1);
            }
            Err(Refused::Known) => effects.tally.add(asked.id, Outcome::Duplicate, "", 1),
            Err(Refused::Rejected(why)) => reject(draft, effects, &asked, why),
        }
    }
}

/// Why a record changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A newer one stands.
    Older,
    /// It stands already.
    Known,
    /// It cannot be; the reason's code.
    Rejected(&'static str),
}

/// Takes one record into the state.
///
/// # Errors
/// Why it changes nothing.
pub fn settle_one(state: &mut State, asked: &Asked) -> Result<(), Refused> {
    match asked.record.change {
        Change::User => user(state, asked),
        Change::Login => login(state, asked),
        Change::Link | Change::Unlink => link(state, asked),
        Change::Preference => preference(state, asked),
    }
}

fn newer(stamp: Stamp, than: Option<Stamp>) -> Result<(), Refused> {
    match than {
        Some(stored) if stored == stamp => Err(Refused::Known),
        Some(stored) if stored > stamp => Err(Refused::Older),
        _ => Ok(()),
    }
}

fn user(state: &mut State, asked: &Asked) -> Result<(), Refused> {
    let r = &asked.record;
    let key = (r.ws, r.user.clone());
    let before = state.users.get(&key);
    newer(asked.stamp, before.map(|u| u.stamp))?;
    // Whoever is gone holds no address.
    let email = r.email.clone().filter(|_| r.status != UserStatus::Deleted);
    let folded = match &email {
        Some(email) => state.folding.get(&(r.ws, email.clone())).cloned(),
        None => None,
    };
    if let Some(folded) = &folded
        && state
            .owners
            .get(&(r.ws, folded.clone()))
            .is_some_and(|owner| *owner != r.user)
    {
        return Err(Refused::Rejected(reason::EMAIL_TAKEN));
    }
    let had = before.and_then(|u| u.folded.clone());
    if had != folded {
        if let Some(had) = &had {
            state.owners.remove(&(r.ws, had.clone()));
        }
        if let Some(folded) = &folded {
            state.owners.insert((r.ws, folded.clone()), r.user.clone());
        }
    }
    let user = state.users.entry(key).or_default();
    user.gives_up |= had.is_some() && had != folded;
    user.stamp = asked.stamp;
    user.folded = folded;
    user.said = Some(UserFacts {
        name: r.name.clone(),
        email_verified: r.email_verified && email.is_some(),
        email,
        status: r.status,
        role: r.role,
        zone: r.zone.clone(),
    });
    Ok(())
}

fn login(state: &mut State, asked: &Asked) -> Result<(), Refused> {
    let r = &asked.record;
    let Some(user) = state.users.get_mut(&(r.ws, r.user.clone())) else {
        return Err(Refused::Rejected(reason::USER_UNKNOWN));
    };
    // Nobody has logged in after the door heard of it.
    let at = r.at.unwrap_or(asked.stamp.at).min(asked.stamp.at);
    match user.last_login {
        Some(last) if last == at => Err(Refused::Known),
        Some(last) if last > at => Err(Refused::Older),
        _ => {
            user.last_login = Some(at);
            user.logged_in = true;
            Ok(())
        }
    }
}

fn link(state: &mut State, asked: &Asked) -> Result<(), Refused> {
    let r = &asked.record;
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let account = (r.ws, text(&r.module), text(&r.shard), text(&r.account));
    let pairs = state.accounts.entry(account).or_default();
    let pair = pairs.entry(r.user.clone()).or_default();
    let told = if r.change == Change::Link {
        &mut pair.linked
    } else {
        &mut pair.unlinked
    };
    newer(asked.stamp, *told)?;
    *told = Some(asked.stamp);
    pair.changed = true;
    let live = live_user(pairs).map(str::to_owned);
    for (user, pair) in pairs.iter_mut() {
        let now = live.as_deref() == Some(user.as_str());
        pair.changed |= now != pair.live;
        pair.live = now;
    }
    Ok(())
}

fn preference(state: &mut State, asked: &Asked) -> Result<(), Refused> {
    let r = &asked.record;
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let Some(mode) = r.mode else {
        return Err(Refused::Rejected(reason::FIELD_MALFORMED));
    };
    let key = (
        r.ws,
        r.user.clone(),
        text(&r.id),
        text(&r.channel),
        text(&r.scope),
    );
    newer(asked.stamp, state.preferences.get(&key).map(|p| p.stamp))?;
    let set = Preference {
        stamp: asked.stamp,
        mode,
        changed: true,
    };
    state.preferences.insert(key, set);
    Ok(())
}

#[cfg(test)]
mod tests;
