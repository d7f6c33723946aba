//! The SQL of the directory's batch: what it names is read and locked, then its changes are written, each table at once.

use super::decide::{Asked, Draft, Reject};
use super::sql::Sql;
use super::state::{AccountKey, Pair, Preference, PreferenceKey, Stamp, State, User, UserKey};
use crate::postgres::types::Tz;
use crate::runtime::session::{Failure, Session};
use millrace_schemas::channel::Mode;
use millrace_schemas::directory::{Change, link_id};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

/// Reads and locks what the records name.
///
/// # Errors
/// The store's.
pub async fn load(sql: &impl Sql, asked: &[Asked]) -> Result<State, Error> {
    let mut state = State::default();
    if asked.is_empty() {
        return Ok(state);
    }
    let named: BTreeSet<i32> = asked.iter().map(|a| a.record.ws).collect();
    let named: Vec<i32> = named.into_iter().collect();
    let rows = sql
        .rows(
            "SELECT workspace_id FROM workspaces WHERE workspace_id = ANY($1)",
            &[&named],
        )
        .await?;
    state.workspaces = rows.iter().map(|r| r.get(0)).collect();
    users(sql, asked, &mut state).await?;
    addresses(sql, asked, &mut state).await?;
    accounts(sql, asked, &mut state).await?;
    preferences(sql, asked, &mut state).await?;
    Ok(state)
}

fn stamp(row: &Row, at: &str, topic: &str, offset: &str) -> Option<Stamp> {
    let at: Option<Tz> = row.get(at);
    at.map(|Tz(at)| Stamp {
        at,
        topic: row.get(topic),
        offset: row.get(offset),
    })
}

async fn users(sql: &impl Sql, asked: &[Asked], state: &mut State) -> Written {
    let named: BTreeSet<(i32, &str)> = asked
        .iter()
        .filter(|a| matches!(a.record.change, Change::User | Change::Login))
        .map(|a| (a.record.ws, a.record.user.as_str()))
        .collect();
    if named.is_empty() {
        return Ok(());
    }
    let (workspaces, ids): (Vec<i32>, Vec<&str>) = named.into_iter().unzip();
    let rows = sql
        .rows(
            "SELECT u.workspace_id, u.user_id, u.email_folded, u.last_login, u.changed_at, u.changed_topic, u.changed_offset
             FROM users u JOIN unnest($1::int4[], $2::text[]) AS n(ws, id) ON u.workspace_id = n.ws AND u.user_id = n.id
             ORDER BY 1, 2 FOR UPDATE OF u",
            &[&workspaces, &ids],
        )
        .await?;
    for row in &rows {
        let folded: Option<String> = row.get("email_folded");
        let key: UserKey = (row.get(0), row.get(1));
        if let Some(folded) = &folded {
            state.owners.insert((key.0, folded.clone()), key.1.clone());
        }
        let user = User {
            stamp: stamp(row, "changed_at", "changed_topic", "changed_offset").unwrap_or_default(),
            folded,
            last_login: row.get::<_, Option<Tz>>("last_login").map(|t| t.0),
            ..User::default()
        };
        state.users.insert(key, user);
    }
    Ok(())
}

/// Folds what is named as the store folds it, and asks whose it is.
async fn addresses(sql: &impl Sql, asked: &[Asked], state: &mut State) -> Written {
    let named: BTreeSet<(i32, &str)> = asked
        .iter()
        .filter(|a| a.record.change == Change::User)
        .filter_map(|a| Some((a.record.ws, a.record.email.as_deref()?)))
        .collect();
    if named.is_empty() {
        return Ok(());
    }
    let (workspaces, emails): (Vec<i32>, Vec<&str>) = named.into_iter().unzip();
    let rows = sql
        .rows(
            "SELECT n.ws, n.email, n.folded, u.user_id
             FROM (SELECT ws, email, lower(email COLLATE \"und-x-icu\") COLLATE \"C\" AS folded
                   FROM unnest($1::int4[], $2::text[]) AS named(ws, email)) AS n
             LEFT JOIN users u ON u.workspace_id = n.ws AND u.email_folded = n.folded",
            &[&workspaces, &emails],
        )
        .await?;
    for row in &rows {
        let (ws, folded): (i32, String) = (row.get(0), row.get(2));
        if let Some(owner) = row.get::<_, Option<String>>(3) {
            state.owners.insert((ws, folded.clone()), owner);
        }
        state.folding.insert((ws, row.get(1)), folded);
    }
    Ok(())
}

async fn accounts(sql: &impl Sql, asked: &[Asked], state: &mut State) -> Written {
    let named: BTreeSet<AccountKey> = asked
        .iter()
        .filter(|a| matches!(a.record.change, Change::Link | Change::Unlink))
        .map(|a| {
            let text = |t: &Option<String>| t.clone().unwrap_or_default();
            let r = &a.record;
            (r.ws, text(&r.module), text(&r.shard), text(&r.account))
        })
        .collect();
    if named.is_empty() {
        return Ok(());
    }
    let (mut workspaces, mut modules, mut shards, mut ids) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (ws, module, shard, account) in &named {
        workspaces.push(*ws);
        modules.push(module.as_str());
        shards.push(shard.as_str());
        ids.push(account.as_str());
    }
    let rows = sql
        .rows(
            "SELECT l.workspace_id, l.module, l.shard, l.account, l.user_id, l.live, l.linked_at, l.linked_topic,
                    l.linked_offset, l.unlinked_at, l.unlinked_topic, l.unlinked_offset
             FROM links l JOIN unnest($1::int4[], $2::text[], $3::text[], $4::text[]) AS n(ws, module, shard, account)
               ON l.workspace_id = n.ws AND l.module = n.module AND l.shard = n.shard AND l.account = n.account
             ORDER BY 1, 2, 3, 4, 5 FOR UPDATE OF l",
            &[&workspaces, &modules, &shards, &ids],
        )
        .await?;
    for row in &rows {
        let pair = Pair {
            linked: stamp(row, "linked_at", "linked_topic", "linked_offset"),
            unlinked: stamp(row, "unlinked_at", "unlinked_topic", "unlinked_offset"),
            live: row.get("live"),
            changed: false,
        };
        state
            .accounts
            .entry((row.get(0), row.get(1), row.get(2), row.get(3)))
            .or_default()
            .insert(row.get(4), pair);
    }
    Ok(())
}

async fn preferences(sql: &impl Sql, asked: &[Asked], state: &mut State) -> Written {
    let named: BTreeSet<(i32, &str)> = asked
        .iter()
        .filter(|a| a.record.change == Change::Preference)
        .map(|a| (a.record.ws, a.record.user.as_str()))
        .collect();
    if named.is_empty() {
        return Ok(());
    }
    let (workspaces, ids): (Vec<i32>, Vec<&str>) = named.into_iter().unzip();
    let rows = sql
        .rows(
            "SELECT p.workspace_id, p.user_id, p.stream_id, p.channel, p.scope, p.mode, p.changed_at, p.changed_topic,
                    p.changed_offset
             FROM preferences p JOIN unnest($1::int4[], $2::text[]) AS n(ws, id)
               ON p.workspace_id = n.ws AND p.user_id = n.id
             ORDER BY 1, 2, 3, 4, 5 FOR UPDATE OF p",
            &[&workspaces, &ids],
        )
        .await?;
    for row in &rows {
        let set = Preference {
            stamp: stamp(row, "changed_at", "changed_topic", "changed_offset").unwrap_or_default(),
            mode: Mode::of_word(row.get("mode")).unwrap_or(Mode::Off),
            changed: false,
        };
        state.preferences.insert(
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)),
            set,
        );
    }
    Ok(())
}

/// Writes what a batch has changed.
///
/// # Errors
/// The store's. An address or account that another transaction took in the same moment is no fault of the record's: the batch
/// runs again, and sees it.
pub async fn write(session: &Session, draft: &Draft) -> Result<(), Failure> {
    let written = async {
        write_state(session, &draft.state, "directory").await?;
        write_rejects(session, &draft.rejects).await
    };
    written.await.map_err(|error| {
        let constraint = error.as_db_error().and_then(|db| db.constraint());
        match constraint.filter(|c| matches!(*c, "users_email" | "links_live")) {
            Some(taken) => Failure::RolledBack(format!("`{taken}` was taken in the same moment")),
            None => error.into(),
        }
    })
}

/// Writes what has changed of the state.
///
/// # Errors
/// The store's.
pub async fn write_state(sql: &impl Sql, state: &State, by: &str) -> Written {
    write_users(sql, &state.users, by).await?;
    write_logins(sql, &state.users).await?;
    write_links(sql, &state.accounts, by).await?;
    write_preferences(sql, &state.preferences, by).await
}

type Written = Result<(), Error>;

async fn write_users(sql: &impl Sql, users: &BTreeMap<UserKey, User>, by: &str) -> Written {
    let said: Vec<_> = users
        .iter()
        .filter_map(|(key, user)| Some((key, user, user.said.as_ref()?)))
        .collect();
    if said.is_empty() {
        return Ok(());
    }
    let (workspaces, ids): (Vec<i32>, Vec<&str>) = said
        .iter()
        .filter(|(_, user, _)| user.gives_up)
        .map(|((ws, id), _, _)| (*ws, id.as_str()))
        .unzip();
    if !ids.is_empty() {
        // First all are free, so that two may change theirs for each other's.
        sql.run(
            "UPDATE users u SET email = NULL FROM unnest($1::int4[], $2::text[]) AS n(ws, id)
                 WHERE u.workspace_id = n.ws AND u.user_id = n.id",
            &[&workspaces, &ids],
        )
        .await?;
    }
    let workspaces: Vec<i32> = said.iter().map(|((ws, _), _, _)| *ws).collect();
    let ids: Vec<&str> = said.iter().map(|((_, id), _, _)| id.as_str()).collect();
    let names: Vec<Option<&str>> = said.iter().map(|(_, _, f)| f.name.as_deref()).collect();
    let emails: Vec<Option<&str>> = said.iter().map(|(_, _, f)| f.email.as_deref()).collect();
    let verified: Vec<bool> = said.iter().map(|(_, _, f)| f.email_verified).collect();
    let statuses: Vec<&str> = said.iter().map(|(_, _, f)| f.status.name()).collect();
    let roles: Vec<&str> = said.iter().map(|(_, _, f)| f.role.name()).collect();
    let zones: Vec<Option<&str>> = said.iter().map(|(_, _, f)| f.zone.as_deref()).collect();
    let at: Vec<Tz> = said.iter().map(|(_, u, _)| Tz(u.stamp.at)).collect();
    let topics: Vec<i32> = said.iter().map(|(_, u, _)| u.stamp.topic).collect();
    let offsets: Vec<i64> = said.iter().map(|(_, u, _)| u.stamp.offset).collect();
    sql
        .run(
            "INSERT INTO users (workspace_id, user_id, name, email, email_verified, status, role, zone, changed_at, changed_topic,
                    changed_offset, updated_by)
             SELECT *, $12::text FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::bool[], $6::text[], $7::text[],
                    $8::text[], $9::timestamptz[], $10::int4[], $11::int8[])
             ON CONFLICT (workspace_id, user_id) DO UPDATE SET name = excluded.name, email = excluded.email,
                    email_verified = excluded.email_verified, status = excluded.status, role = excluded.role,
                    zone = excluded.zone, changed_at = excluded.changed_at, changed_topic = excluded.changed_topic,
                    changed_offset = excluded.changed_offset, version = users.version + 1, updated_at = now(),
                    updated_by = excluded.updated_by
             WHERE (users.changed_at, users.changed_topic, users.changed_offset)
                   < (excluded.changed_at, excluded.changed_topic, excluded.changed_offset)",
            &[
                &workspaces, &ids, &names, &emails, &verified, &statuses, &roles, &zones, &at, &topics, &offsets, &by,
            ],
        )
        .await?;
    Ok(())
}

async fn write_logins(sql: &impl Sql, users: &BTreeMap<UserKey, User>) -> Written {
    let (mut workspaces, mut ids, mut at) = (Vec::new(), Vec::new(), Vec::new());
    for ((ws, id), user) in users.iter().filter(|(_, u)| u.logged_in) {
        if let Some(last) = user.last_login {
            workspaces.push(*ws);
            ids.push(id.as_str());
            at.push(Tz(last));
        }
    }
    if ids.is_empty() {
        return Ok(());
    }
    sql.run(
        "UPDATE users u SET last_login = greatest(u.last_login, n.at)
             FROM unnest($1::int4[], $2::text[], $3::timestamptz[]) AS n(ws, id, at)
             WHERE u.workspace_id = n.ws AND u.user_id = n.id",
        &[&workspaces, &ids, &at],
    )
    .await?;
    Ok(())
}

async fn write_links(
    sql: &impl Sql,
    accounts: &BTreeMap<AccountKey, BTreeMap<String, Pair>>,
    by: &str,
) -> Written {
    let changed: Vec<(&AccountKey, &str, &Pair)> = accounts
        .iter()
        .flat_map(|(account, pairs)| {
            pairs
                .iter()
                .map(move |(user, pair)| (account, user.as_str(), pair))
        })
        .filter(|(_, _, pair)| pair.changed)
        .collect();
    // Those that no longer are anybody's come first, so that no account is ever two users'.
    for live in [false, true] {
        let rows: Vec<_> = changed.iter().filter(|(_, _, p)| p.live == live).collect();
        if rows.is_empty() {
            continue;
        }
        let workspaces: Vec<i32> = rows.iter().map(|(a, _, _)| a.0).collect();
        let modules: Vec<&str> = rows.iter().map(|(a, _, _)| a.1.as_str()).collect();
        let shards: Vec<&str> = rows.iter().map(|(a, _, _)| a.2.as_str()).collect();
        let ids: Vec<&str> = rows.iter().map(|(a, _, _)| a.3.as_str()).collect();
        let users: Vec<&str> = rows.iter().map(|(_, user, _)| *user).collect();
        let links: Vec<String> = rows
            .iter()
            .map(|(a, user, _)| link_id(a.0, &a.1, &a.2, &a.3, user))
            .collect();
        let (linked_at, linked_topics, linked_offsets) =
            columns(rows.iter().map(|(_, _, p)| p.linked));
        let (unlinked_at, unlinked_topics, unlinked_offsets) =
            columns(rows.iter().map(|(_, _, p)| p.unlinked));
        sql
        .run(
                "INSERT INTO links (workspace_id, module, shard, account, user_id, link_id, linked_at, linked_topic, linked_offset,
                        unlinked_at, unlinked_topic, unlinked_offset, live, updated_by)
                 SELECT *, $13::bool, $14::text FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                        $7::timestamptz[], $8::int4[], $9::int8[], $10::timestamptz[], $11::int4[], $12::int8[])
                 ON CONFLICT (workspace_id, module, shard, account, user_id) DO UPDATE SET linked_at = excluded.linked_at,
                        linked_topic = excluded.linked_topic, linked_offset = excluded.linked_offset,
                        unlinked_at = excluded.unlinked_at, unlinked_topic = excluded.unlinked_topic,
                        unlinked_offset = excluded.unlinked_offset, live = excluded.live, updated_at = now(),
                        updated_by = excluded.updated_by",
                &[
                    &workspaces, &modules, &shards, &ids, &users, &links, &linked_at, &linked_topics, &linked_offsets,
                    &unlinked_at, &unlinked_topics, &unlinked_offsets, &live, &by,
                ],
            )
            .await?;
    }
    Ok(())
}

type Columns = (Vec<Option<Tz>>, Vec<i32>, Vec<i64>);

fn columns(stamps: impl Iterator<Item = Option<Stamp>>) -> Columns {
    let mut all = Columns::default();
    for stamp in stamps {
        all.0.push(stamp.map(|s| Tz(s.at)));
        all.1.push(stamp.map_or(0, |s| s.topic));
        all.2.push(stamp.map_or(0, |s| s.offset));
    }
    all
}

async fn write_preferences(
    sql: &impl Sql,
    preferences: &BTreeMap<PreferenceKey, Preference>,
    by: &str,
) -> Written {
    let rows: Vec<_> = preferences.iter().filter(|(_, p)| p.changed).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let workspaces: Vec<i32> = rows.iter().map(|(k, _)| k.0).collect();
    let users: Vec<&str> = rows.iter().map(|(k, _)| k.1.as_str()).collect();
    let streams: Vec<&str> = rows.iter().map(|(k, _)| k.2.as_str()).collect();
    let channels: Vec<&str> = rows.iter().map(|(k, _)| k.3.as_str()).collect();
    let scopes: Vec<&str> = rows.iter().map(|(k, _)| k.4.as_str()).collect();
    let modes: Vec<&str> = rows.iter().map(|(_, p)| p.mode.word()).collect();
    let (at, topics, offsets) = columns(rows.iter().map(|(_, p)| Some(p.stamp)));
    sql
        .run(
            "INSERT INTO preferences (workspace_id, user_id, stream_id, channel, scope, mode, changed_at, changed_topic,
                    changed_offset, updated_by)
             SELECT *, $10::text FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                    $7::timestamptz[], $8::int4[], $9::int8[])
             ON CONFLICT (workspace_id, user_id, stream_id, channel, scope) DO UPDATE SET mode = excluded.mode,
                    changed_at = excluded.changed_at, changed_topic = excluded.changed_topic,
                    changed_offset = excluded.changed_offset, updated_by = excluded.updated_by
             WHERE (preferences.changed_at, preferences.changed_topic, preferences.changed_offset)
                   < (excluded.changed_at, excluded.changed_topic, excluded.changed_offset)",
            &[&workspaces, &users, &streams, &channels, &scopes, &modes, &at, &topics, &offsets, &by],
        )
        .await?;
    Ok(())
}

async fn write_rejects(sql: &impl Sql, rejects: &[Reject]) -> Written {
    if rejects.is_empty() {
        return Ok(());
    }
    let mut last: BTreeMap<(i32, &str, &str, &str), (i64, &Reject)> = BTreeMap::new();
    for r in rejects {
        let held = last
            .entry((r.ws, &r.user, r.change, r.reason))
            .or_insert((0, r));
        *held = (held.0 + 1, r);
    }
    let workspaces: Vec<i32> = last.keys().map(|k| k.0).collect();
    let users: Vec<&str> = last.keys().map(|k| k.1).collect();
    let changes: Vec<&str> = last.keys().map(|k| k.2).collect();
    let reasons: Vec<&str> = last.keys().map(|k| k.3).collect();
    let counts: Vec<i64> = last.values().map(|(n, _)| *n).collect();
    let at: Vec<Tz> = last.values().map(|(_, r)| Tz(r.at)).collect();
    let ids: Vec<Uuid> = last.values().map(|(_, r)| r.id.to_uuid()).collect();
    sql
        .run(
            "INSERT INTO directory_rejects (workspace_id, user_id, change, reason, n, last_at, record_id)
             SELECT * FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::int8[], $6::timestamptz[], $7::uuid[])
             ON CONFLICT (workspace_id, user_id, change, reason) DO UPDATE SET n = directory_rejects.n + excluded.n,
                    last_at = excluded.last_at, record_id = excluded.record_id",
            &[&workspaces, &users, &changes, &reasons, &counts, &at, &ids],
        )
        .await?;
    Ok(())
}
