//! How far feeds are, in the store: set-wise, once a second and at each hello.

use super::live::{Key, Standing};
use crate::postgres::Pool;
use hashbrown::HashSet;

/// Why it could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum StandingError {
    /// No connection.
    #[error("no connection to PostgreSQL: {0}")]
    Pool(#[from] deadpool_postgres::PoolError),
    /// A statement failed.
    #[error("PostgreSQL: {0}")]
    Store(#[from] tokio_postgres::Error),
}

fn number(seq: u64) -> i64 {
    // Greater ones are refused at the door.
    i64::try_from(seq).unwrap_or(i64::MAX)
}

/// Numbers a feed and reads where the one before it ended: answers the number, and the sequence if the boot is the same.
pub(super) async fn claim(
    pool: &Pool,
    key: &Key,
    boot: &str,
    seq: u64,
) -> Result<(i64, u64), StandingError> {
    let client = pool.get().await?;
    let statement = client
        .prepare_cached(
            "INSERT INTO shard_feeds AS f (workspace_id, shard_id, session, boot, seq, connected) VALUES ($1, $2, 1, $3, $4, true)
             ON CONFLICT (workspace_id, shard_id) DO UPDATE SET session = f.session + 1, boot = excluded.boot, connected = true,
                 seq = CASE WHEN f.boot = excluded.boot THEN greatest(f.seq, excluded.seq) ELSE excluded.seq END,
                 updated_at = now()
             RETURNING session, seq",
        )
        .await?;
    let row = client
        .query_one(&statement, &[&key.0, &&*key.1, &boot, &number(seq)])
        .await?;
    Ok((row.get(0), u64::try_from(row.get::<_, i64>(1)).unwrap_or(0)))
}

/// Writes what moved, and the counts; answers the feeds that still hold their shard.
pub(super) async fn write(
    pool: &Pool,
    all: &[(Key, Standing)],
) -> Result<HashSet<(Key, i64)>, StandingError> {
    let mut client = pool.get().await?;
    let tx = client.transaction().await?;
    let mut held = HashSet::new();
    let numbered = |moved: bool| {
        let mut some: Vec<(&Key, i64, &Standing)> = all
            .iter()
            .filter(|(_, s)| s.moved == moved)
            .filter_map(|(k, s)| Some((k, s.session?, s)))
            .collect();
        // One order for all processes, so that none waits for another in a circle.
        some.sort_unstable_by_key(|(k, ..)| *k);
        some
    };
    for (moved, statement) in [(true, MOVE), (false, LOOK)] {
        let some = numbered(moved);
        if some.is_empty() {
            continue;
        }
        let statement = tx.prepare_cached(statement).await?;
        let workspaces: Vec<i32> = some.iter().map(|(k, ..)| k.0).collect();
        let shards: Vec<&str> = some.iter().map(|(k, ..)| &*k.1).collect();
        let sessions: Vec<i64> = some.iter().map(|(_, n, _)| *n).collect();
        let rows = if moved {
            let boots: Vec<&str> = some.iter().map(|(.., s)| s.boot.as_str()).collect();
            let seqs: Vec<i64> = some.iter().map(|(.., s)| number(s.seq)).collect();
            let connected: Vec<bool> = some.iter().map(|(.., s)| s.connected).collect();
            tx.query(
                &statement,
                &[&workspaces, &shards, &sessions, &boots, &seqs, &connected],
            )
            .await?
        } else {
            tx.query(&statement, &[&workspaces, &shards, &sessions])
                .await?
        };
        held.extend(rows.iter().map(|r| {
            let shard: &str = r.get(1);
            ((r.get(0), Box::from(shard)), r.get(2))
        }));
    }
    let mut counts: Vec<(&Key, &str, [i64; 3])> =
        all.iter()
            .flat_map(|(key, s)| {
                s.kinds.0.iter().map(move |(kind, n)| {
                    (key, &**kind, [n.mapped, n.unmapped, n.refused].map(number))
                })
            })
            .collect();
    if !counts.is_empty() {
        counts.sort_unstable();
        // A feed that is over and the one after it may have counted the same kind.
        counts.dedup_by(|later, first| {
            let same = later.0 == first.0 && later.1 == first.1;
            if same {
                for (n, more) in first.2.iter_mut().zip(later.2) {
                    *n += more;
                }
            }
            same
        });
        let statement = tx.prepare_cached(COUNT).await?;
        let column = |at: usize| -> Vec<i64> {
            counts
                .iter()
                .map(|(.., n)| n.get(at).copied().unwrap_or(0))
                .collect()
        };
        let workspaces: Vec<i32> = counts.iter().map(|(k, ..)| k.0).collect();
        let shards: Vec<&str> = counts.iter().map(|(k, ..)| &*k.1).collect();
        let kinds: Vec<&str> = counts.iter().map(|(_, k, _)| *k).collect();
        tx.execute(
            &statement,
            &[
                &workspaces,
                &shards,
                &kinds,
                &column(0),
                &column(1),
                &column(2),
            ],
        )
        .await?;
    }
    tx.commit().await?;
    Ok(held)
}

const MOVE: &str = "
UPDATE shard_feeds f SET boot = u.boot, seq = u.seq, connected = u.connected, updated_at = now()
FROM unnest($1::integer[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::boolean[])
    AS u (workspace_id, shard_id, session, boot, seq, connected)
WHERE f.workspace_id = u.workspace_id AND f.shard_id = u.shard_id AND f.session = u.session
RETURNING f.workspace_id, f.shard_id, f.session";

const LOOK: &str = "
SELECT f.workspace_id, f.shard_id, f.session
FROM shard_feeds f JOIN unnest($1::integer[], $2::text[], $3::bigint[]) AS u (workspace_id, shard_id, session)
    ON f.workspace_id = u.workspace_id AND f.shard_id = u.shard_id AND f.session = u.session";

const COUNT: &str = "
INSERT INTO shard_frames AS s (workspace_id, shard_id, kind, mapped, unmapped, refused)
SELECT u.workspace_id, u.shard_id, CASE WHEN known.kind IS NULL AND held.kinds >= 200 THEN '' ELSE u.kind END,
       sum(u.mapped)::bigint, sum(u.unmapped)::bigint, sum(u.refused)::bigint
FROM unnest($1::integer[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
    AS u (workspace_id, shard_id, kind, mapped, unmapped, refused)
LEFT JOIN shard_frames known ON known.workspace_id = u.workspace_id AND known.shard_id = u.shard_id AND known.kind = u.kind
CROSS JOIN LATERAL (SELECT count(*) AS kinds FROM shard_frames k
    WHERE k.workspace_id = u.workspace_id AND k.shard_id = u.shard_id) AS held
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (workspace_id, shard_id, kind) DO UPDATE SET mapped = s.mapped + excluded.mapped,
    unmapped = s.unmapped + excluded.unmapped, refused = s.refused + excluded.refused, last_at = now()";
