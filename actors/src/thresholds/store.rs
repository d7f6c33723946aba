//! The SQL of thresholds: one round for the cold of a batch, one for owners and one for rosters where something fired, and what
//! the batch leaves, set-wise.

use super::draft::{AccountKey, Draft, Link, Rejected};
use super::plan::Plan;
use super::roster::{ListKey, Members};
use super::slice::{Shard, ShardKey, Slice, StateKey, StateRef};
use crate::postgres::types::Tz;
use crate::runtime::session::{Failure, Session};
use hashbrown::HashMap;
use millrace_schemas::frame::ReplayWindow;
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use std::collections::BTreeMap;
use uuid::Uuid;

mod letters;

/// The key of a tracker's memory in the store.
#[must_use]
pub fn memory_id(plan: &Plan, key: &StateKey) -> Uuid {
    let (module, mapping) = plan.name_of(key.mapping);
    let StateRef { shard, key: of, .. } = key.borrowed();
    ids::digest(
        "tracker",
        &[
            &key.workspace.to_be_bytes(),
            module.as_bytes(),
            shard.as_bytes(),
            mapping.as_bytes(),
            of.as_bytes(),
        ],
    )
}

/// Loads shards that the slice lacks: windows and letters. Of what the store knows nothing, nothing was decided.
///
/// # Errors
/// The store's. A window of another form stops the partition.
pub async fn load_shards(
    slice: &mut Slice,
    session: &Session,
    partition: i32,
    cold: Vec<ShardKey>,
) -> Result<(), Failure> {
    if cold.is_empty() {
        return Ok(());
    }
    let workspaces: Vec<i32> = cold.iter().map(|s| s.workspace).collect();
    let shards: Vec<&str> = cold.iter().map(|s| &*s.shard).collect();
    let rows = session
        .query(
            "SELECT w.workspace, w.shard, w.seen, w.marked FROM unnest($2::int4[], $3::text[]) AS k(workspace, shard)
             JOIN frame_windows w ON w.partition = $1 AND w.workspace = k.workspace AND w.shard = k.shard",
            &[&partition, &workspaces, &shards],
        )
        .await?;
    let none = cold.iter().map(|key| (key.clone(), Shard::default()));
    let mut found: HashMap<ShardKey, Shard> = none.collect();
    for row in &rows {
        let shard = ShardKey {
            workspace: row.get(0),
            shard: row.get::<_, &str>(1).into(),
        };
        let seen: &[u8] = row.get(2);
        let Some(window) = ReplayWindow::from_bytes(seen) else {
            return Err(Failure::Stop(format!(
                "the replay window of shard `{}` is of another form",
                shard.shard
            )));
        };
        let held = found.entry(shard).or_default();
        held.window = window;
        held.doubted = row.get::<_, Option<Uuid>>(3) != Some(mark_of(seen));
    }
    let asked = (workspaces.as_slice(), shards.as_slice());
    letters::load(session, partition, asked, &mut found).await?;
    for (key, shard) in found {
        slice.put_shard(key, shard);
    }
    Ok(())
}

/// Loads memories that the slice lacks: one `= ANY`.
///
/// # Errors
/// The store's.
pub async fn load_memories(
    slice: &mut Slice,
    session: &Session,
    plan: &Plan,
    cold: Vec<StateKey>,
) -> Result<(), Failure> {
    if cold.is_empty() {
        return Ok(());
    }
    metrics::counter!("thresholds_cold_keys_total")
        .increment(u64::try_from(cold.len()).unwrap_or(0));
    let by_id: HashMap<Uuid, StateKey> = cold
        .into_iter()
        .map(|key| (memory_id(plan, &key), key))
        .collect();
    let asked: Vec<Uuid> = by_id.keys().copied().collect();
    let rows = session
        .query(
            "SELECT id, memory FROM tracker_states WHERE id = ANY($1)",
            &[&asked],
        )
        .await?;
    let mut found: HashMap<Uuid, Box<str>> = rows
        .iter()
        .map(|r| (r.get(0), r.get::<_, &str>(1).into()))
        .collect();
    for (id, key) in by_id {
        slice.remember(key, found.remove(&id));
    }
    Ok(())
}

/// Reads lists whole.
///
/// # Errors
/// The store's.
pub async fn read_lists(
    session: &Session,
    wanted: &[ListKey],
) -> Result<BTreeMap<ListKey, Members>, Failure> {
    let mut found: BTreeMap<ListKey, Members> = wanted
        .iter()
        .map(|key| (key.clone(), Members::new()))
        .collect();
    if wanted.is_empty() {
        return Ok(found);
    }
    let c = Columns::of(wanted.iter());
    let rows = session
        .query(
            "SELECT r.workspace, r.module, r.roster, r.shard, r.param, r.slot, r.account
             FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::text[])
                  AS k(workspace, module, roster, shard, param)
             JOIN roster_members r USING (workspace, module, roster, shard, param)",
            &[&c.workspaces, &c.modules, &c.rosters, &c.shards, &c.params],
        )
        .await?;
    for row in &rows {
        let text = |at: usize| row.get::<_, &str>(at);
        let key = ListKey {
            workspace: row.get(0),
            module: text(1).into(),
            roster: text(2).into(),
            shard: text(3).into(),
            param: text(4).into(),
        };
        if let Some(members) = found.get_mut(&key) {
            members.insert(text(5).into(), text(6).into());
        }
    }
    Ok(found)
}

/// Reads every link there ever was of accounts.
///
/// # Errors
/// The store's.
pub async fn read_links(
    session: &Session,
    wanted: &[AccountKey],
) -> Result<HashMap<AccountKey, Vec<Link>>, Failure> {
    let mut found: HashMap<AccountKey, Vec<Link>> = HashMap::new();
    if wanted.is_empty() {
        return Ok(found);
    }
    let workspaces: Vec<i32> = wanted.iter().map(|a| a.workspace).collect();
    let modules: Vec<&str> = wanted.iter().map(|a| &*a.module).collect();
    let shards: Vec<&str> = wanted.iter().map(|a| &*a.shard).collect();
    let accounts: Vec<&str> = wanted.iter().map(|a| &*a.account).collect();
    let rows = session
        .query(
            "SELECT l.workspace_id, l.module, l.shard, l.account, l.user_id, l.live, l.linked_at, l.unlinked_at
             FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[]) AS k(workspace_id, module, shard, account)
             JOIN links l USING (workspace_id, module, shard, account)",
            &[&workspaces, &modules, &shards, &accounts],
        )
        .await?;
    for row in &rows {
        let text = |at: usize| row.get::<_, &str>(at);
        let account = AccountKey {
            workspace: row.get(0),
            module: text(1).into(),
            shard: text(2).into(),
            account: text(3).into(),
        };
        found.entry(account).or_default().push(Link {
            user: text(4).to_owned(),
            live: row.get(5),
            linked_at: row.get::<_, Option<Tz>>(6).map(|t| t.0),
            unlinked_at: row.get::<_, Option<Tz>>(7).map(|t| t.0),
        });
    }
    Ok(found)
}

/// Lists as columns.
struct Columns<'a> {
    workspaces: Vec<i32>,
    modules: Vec<&'a str>,
    rosters: Vec<&'a str>,
    shards: Vec<&'a str>,
    params: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    fn of(lists: impl Iterator<Item = &'a ListKey>) -> Columns<'a> {
        let mut c = Columns {
            workspaces: Vec::new(),
            modules: Vec::new(),
            rosters: Vec::new(),
            shards: Vec::new(),
            params: Vec::new(),
        };
        for list in lists {
            c.workspaces.push(list.workspace);
            c.modules.push(&list.module);
            c.rosters.push(&list.roster);
            c.shards.push(&list.shard);
            c.params.push(&list.param);
        }
        c
    }
}

/// Writes everything the draft stands for.
///
/// # Errors
/// The store's.
pub async fn write(
    session: &Session,
    plan: &Plan,
    partition: i32,
    draft: &Draft,
    wall: Micros,
) -> Result<(), Failure> {
    write_windows(session, partition, draft).await?;
    letters::write(session, partition, draft).await?;
    write_memories(session, plan, draft, wall).await?;
    write_lists(session, draft).await?;
    write_rejects(session, partition, draft).await
}

/// What stands beside a window whose frames have marked the letters: an older program writes the window alone.
fn mark_of(seen: &[u8]) -> Uuid {
    ids::digest("window", &[seen])
}

async fn write_windows(session: &Session, partition: i32, draft: &Draft) -> Result<(), Failure> {
    if draft.shards.is_empty() {
        return Ok(());
    }
    let (mut workspaces, mut shards) = (Vec::new(), Vec::new());
    let (mut seen, mut marked) = (Vec::new(), Vec::new());
    for (key, shard) in &draft.shards {
        workspaces.push(key.workspace);
        shards.push(&*key.shard);
        let bytes = shard.window.to_bytes();
        marked.push(mark_of(&bytes));
        seen.push(bytes);
    }
    session
        .execute(
            "INSERT INTO frame_windows (partition, workspace, shard, seen, marked)
             SELECT $1::int4, * FROM unnest($2::int4[], $3::text[], $4::bytea[], $5::uuid[])
             ON CONFLICT (partition, workspace, shard) DO UPDATE SET seen = excluded.seen, marked = excluded.marked",
            &[&partition, &workspaces, &shards, &seen, &marked],
        )
        .await?;
    Ok(())
}

async fn write_memories(
    session: &Session,
    plan: &Plan,
    draft: &Draft,
    wall: Micros,
) -> Result<(), Failure> {
    if draft.memories.is_empty() {
        return Ok(());
    }
    let (mut ids, mut workspaces, mut modules) = (Vec::new(), Vec::new(), Vec::new());
    let (mut shards, mut mappings) = (Vec::new(), Vec::new());
    let (mut keys, mut memories) = (Vec::new(), Vec::new());
    for (key, memory) in &draft.memories {
        let (module, mapping) = plan.name_of(key.mapping);
        ids.push(memory_id(plan, key));
        workspaces.push(key.workspace);
        modules.push(module);
        let StateRef { shard, key: of, .. } = key.borrowed();
        shards.push(shard);
        mappings.push(mapping);
        keys.push(of);
        memories.push(&**memory);
    }
    session
        .execute(
            "INSERT INTO tracker_states (id, workspace, module, shard, mapping, key, memory, changed_on)
             SELECT k.*, ($8::timestamptz AT TIME ZONE 'UTC')::date
             FROM unnest($1::uuid[], $2::int4[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]) AS k
             ON CONFLICT (id) DO UPDATE SET memory = excluded.memory, changed_on = excluded.changed_on",
            &[
                &ids, &workspaces, &modules, &shards, &mappings, &keys, &memories, &Tz(wall),
            ],
        )
        .await?;
    Ok(())
}

/// Removes whoever left before whoever joined is written: a slot may change hands.
async fn write_lists(session: &Session, draft: &Draft) -> Result<(), Failure> {
    let mut gone: Vec<(&ListKey, &str)> = Vec::new();
    let mut here: Vec<(&ListKey, &str, &str)> = Vec::new();
    let none = Members::new();
    for (key, now) in &draft.lists {
        let before = draft.found.lists.get(key).unwrap_or(&none);
        gone.extend(
            before
                .keys()
                .filter(|slot| !now.contains_key(*slot))
                .map(|slot| (key, &**slot)),
        );
        here.extend(
            now.iter()
                .filter(|(slot, account)| before.get(*slot) != Some(*account))
                .map(|(slot, account)| (key, &**slot, &**account)),
        );
    }
    if !gone.is_empty() {
        let c = Columns::of(gone.iter().map(|(key, _)| *key));
        let slots: Vec<&str> = gone.iter().map(|(_, slot)| *slot).collect();
        session
            .execute(
                "DELETE FROM roster_members r
                 USING unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
                       AS k(workspace, module, roster, shard, param, slot)
                 WHERE (r.workspace, r.module, r.roster, r.shard, r.param, r.slot)
                       = (k.workspace, k.module, k.roster, k.shard, k.param, k.slot)",
                &[&c.workspaces, &c.modules, &c.rosters, &c.shards, &c.params, &slots],
            )
            .await?;
    }
    if !here.is_empty() {
        let c = Columns::of(here.iter().map(|(key, ..)| *key));
        let slots: Vec<&str> = here.iter().map(|(_, slot, _)| *slot).collect();
        let accounts: Vec<&str> = here.iter().map(|(.., account)| *account).collect();
        session
            .execute(
                "INSERT INTO roster_members (workspace, module, roster, shard, param, slot, account)
                 SELECT * FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
                 ON CONFLICT (workspace, module, roster, shard, param, slot) DO UPDATE SET account = excluded.account",
                &[&c.workspaces, &c.modules, &c.rosters, &c.shards, &c.params, &slots, &accounts],
            )
            .await?;
    }
    Ok(())
}

async fn write_rejects(session: &Session, partition: i32, draft: &Draft) -> Result<(), Failure> {
    if draft.rejected.is_empty() {
        return Ok(());
    }
    let (mut workspaces, mut triggers, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    let (mut variables, mut counts) = (Vec::new(), Vec::new());
    let (mut times, mut last) = (Vec::new(), Vec::new());
    for (key, Rejected { n, at, id }) in &draft.rejected {
        workspaces.push(key.workspace);
        triggers.push(&*key.trigger);
        reasons.push(key.reason);
        variables.push(&*key.variable);
        counts.push(*n);
        times.push(Tz(*at));
        last.push(id.as_str());
    }
    session
        .execute(
            "INSERT INTO firing_rejects AS r (partition, workspace, trigger, reason, variable, n, last_at, last_id)
             SELECT $1::int4, * FROM unnest($2::int4[], $3::text[], $4::text[], $5::text[], $6::int8[], $7::timestamptz[], $8::text[])
             ON CONFLICT (partition, workspace, trigger, reason, variable)
             DO UPDATE SET n = r.n + excluded.n, last_at = excluded.last_at, last_id = excluded.last_id",
            &[
                &partition,
                &workspaces,
                &triggers,
                &reasons,
                &variables,
                &counts,
                &times,
                &last,
            ],
        )
        .await?;
    Ok(())
}
