//! The SQL of letters.

use crate::runtime::session::{Failure, Session};
use crate::thresholds::draft::Draft;
use crate::thresholds::slice::{Shard, ShardKey};
use hashbrown::HashMap;
use millrace_schemas::ids::RecordId;
use uuid::Uuid;

/// Loads the open letters of shards. Of a retired topic there are none: by the order of the live one's log they have no place, and
/// their key may have been another partition's meanwhile.
pub(super) async fn load(
    session: &Session,
    partition: i32,
    (workspaces, shards): (&[i32], &[&str]),
    found: &mut HashMap<ShardKey, Shard>,
) -> Result<(), Failure> {
    let rows = session
        .query(
            "SELECT l.workspace, l.shard, l.key, l.record_id, l.overtaken
             FROM unnest($2::int4[], $3::text[]) AS k(workspace, shard)
             JOIN frame_letters l ON l.partition = $1 AND l.workspace = k.workspace AND l.shard = k.shard
             JOIN dead_letters d ON d.record_id = l.record_id AND d.status = 'open'
             JOIN topics t ON t.topic_no = d.topic_no AND t.retired_at IS NULL",
            &[&partition, &workspaces, &shards],
        )
        .await?;
    for row in &rows {
        let shard = found
            .entry(ShardKey {
                workspace: row.get(0),
                shard: row.get::<_, &str>(1).into(),
            })
            .or_default();
        let overtaken = shard.doubted || row.get::<_, bool>(4);
        let id = RecordId::from_uuid(row.get(3));
        shard.letters.put(row.get(2), id, overtaken);
    }
    Ok(())
}

/// Writes what became of letters: what was doubted is overtaken before anything new is put beside it, and what is new is there
/// before it is overtaken or forgotten.
pub(super) async fn write(session: &Session, partition: i32, draft: &Draft) -> Result<(), Failure> {
    doubt(session, partition, draft).await?;
    bury(session, partition, draft).await?;
    let ids = |all: &[RecordId]| -> Vec<Uuid> { all.iter().map(|id| id.to_uuid()).collect() };
    if !draft.letters.overtaken.is_empty() {
        let overtaken = ids(&draft.letters.overtaken);
        session
            .execute(
                "UPDATE frame_letters SET overtaken = true WHERE record_id = ANY($1)",
                &[&overtaken],
            )
            .await?;
    }
    if !draft.letters.gone.is_empty() {
        let gone = ids(&draft.letters.gone);
        session
            .execute(
                "DELETE FROM frame_letters WHERE record_id = ANY($1)",
                &[&gone],
            )
            .await?;
    }
    Ok(())
}

async fn doubt(session: &Session, partition: i32, draft: &Draft) -> Result<(), Failure> {
    let doubted = draft.shards.iter().filter(|(_, shard)| shard.doubted);
    let (workspaces, shards): (Vec<i32>, Vec<&str>) =
        doubted.map(|(key, _)| (key.workspace, &*key.shard)).unzip();
    if shards.is_empty() {
        return Ok(());
    }
    session
        .execute(
            "UPDATE frame_letters l SET overtaken = true FROM unnest($2::int4[], $3::text[]) AS k(workspace, shard)
             WHERE l.partition = $1 AND l.workspace = k.workspace AND l.shard = k.shard AND NOT l.overtaken",
            &[&partition, &workspaces, &shards],
        )
        .await?;
    Ok(())
}

/// A letter that is there already was not watched while its dead letter was not open.
async fn bury(session: &Session, partition: i32, draft: &Draft) -> Result<(), Failure> {
    let buried = &draft.letters.buried;
    if buried.is_empty() {
        return Ok(());
    }
    let (mut ids, mut workspaces) = (Vec::new(), Vec::new());
    let (mut shards, mut keys) = (Vec::new(), Vec::new());
    for letter in buried {
        ids.push(letter.id.to_uuid());
        workspaces.push(letter.shard.workspace);
        shards.push(&*letter.shard.shard);
        keys.push(&*letter.key);
    }
    session
        .execute(
            "INSERT INTO frame_letters (record_id, partition, workspace, shard, key)
             SELECT k.id, $1::int4, k.workspace, k.shard, k.key
             FROM unnest($2::uuid[], $3::int4[], $4::text[], $5::text[]) AS k(id, workspace, shard, key)
             ON CONFLICT (record_id) DO UPDATE SET overtaken = true",
            &[&partition, &ids, &workspaces, &shards, &keys],
        )
        .await?;
    Ok(())
}
