//! From a rule's audience to users: set-wise, active users alone, at most [`MOST_REACHED`] of them. The gates and the reach preview
//! ask the same functions, so that a preview cannot be wrong about the one thing it says.

pub(crate) mod sets;

use super::segment::{NoCeiling, Segment};
use crate::modules::Modules;
use millrace_schemas::ceiling::Ceiling;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, GenericClient};

/// Users that an audience is ever resolved to, at most. What lies beyond is not told, and `capped` says so.
pub const MOST_REACHED: usize = 5_000;

/// Whom a question is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Whom<'a> {
    /// The one user whom the event is about; none: its account is linked to nobody.
    Owner(Option<&'a str>),
    /// The users that travel with the event; none: it carries no list.
    Members(Option<&'a [String]>),
    /// Users with a stored preference for this id, on any channel and scope, that is not off.
    Subscribers(&'a str),
    /// Admins, editors, moderators.
    Staff,
    /// Admins.
    Admin,
    /// Every active user: `authenticated` and `everyone`, since whoever is signed out has no address and no inbox.
    Everyone,
    /// A saved audience.
    Segment(&'a Segment),
}

impl<'a> Whom<'a> {
    /// The users of a plain audience: of an event about `owner` that carries `members`, by the trigger `id`.
    #[must_use]
    pub fn of(
        audience: Ceiling,
        id: &'a str,
        owner: Option<&'a str>,
        members: Option<&'a [String]>,
    ) -> Whom<'a> {
        match audience {
            Ceiling::Owner => Whom::Owner(owner),
            Ceiling::Members => Whom::Members(members),
            Ceiling::Subscribers => Whom::Subscribers(id),
            Ceiling::Staff => Whom::Staff,
            Ceiling::Admin => Whom::Admin,
            Ceiling::Authenticated | Ceiling::Everyone => Whom::Everyone,
        }
    }
}

/// A question: who, in which workspace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ask<'a> {
    /// The workspace's number.
    pub ws: i32,
    /// Whom.
    pub whom: Whom<'a>,
}

/// Why nobody is reached, where that says more than a 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unreached {
    /// The event's account is linked to nobody; before an event, nobody can say who it will be.
    NoOwner,
    /// The event carries no list, and there is no segment.
    NoList,
    /// An audience of the segment is declared by nobody any more, or asks for other parameters.
    Dormant,
}

impl Unreached {
    /// Its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Unreached::NoOwner => "no_owner",
            Unreached::NoList => "no_list",
            Unreached::Dormant => "dormant",
        }
    }
}

/// Who is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Active users, in order of their ids; equal questions share them.
    pub users: Arc<[String]>,
    /// There are more than [`MOST_REACHED`].
    pub capped: bool,
    /// Why there are none.
    pub reason: Option<Unreached>,
}

impl Reached {
    fn nobody(reason: Unreached) -> Reached {
        Reached {
            reason: Some(reason),
            ..Reached::default()
        }
    }
}

/// The ceiling that an audience of a segment is declared with: core's own words, or a module's audience; `None`: nobody declares it.
#[must_use]
pub fn declared(modules: &Modules, audience: &str) -> Option<Ceiling> {
    core_audience(audience).or_else(|| modules.audience(audience).map(|(_, a)| a.ceiling))
}

/// The audiences that core itself answers within a segment. `owner`, `members` and `subscribers` depend on an event.
#[must_use]
pub fn core_audience(word: &str) -> Option<Ceiling> {
    Ceiling::of_word(word).filter(|c| {
        matches!(
            c,
            Ceiling::Everyone | Ceiling::Authenticated | Ceiling::Staff | Ceiling::Admin
        )
    })
}

/// The ceiling of a segment as modules declare its audiences now, and whether it could be resolved.
///
/// # Errors
/// [`NoCeiling`]: it is dormant, or has none.
pub fn ceiling(modules: &Modules, segment: &Segment) -> Result<Ceiling, NoCeiling> {
    let ceiling = segment.ceiling(|id| declared(modules, id))?;
    match sets::unfit(modules, segment) {
        unfit if unfit.is_empty() => Ok(ceiling),
        unfit => Err(NoCeiling::Dormant(unfit)),
    }
}

/// Answers questions, in their order: owners and carried lists in one statement, equal questions once.
///
/// # Errors
/// The store's.
pub async fn resolve_all(
    client: &impl GenericClient,
    modules: &Modules,
    asks: &[Ask<'_>],
) -> Result<Vec<Reached>, Error> {
    let all = resolve_while(client, modules, asks, |_, _| true).await?;
    Ok(all.unwrap_or_default())
}

/// As [`resolve_all`], as long as `go_on` says so: it is told of each question once, by its place, and of how many users it has:
/// first of the lists that are carried, before the store is asked (there are at most so many), then of each answer when it is known.
/// `None`: it said no, and the rest was not asked.
///
/// # Errors
/// The store's.
pub async fn resolve_while(
    client: &impl GenericClient,
    modules: &Modules,
    asks: &[Ask<'_>],
    mut go_on: impl FnMut(usize, usize) -> bool,
) -> Result<Option<Vec<Reached>>, Error> {
    let mut answers: Vec<Option<Reached>> = vec![None; asks.len()];
    let mut named: Vec<(usize, &str)> = Vec::new();
    for (i, ask) in asks.iter().enumerate() {
        let users: &[String] = match &ask.whom {
            Whom::Owner(Some(owner)) => {
                named.push((i, owner));
                if !go_on(i, 1) {
                    return Ok(None);
                }
                continue;
            }
            Whom::Members(Some(members)) => members,
            _ => continue,
        };
        if !go_on(i, users.len()) {
            return Ok(None);
        }
        named.extend(users.iter().map(|u| (i, u.as_str())));
    }
    if !named.is_empty() {
        let asked: Vec<i32> = named
            .iter()
            .map(|(i, _)| i32::try_from(*i).unwrap_or(i32::MAX))
            .collect();
        let workspaces: Vec<i32> = named
            .iter()
            .map(|(i, _)| asks.get(*i).map_or(0, |a| a.ws))
            .collect();
        let users: Vec<&str> = named.iter().map(|(_, user)| *user).collect();
        let rows = client
            .query(
                "SELECT DISTINCT n.asked, u.user_id FROM unnest($1::int4[], $2::int4[], $3::text[]) AS n(asked, ws, id)
                 JOIN users u ON u.workspace_id = n.ws AND u.user_id = n.id AND u.status = 'active' ORDER BY 1, 2",
                &[&asked, &workspaces, &users],
            )
            .await?;
        let mut found: BTreeMap<i32, Vec<String>> = BTreeMap::new();
        for row in &rows {
            found.entry(row.get(0)).or_default().push(row.get(1));
        }
        for i in named.iter().map(|(i, _)| *i) {
            let users = found
                .remove(&i32::try_from(i).unwrap_or(i32::MAX))
                .unwrap_or_default();
            if let Some(answer) = answers.get_mut(i).filter(|a| a.is_none()) {
                *answer = Some(bounded(users));
            }
        }
    }
    let mut known: HashMap<&Ask<'_>, Reached> = HashMap::new();
    for (i, (ask, slot)) in asks.iter().zip(&mut answers).enumerate() {
        if slot.is_some() {
            continue;
        }
        let answer = match known.get(ask) {
            Some(answer) => answer.clone(),
            None => {
                let answer = of_store(client, modules, ask).await?;
                known.insert(ask, answer.clone());
                answer
            }
        };
        let carried = matches!(&ask.whom, Whom::Owner(Some(_)) | Whom::Members(Some(_)));
        if !carried && !go_on(i, answer.users.len()) {
            return Ok(None);
        }
        *slot = Some(answer);
    }
    let all = answers.into_iter().map(Option::unwrap_or_default);
    Ok(Some(all.collect()))
}

/// Answers one question.
///
/// # Errors
/// The store's.
pub async fn resolve(
    client: &impl GenericClient,
    modules: &Modules,
    ask: &Ask<'_>,
) -> Result<Reached, Error> {
    let all = resolve_all(client, modules, std::slice::from_ref(ask)).await?;
    Ok(all.into_iter().next().unwrap_or_default())
}

async fn of_store(
    client: &impl GenericClient,
    modules: &Modules,
    ask: &Ask<'_>,
) -> Result<Reached, Error> {
    let mut set = sets::Set::of(ask.ws);
    let within = match &ask.whom {
        Whom::Owner(None) => return Ok(Reached::nobody(Unreached::NoOwner)),
        Whom::Members(None) => return Ok(Reached::nobody(Unreached::NoList)),
        // Answered with all others of their kind; a list may be empty.
        Whom::Owner(Some(_)) | Whom::Members(Some(_)) => return Ok(Reached::default()),
        Whom::Everyone => None,
        Whom::Staff => Some(sets::STAFF.to_owned()),
        Whom::Admin => Some(sets::ADMIN.to_owned()),
        Whom::Subscribers(id) => Some(set.subscribers(id)),
        Whom::Segment(segment) => match ceiling(modules, segment) {
            Err(_) => return Ok(Reached::nobody(Unreached::Dormant)),
            Ok(_) => match set.segment(modules, segment) {
                Some(sql) => Some(sql),
                None => return Ok(Reached::nobody(Unreached::Dormant)),
            },
        },
    };
    let within = within.map_or_else(String::new, |set| format!(" AND u.user_id IN ({set})"));
    let sql = format!(
        "SELECT u.user_id FROM users u WHERE u.workspace_id = $1 AND u.status = 'active'{within} ORDER BY 1 LIMIT {}",
        MOST_REACHED + 1
    );
    let params: Vec<&(dyn ToSql + Sync)> = set.params.iter().map(|p| &**p as _).collect();
    let rows = client.query(&sql, &params).await?;
    Ok(bounded(rows.iter().map(|r| r.get(0)).collect()))
}

fn bounded(mut users: Vec<String>) -> Reached {
    let capped = users.len() > MOST_REACHED;
    users.truncate(MOST_REACHED);
    Reached {
        users: users.into(),
        capped,
        reason: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn equal_questions_are_one_and_share_their_answer() {
        let ask = |ws, whom| Ask { ws, whom };
        let asks = [
            ask(1, Whom::Staff),
            ask(1, Whom::Staff),
            ask(2, Whom::Staff),
            ask(1, Whom::Subscribers("a")),
            ask(1, Whom::Subscribers("a")),
            ask(1, Whom::Subscribers("b")),
        ];
        let distinct: HashSet<&Ask<'_>> = asks.iter().collect();
        assert_eq!(distinct.len(), 4);
        let one = bounded(vec!["u".to_owned(); MOST_REACHED + 1]);
        assert_eq!((one.users.len(), one.capped), (MOST_REACHED, true));
        assert!(Arc::ptr_eq(&one.users, &one.clone().users));
    }
}
