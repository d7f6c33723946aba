//! Steps when owners and lists are known: firings with whom they are about, rosters changed, outcomes. Pure.
//!
//! Within a frame, what its trackers fired comes first and sees the lists as they were; then the lists change, and what waits for
//! that fires, carrying the lists as they were too: a list that goes is read before it is gone.

use super::decide::list_param;
use super::draft::{AccountKey, Draft, Found, Link, Part, RejectKey, Rejected, Step};
use super::plan::{Plan, firing};
use super::roster::{self, Change, ListKey, Members, Moved};
use crate::modules::field::as_key;
use crate::modules::mapping::Member;
use crate::modules::tracker::{RosterEvent, Tracker};
use crate::modules::{Mapping, Module, Scene};
use crate::runtime::vertical::{Effects, Emit};
use hashbrown::HashSet;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::firing::{Firing, MAX_AUDIENCE};
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::time::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// Longest firing, in bytes: what the log surely takes.
const MAX_FIRING: usize = 700_000;

/// A list and who stood on it before the frame.
type Carried = (ListKey, Members);

/// Lists and accounts that the steps name.
#[derive(Debug, Default)]
pub struct Needs {
    /// Lists that are changed or carried.
    pub lists: BTreeSet<ListKey>,
    /// Those that are carried.
    carried: HashSet<ListKey>,
}

/// What must be known of lists before the steps are settled.
#[must_use]
pub fn needs(plan: &Plan, steps: &[Step]) -> Needs {
    let mut needs = Needs::default();
    for step in steps {
        for part in &step.parts {
            for (_, list, _) in &part.changes {
                needs.lists.insert(list.clone());
            }
            let Some(module) = plan.module(part.module) else {
                continue;
            };
            for at in part.fired.iter().chain(&part.watching) {
                if let Some(list) = carried(plan, module, part.module, *at, step) {
                    needs.lists.insert(list.clone());
                    needs.carried.insert(list);
                }
            }
        }
    }
    needs
}

/// Which accounts the steps may ask for: owners, and whoever is or comes on a list that is carried.
#[must_use]
pub fn accounts(plan: &Plan, steps: &[Step], needs: &Needs, found: &Found) -> Vec<AccountKey> {
    let mut all: BTreeSet<AccountKey> = BTreeSet::new();
    for step in steps {
        for part in &step.parts {
            let Some(module) = plan.module(part.module) else {
                continue;
            };
            for at in part.fired.iter().chain(&part.watching) {
                let mapping = module.mappings.get(*at);
                let owner = mapping.and_then(|m| owner_in(m, step));
                all.extend(owner.map(|account| AccountKey {
                    workspace: step.frame.ws,
                    module: plan.module_id(part.module),
                    shard: step.shard.clone(),
                    account: account.into(),
                }));
            }
            for (_, list, change) in &part.changes {
                if needs.carried.contains(list) {
                    all.extend(coming(change).map(|account| account_on(list, account)));
                }
            }
        }
    }
    for list in &needs.carried {
        let members = found.lists.get(list).into_iter().flatten();
        all.extend(members.map(|(_, account)| account_on(list, account)));
    }
    all.into_iter().collect()
}

fn account_on(list: &ListKey, account: &str) -> AccountKey {
    AccountKey {
        workspace: list.workspace,
        module: list.module.clone(),
        shard: list.shard.clone(),
        account: account.into(),
    }
}

fn coming(change: &Change) -> Box<dyn Iterator<Item = &str> + '_> {
    match change {
        Change::Replace(all) => Box::new(all.values().flatten().map(|a| &**a)),
        Change::Add((_, account)) => Box::new(std::iter::once(&**account)),
        Change::Seat(_, account) => Box::new(account.iter().map(|a| &**a)),
        Change::Remove(_) | Change::Clear => Box::new(std::iter::empty()),
    }
}

/// The list whose members a mapping's firing carries.
fn carried(plan: &Plan, module: &Module, place: usize, at: usize, step: &Step) -> Option<ListKey> {
    let roster = module.mappings.get(at)?.recipients?;
    let keyed = module.rosters.get(roster)?.keyed;
    Some(ListKey {
        workspace: step.frame.ws,
        module: plan.module_id(place),
        roster: plan.roster_id(place, roster),
        shard: step.shard.clone(),
        param: list_param(keyed, &step.frame.key),
    })
}

fn owner_in(mapping: &Mapping, step: &Step) -> Option<String> {
    let path = mapping.owner.as_ref()?;
    let account = path.get(&step.body).and_then(as_key)?;
    Some(account.into_owned())
}

/// Whose an account is. Of one that was unlinked, with `former`: who lost it last, unless somebody had it when the frame was
/// accepted, so that it does not matter which of frame and unlinking is read first.
#[must_use]
pub fn owner_of(links: &[Link], at: Micros, former: bool) -> Option<&str> {
    let live = links.iter().find(|l| l.live);
    if !former {
        return live.map(|l| l.user.as_str());
    }
    let held = live.filter(|l| l.linked_at.is_none_or(|linked| linked <= at));
    let lost = links
        .iter()
        .filter(|l| !l.live && l.unlinked_at.is_some())
        .max_by_key(|l| l.unlinked_at);
    held.or(lost).or(live).map(|l| l.user.as_str())
}

/// Settles all steps, in order.
pub fn settle(plan: &Plan, triggers: i32, draft: &mut Draft, effects: &mut Effects) {
    let steps = std::mem::take(&mut draft.steps);
    for step in &steps {
        let mut settling = Settling {
            plan,
            triggers,
            step,
            draft: &mut *draft,
            effects: &mut *effects,
            made: 0,
            broken: None,
        };
        for part in &step.parts {
            settling.part(part);
        }
        match settling.broken {
            Some(why) => effects.tally.add(step.id, Outcome::Rejected, why, 1),
            None => effects.tally.add(step.id, Outcome::Applied, step.held, 1),
        }
    }
}

struct Settling<'a> {
    plan: &'a Plan,
    triggers: i32,
    step: &'a Step,
    draft: &'a mut Draft,
    effects: &'a mut Effects,
    /// Firings of this frame so far, those that broke their declaration included.
    made: u32,
    /// Why the first of those did.
    broken: Option<&'static str>,
}

impl Settling<'_> {
    fn part(&mut self, part: &Part) {
        let plan = self.plan;
        let Some(module) = plan.module(part.module) else {
            return;
        };
        for at in &part.fired {
            let carried = self.list_of(module, part.module, *at);
            self.fire(module, part.module, *at, None, carried.as_ref());
        }
        // Carried lists as they are before any change of this frame.
        let watching: Vec<(usize, Option<Carried>)> = part
            .watching
            .iter()
            .map(|at| (*at, self.list_of(module, part.module, *at)))
            .collect();
        for (roster, list, change) in &part.changes {
            let members = self.list(list);
            let first_sight = members.is_empty();
            let mut moved = roster::apply(members, change);
            if first_sight && matches!(change, Change::Replace(_)) {
                // The first list that is seen says how things are.
                moved.joined.clear();
            }
            for (at, carried) in &watching {
                self.watch(
                    module,
                    part.module,
                    *at,
                    (*roster, &moved),
                    carried.as_ref(),
                );
            }
        }
    }

    /// A list as it stands by now.
    fn list(&mut self, key: &ListKey) -> &mut Members {
        let draft = &mut *self.draft;
        draft
            .lists
            .entry(key.clone())
            .or_insert_with(|| draft.found.lists.get(key).cloned().unwrap_or_default())
    }

    /// The list whose members a mapping's firing carries, as it stands by now.
    fn list_of(&self, module: &Module, place: usize, at: usize) -> Option<Carried> {
        let key = carried(self.plan, module, place, at, self.step)?;
        let draft = &*self.draft;
        let members = draft
            .lists
            .get(&key)
            .or_else(|| draft.found.lists.get(&key));
        let members = members.cloned().unwrap_or_default();
        Some((key, members))
    }

    /// Their users, without the one whom the firing is of.
    fn users(&self, (key, members): &Carried, without: Option<Member<'_>>) -> Vec<String> {
        let others = members
            .iter()
            .filter(|(slot, _)| without.is_none_or(|member| *member.slot != ***slot));
        let mut users: Vec<String> = others
            .filter_map(|(_, account)| {
                let links = self.draft.found.links.get(&account_on(key, account))?;
                owner_of(links, self.step.accepted_at, false).map(str::to_owned)
            })
            .collect();
        users.sort_unstable();
        users.dedup();
        users.truncate(MAX_AUDIENCE);
        users
    }

    fn watch(
        &mut self,
        module: &Module,
        place: usize,
        at: usize,
        (roster, moved): (usize, &Moved),
        carried: Option<&Carried>,
    ) {
        let Some(Tracker::Roster {
            roster: wanted,
            event,
        }) = module.mappings.get(at).map(|m| &m.tracker)
        else {
            return;
        };
        if *wanted != roster {
            return;
        }
        let members = match event {
            RosterEvent::Joined => &moved.joined,
            // A list that goes as a whole is one piece of news.
            RosterEvent::Left if moved.cleared => return,
            RosterEvent::Left => &moved.left,
            RosterEvent::Cleared => {
                if moved.cleared && !moved.left.is_empty() {
                    self.fire(module, place, at, None, carried);
                }
                return;
            }
        };
        for (slot, account) in members {
            let member = Member { slot, account };
            self.fire(module, place, at, Some(member), carried);
        }
    }

    fn fire(
        &mut self,
        module: &Module,
        place: usize,
        at: usize,
        member: Option<Member<'_>>,
        carried: Option<&Carried>,
    ) {
        let Some((mapping, trigger)) = firing(module, at) else {
            return;
        };
        let step = self.step;
        let id = format!("{}-{}", step.id, self.made);
        self.made += 1;
        let scene = Scene {
            shard: &step.frame.shard,
            boot: &step.frame.boot,
            seq: step.frame.seq,
            kind: &step.frame.kind,
            key: &step.frame.key,
            at: step.at,
            body: &step.body,
            member,
        };
        let fired = match mapping.fire(trigger, &scene) {
            Ok(fired) => fired,
            Err(unfit) => return self.reject(&trigger.id, unfit.reason(), unfit.variable(), id),
        };
        let owner = fired.account.as_deref().and_then(|account| {
            let key = AccountKey {
                workspace: step.frame.ws,
                module: self.plan.module_id(place),
                shard: step.shard.clone(),
                account: account.into(),
            };
            let links = self.draft.found.links.get(&key)?;
            owner_of(links, step.accepted_at, mapping.former_owner).map(str::to_owned)
        });
        let firing = Firing {
            v: WIRE_VERSION,
            ws: step.frame.ws,
            id,
            trigger: trigger.id.to_string(),
            module: module.id.to_string(),
            shard: step.frame.shard.clone(),
            subject: fired.subject,
            vars: fired.vars.into_iter().collect::<BTreeMap<_, _>>(),
            // Whoever lost an account is told of that without a link.
            account: fired
                .account
                .filter(|_| owner.is_some() && !mapping.former_owner),
            owner,
            recipients: carried.map(|list| self.users(list, member)),
            by_links: carried.is_some(),
            scope: fired.scope,
            ceiling: mapping.ceiling,
            dedupe: fired.dedupe,
            at: step.at,
            accepted_at: step.accepted_at,
            emit: None,
            replay: None,
        };
        if let Some(fault) = firing.fault() {
            return self.reject(&trigger.id, fault, "", firing.id);
        }
        match serde_json::to_vec(&firing) {
            Ok(payload) if payload.len() <= MAX_FIRING => self.effects.emits.push(Emit {
                topic_no: self.triggers,
                key: firing.log_key().into_bytes(),
                payload,
            }),
            _ => self.reject(&trigger.id, reason::FIRING_TOO_LARGE, "", firing.id),
        }
    }

    fn reject(&mut self, trigger: &str, why: &'static str, variable: &str, id: String) {
        self.broken.get_or_insert(why);
        let key = RejectKey {
            workspace: self.step.frame.ws,
            trigger: trigger.into(),
            reason: why,
            variable: variable.into(),
        };
        let at = self.step.accepted_at;
        match self.draft.rejected.get_mut(&key) {
            Some(held) => {
                held.n += 1;
                held.at = at;
                held.id = id;
            }
            None => {
                self.draft.rejected.insert(key, Rejected { n: 1, at, id });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(user: &str, live: bool, linked: i64, unlinked: Option<i64>) -> Link {
        Link {
            user: user.to_owned(),
            live,
            linked_at: Some(Micros(linked)),
            unlinked_at: unlinked.map(Micros),
        }
    }

    #[test]
    fn whoever_lost_an_account_is_found_in_either_order() {
        // The frame is read first: the link still stands.
        let before = [link("ann", true, 10, None)];
        // The unlinking is read first: a tombstone is left.
        let after = [link("ann", false, 10, Some(99))];
        // Somebody else took the account up meanwhile.
        let taken = [
            link("ann", false, 10, Some(99)),
            link("bob", true, 101, None),
        ];
        for links in [&before[..], &after, &taken] {
            assert_eq!(owner_of(links, Micros(100), true), Some("ann"));
        }
        assert_eq!(owner_of(&before, Micros(100), false), Some("ann"));
        assert_eq!(owner_of(&after, Micros(100), false), None);
        assert_eq!(owner_of(&taken, Micros(100), false), Some("bob"));
        // Bob's own loss, later.
        assert_eq!(owner_of(&taken, Micros(200), true), Some("bob"));
        let lost = [
            link("ann", false, 10, Some(99)),
            link("bob", false, 101, Some(199)),
        ];
        assert_eq!(owner_of(&lost, Micros(200), true), Some("bob"));
        assert_eq!(owner_of(&[], Micros(200), true), None);
        // Clocks of doors differ.
        assert_eq!(
            owner_of(&[link("eve", true, 201, None)], Micros(200), true),
            Some("eve")
        );
    }
}
