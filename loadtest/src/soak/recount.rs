//! After the run: what was accepted against what stands in the store and what the receivers have.

use super::load::Counts;
use anyhow::ensure;
use millrace_tests::meta_stand_in::MetaStandIn;
use millrace_tests::receivers::CountingReceiver;
use std::sync::atomic::Ordering;

/// Everything accepted was consumed, decided and booked once; everything written was sent once.
pub(super) async fn recount(
    client: &tokio_postgres::Client,
    counts: &Counts,
    hook: &CountingReceiver,
    meta: &MetaStandIn,
) -> anyhow::Result<()> {
    let row = client
        .query_one(
            "SELECT (SELECT sum(consumed)::int8 FROM positions), (SELECT sum(n)::int8 FROM outcomes),
                    (SELECT count(*) FROM conversions), (SELECT count(*) FROM dead_letters),
                    (SELECT coalesce(sum(n), 0)::int8 FROM outcomes WHERE outcome = 0),
                    (SELECT count(*) FROM outbox WHERE channel = 'webhook' AND status = 'sent' AND attempts = 1),
                    (SELECT count(*) FROM outbox WHERE channel = 'meta' AND status = 'sent' AND attempts = 1),
                    (SELECT count(*) FROM outbox)",
            &[],
        )
        .await?;
    let n = |i: usize| u64::try_from(row.get::<_, i64>(i)).unwrap_or(0);
    let [
        consumed,
        outcomes,
        conversions,
        dead,
        applied,
        webhooks,
        events,
        outbox,
    ] = std::array::from_fn(n);
    let accepted = counts.accepted.load(Ordering::Relaxed);
    let postbacks = counts.postbacks.load(Ordering::Relaxed);
    let told = meta.counts();
    println!(
        "accepted {accepted}, consumed {consumed}, outcomes {outcomes} (applied {applied}), conversions {conversions} of {postbacks} postbacks, dead letters {dead}; outbox {outbox}: webhooks {webhooks} (arrived {}), events {events} (arrived {})",
        hook.requests(),
        told.received
    );
    ensure!(
        accepted == consumed && consumed == outcomes && outcomes == applied && dead == 0,
        "what was accepted was not all applied, once"
    );
    ensure!(
        conversions == postbacks,
        "not every postback is one conversion"
    );
    if outbox != webhooks + events {
        let ends = client
            .query(
                "SELECT channel, status, coalesce(status_reason, ''), count(*) FROM outbox GROUP BY 1, 2, 3",
                &[],
            )
            .await?;
        for row in &ends {
            let (channel, status, reason): (&str, &str, &str) =
                (row.get(0), row.get(1), row.get(2));
            println!("{channel}: {status} {reason}: {}", row.get::<_, i64>(3));
        }
    }
    ensure!(
        outbox == webhooks + events && webhooks == hook.requests() && events == told.received,
        "not every message was sent once and arrived once"
    );
    ensure!(told.duplicates == 0, "Meta has seen an event twice");
    Ok(())
}
