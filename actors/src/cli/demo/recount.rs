//! The recount: what became of every record, from stored facts by plain SQL.
//!
//! No counter of the actors is believed here; they are read too, but only to be held against the recount. What leaves no fact
//! (a repeated visit or click changes nothing) is what remains of the records consumed; the generator's own list says whether
//! that is right.

use super::traffic::Booking;
use anyhow::Context;
use rust_decimal::Decimal;
use std::collections::BTreeMap;
use tokio_postgres::GenericClient;

/// Records of one topic by outcome: applied, duplicate, parked, rejected, dead-lettered.
pub type Counts = [i64; 5];

/// What the store says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recount {
    /// Records of `clicks` that were consumed.
    pub clicks_consumed: i64,
    /// Records of `postbacks` that were consumed.
    pub postbacks_consumed: i64,
    /// Outcomes of `clicks`, from facts; duplicates are what remains.
    pub clicks: Counts,
    /// Outcomes of `postbacks`, from facts.
    pub postbacks: Counts,
    /// Outcomes of both as the actors counted them.
    pub counters: Counts,
    /// Postbacks by the outcome that the postback log gives them.
    pub log: Counts,
    /// Records that appear under more than one outcome. None, if all is well.
    pub twice: i64,
    /// Applied postbacks without a conversion or a change of one, and the reverse.
    pub unbooked: i64,
    /// Records that the log calls parked and that do not wait, and the reverse.
    pub lost_parked: i64,
    /// Postbacks that waited and have ended.
    pub woken_postbacks: i64,
    /// Changes of booked conversions, from their history.
    pub history: i64,
    /// Receipts that the log says moved a status.
    pub moved: i64,
    /// Conversions without an identity, and identities without their conversion.
    pub unclaimed: i64,
    /// Every conversion, sorted.
    pub bookings: Vec<Booking>,
    /// Conversions and approved revenue by campaign, added up by the database.
    pub campaigns: BTreeMap<String, (i64, Decimal)>,
    /// Visits, and clicks charged.
    pub facts: (i64, i64),
}

impl Recount {
    /// Records consumed.
    #[must_use]
    pub fn consumed(&self) -> i64 {
        self.clicks_consumed + self.postbacks_consumed
    }

    /// Outcomes of both topics, from facts.
    #[must_use]
    pub fn outcomes(&self) -> Counts {
        let mut sum = self.clicks;
        for (total, n) in sum.iter_mut().zip(self.postbacks) {
            *total += n;
        }
        sum
    }
}

/// Records of the attribution group that were consumed, by topic.
const CONSUMED: &str = "
SELECT coalesce(sum(p.consumed) FILTER (WHERE t.name = 'clicks'), 0)::bigint,
       coalesce(sum(p.consumed) FILTER (WHERE t.name = 'postbacks'), 0)::bigint
FROM positions p JOIN topics t USING (topic_no)
WHERE p.group_name = 'attribution'";

/// `clicks`: a record is applied if a visit, a click or a provider click was born of it.
const CLICKS: &str = "
WITH applied AS (
    SELECT record_id FROM visits UNION SELECT record_id FROM clicks UNION SELECT record_id FROM provider_clicks
), parked_now AS (
    SELECT record_id FROM parked WHERE kind = 'click'
), rejected AS (
    SELECT DISTINCT record_id FROM rejects
), dead AS (
    SELECT record_id FROM dead_letters d JOIN topics t USING (topic_no) WHERE d.status = 'open' AND t.name = 'clicks'
), every AS (
    SELECT record_id FROM applied UNION ALL SELECT record_id FROM parked_now
    UNION ALL SELECT record_id FROM rejected UNION ALL SELECT record_id FROM dead
)
SELECT (SELECT count(*) FROM applied), (SELECT count(*) FROM parked_now), (SELECT count(*) FROM rejected),
       (SELECT count(*) FROM dead), (SELECT count(*) - count(DISTINCT record_id) FROM every),
       (SELECT count(*) FROM visits), (SELECT count(*) FROM clicks)";

/// `postbacks`: a record is applied if it booked a conversion (whose id it is) or moved a booked one (whose history names it).
/// The log has one row at the receipt and one more at the end of a wait. Outcomes: 0 applied, 1 duplicate, 2 parked, 3 rejected,
/// 4 dead-lettered.
const POSTBACKS: &str = "
WITH receipts AS (
    SELECT record_id,
           count(*) FILTER (WHERE outcome = 2) AS waits,
           count(*) FILTER (WHERE outcome <> 2) AS ends,
           max(outcome) FILTER (WHERE outcome <> 2) AS ended
    FROM postback_log GROUP BY record_id
), applied AS (
    SELECT conversion_id AS record_id FROM conversions UNION ALL SELECT record_id FROM conversion_history
), waiting AS (
    SELECT record_id FROM parked WHERE kind = 'postback'
), dead AS (
    SELECT record_id FROM dead_letters d JOIN topics t USING (topic_no) WHERE d.status = 'open' AND t.name = 'postbacks'
), lasting AS (
    SELECT record_id FROM applied UNION ALL SELECT record_id FROM receipts WHERE ended IN (1, 3)
    UNION ALL SELECT record_id FROM waiting UNION ALL SELECT record_id FROM dead
)
SELECT (SELECT count(*) FROM applied),
       (SELECT count(*) FROM receipts WHERE ended = 1),
       (SELECT count(*) FROM waiting),
       (SELECT count(*) FROM receipts WHERE ended = 3),
       (SELECT count(*) FROM dead),
       (SELECT count(*) FROM receipts WHERE ended = 0),
       (SELECT count(*) FROM receipts WHERE ends = 0),
       (SELECT count(*) FROM receipts WHERE ended = 4),
       (SELECT count(*) - count(DISTINCT record_id) FROM lasting)
           + (SELECT count(*) FROM receipts WHERE ends > 1 OR waits > 1),
       (SELECT count(*) FROM (SELECT record_id FROM receipts WHERE ended = 0) r
            FULL JOIN applied a USING (record_id)
            WHERE r.record_id IS NULL OR a.record_id IS NULL),
       (SELECT count(*) FROM (SELECT record_id FROM receipts WHERE ends = 0) r
            FULL JOIN waiting w USING (record_id)
            WHERE r.record_id IS NULL OR w.record_id IS NULL),
       (SELECT count(*) FROM receipts WHERE waits > 0 AND ends > 0),
       (SELECT count(*) FROM conversion_history),
       (SELECT count(*) FROM postback_log WHERE outcome = 0 AND reason = 'status_changed'),
       (SELECT count(*) FROM conversions c
            WHERE NOT EXISTS (SELECT 1 FROM conversion_keys k WHERE k.conversion_id = c.conversion_id))
           + (SELECT count(*) FROM conversion_keys k
            WHERE NOT EXISTS (SELECT 1 FROM conversions c WHERE c.conversion_id = k.conversion_id))";

/// What the actors counted, to be held against the recount.
const COUNTERS: &str = "
SELECT outcome::integer, coalesce(sum(n), 0)::bigint FROM outcomes WHERE group_name = 'attribution' GROUP BY outcome";

const BOOKINGS: &str = "
SELECT coalesce(txid, external_id, ''), campaign_id, payout, status, role FROM conversions";

const CAMPAIGNS: &str = "
SELECT campaign_id, count(*), coalesce(sum(payout) FILTER (WHERE status = 'approved'), 0)
FROM conversions GROUP BY campaign_id";

/// Reads everything in one snapshot.
///
/// # Errors
/// The store failed.
pub async fn recount(client: &mut tokio_postgres::Client) -> anyhow::Result<Recount> {
    let snapshot = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await
        .context("the recount's transaction")?;
    let found = read(&snapshot).await.context("the recount")?;
    snapshot.commit().await.context("the recount")?;
    Ok(found)
}

/// How many records were consumed; cheap, to wait for the last one.
///
/// # Errors
/// The store failed.
pub async fn consumed(client: &impl GenericClient) -> Result<i64, tokio_postgres::Error> {
    let row = client.query_one(CONSUMED, &[]).await?;
    Ok(row.try_get::<_, i64>(0)? + row.try_get::<_, i64>(1)?)
}

async fn read(client: &impl GenericClient) -> Result<Recount, tokio_postgres::Error> {
    let row = client.query_one(CONSUMED, &[]).await?;
    let (clicks_consumed, postbacks_consumed): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);

    let row = client.query_one(CLICKS, &[]).await?;
    let of = |i: usize| row.try_get::<_, i64>(i);
    let (applied, parked, rejected, dead) = (of(0)?, of(1)?, of(2)?, of(3)?);
    let rest = clicks_consumed - applied - parked - rejected - dead;
    let clicks = [applied, rest, parked, rejected, dead];
    let (twice, facts) = (of(4)?, (of(5)?, of(6)?));

    let row = client.query_one(POSTBACKS, &[]).await?;
    let of = |i: usize| row.try_get::<_, i64>(i);
    let postbacks = [of(0)?, of(1)?, of(2)?, of(3)?, of(4)?];
    let log = [of(5)?, of(1)?, of(6)?, of(3)?, of(7)?];

    let mut counters = [0; 5];
    for row in client.query(COUNTERS, &[]).await? {
        let place = usize::try_from(row.try_get::<_, i32>(0)?).unwrap_or(usize::MAX);
        if let Some(n) = counters.get_mut(place) {
            *n = row.try_get(1)?;
        }
    }

    let mut bookings = Vec::new();
    for row in client.query(BOOKINGS, &[]).await? {
        bookings.push(Booking {
            txid: row.try_get(0)?,
            campaign: row.try_get(1)?,
            payout: row.try_get::<_, Decimal>(2)?.normalize(),
            status: row.try_get(3)?,
            role: row.try_get(4)?,
        });
    }
    bookings.sort();
    let mut campaigns = BTreeMap::new();
    for row in client.query(CAMPAIGNS, &[]).await? {
        let revenue = row.try_get::<_, Decimal>(2)?.normalize();
        campaigns.insert(row.try_get(0)?, (row.try_get(1)?, revenue));
    }
    Ok(Recount {
        clicks_consumed,
        postbacks_consumed,
        clicks,
        postbacks,
        counters,
        log,
        twice: twice + of(8)?,
        unbooked: of(9)?,
        lost_parked: of(10)?,
        woken_postbacks: of(11)?,
        history: of(12)?,
        moved: of(13)?,
        unclaimed: of(14)?,
        bookings,
        campaigns,
        facts,
    })
}
