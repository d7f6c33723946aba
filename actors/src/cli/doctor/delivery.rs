//! What leaves: sealed secrets that do not open, what is paused or held, what is overdue.

use super::Findings;
use crate::delivery::holds::{self, BY_HAND, EVERYTHING, Place};
use crate::runtime::clock;
use crate::sealing::Seals;
use millrace_schemas::time::Micros;
use std::collections::HashMap;
use tokio_postgres::Client;

/// Destinations that are named one by one at most.
const NAMED: usize = 20;
/// A message that is due for so long is overdue: no schedule and no breaker lets one wait past its moment.
const OVERDUE_S: i64 = 3_600;

/// Every sealed secret, with the purpose that its seal is bound to.
const SEALED: &str = "
SELECT network_id || ' secret', 'network-secret:' || network_id, secret_sealed FROM networks WHERE secret_sealed IS NOT NULL
UNION ALL
SELECT pixel_id || ' access token', 'pixel-access-token:' || pixel_id, access_token_sealed FROM pixels
WHERE access_token_sealed IS NOT NULL AND status = 'active'
UNION ALL
SELECT pixel_id || ' app secret', 'pixel-app-secret:' || pixel_id, app_secret_sealed FROM pixels
WHERE app_secret_sealed IS NOT NULL AND status = 'active'
UNION ALL
SELECT webhook_id || ' secret', 'webhook-secret:' || webhook_id, secret_sealed FROM webhooks
WHERE secret_sealed IS NOT NULL AND status <> 'archived'
UNION ALL
SELECT webhook_id || ' previous secret', 'webhook-secret:' || webhook_id, previous_secret_sealed FROM webhooks
WHERE previous_secret_sealed IS NOT NULL AND previous_until > now() AND status <> 'archived'
ORDER BY 1";

/// Every sealed secret must open.
pub(super) async fn seals(
    client: &Client,
    seals: &Seals,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    const WHAT: &str = "secrets";
    let rows = client.query(SEALED, &[]).await?;
    let mut shut = Vec::new();
    for r in &rows {
        let (name, purpose, blob): (String, String, Vec<u8>) = (r.get(0), r.get(1), r.get(2));
        if let Err(why) = seals.open(&purpose, &blob) {
            shut.push(format!("{name} ({why})"));
        }
    }
    if shut.is_empty() {
        findings.ok(WHAT, format!("{} sealed, all open", rows.len()));
        return Ok(());
    }
    let (n, more) = (shut.len(), shut.len().saturating_sub(NAMED));
    shut.truncate(NAMED);
    if more > 0 {
        shut.push(format!("{more} more"));
    }
    findings.fail(
        WHAT,
        format!("{n} of {} do not open: {}", rows.len(), shut.join(", ")),
        "give the key they were sealed with as MILLRACE_SECRET_KEY, or as MILLRACE_SECRET_KEY_OLD beside the new one; or enter \
         them anew: rotate the secrets of networks and webhooks, `POST /v1/pixels/<id>/credentials` for pixels. What waits for \
         them is kept meanwhile",
    );
    Ok(())
}

pub(super) async fn look(client: &Client, findings: &mut Findings) -> anyhow::Result<()> {
    const WHAT: &str = "outbox";
    let found = findings.len();
    held(client, findings).await?;
    let sql = format!(
        "SELECT {} FROM {} WHERE coalesce(status, 'active') <> 'archived' ORDER BY destination_no",
        holds::COLUMNS,
        holds::FROM
    );
    let places = client
        .query(&sql, &[])
        .await?
        .iter()
        .map(Place::read)
        .collect::<Result<Vec<_>, _>>()?;
    let numbers: Vec<i32> = places.iter().map(|p| p.no).collect();
    // One message is enough to know that something waits.
    let waiting: HashMap<i32, Micros> = holds::waiting(client, &numbers, 1)
        .await?
        .into_iter()
        .filter_map(|(no, _, oldest)| Some((no, oldest?)))
        .collect();
    paused(&places, &waiting, findings);
    overdue(&places, &waiting, findings);
    if findings.len() == found {
        findings.ok(
            WHAT,
            format!(
                "{} destinations, none is paused, nothing is overdue",
                places.len()
            ),
        );
    }
    Ok(())
}

async fn held(client: &Client, findings: &mut Findings) -> anyhow::Result<()> {
    let rows = client
        .query(
            "SELECT channel, reason, paused_by FROM paused_channels ORDER BY channel",
            &[],
        )
        .await?;
    for r in &rows {
        let (channel, reason, by): (String, String, String) = (r.get(0), r.get(1), r.get(2));
        if channel == EVERYTHING {
            findings.warn(
                "outbox",
                format!("everything is held by {by}: {reason}"),
                "look at `millrace outbox list --status scheduled`, cancel what must not go out again, then `millrace outbox \
                 release --all-held`",
            );
        } else {
            findings.warn(
                "outbox",
                format!("channel `{channel}` is held by {by}: {reason}"),
                &format!("`millrace outbox resume --channel {channel}` goes on"),
            );
        }
    }
    Ok(())
}

fn paused(places: &[Place], waiting: &HashMap<i32, Micros>, findings: &mut Findings) {
    let paused: Vec<_> = places
        .iter()
        .filter_map(|p| Some((p, p.pause.as_ref()?)))
        .collect();
    for (place, pause) in paused.iter().take(NAMED) {
        let reference = &place.reference;
        let says = format!(
            "{reference} ({}) is paused since {} by {}: {}: {}{}",
            place.channel,
            pause.at.rfc3339(),
            pause.by,
            pause.code,
            pause.reason,
            match waiting.contains_key(&place.no) {
                true => "; messages wait",
                false => "",
            }
        );
        let advice = advice(place, &pause.code);
        // What a person did is no fault, and what keeps nothing waiting does not hurt yet.
        match pause.code != BY_HAND && waiting.contains_key(&place.no) {
            true => findings.fail("destinations", says, &advice),
            false => findings.warn("destinations", says, &advice),
        }
    }
    if paused.len() > NAMED {
        findings.warn(
            "destinations",
            format!("{} more are paused", paused.len() - NAMED),
            "`millrace outbox destinations --paused` shows them all",
        );
    }
}

fn advice(place: &Place, code: &str) -> String {
    let reference = &place.reference;
    match (code, place.channel.as_str()) {
        (BY_HAND, _) => format!("`millrace outbox resume {reference}` goes on"),
        ("secret_unreadable", _) => {
            "give the key of its secret back (see `secrets`), or enter the secret anew; it then goes on by itself".to_owned()
        }
        (_, "meta") => format!(
            "look at the pixel and its token at the platform, then `POST /v1/pixels/{reference}/credentials` with a token that \
             may write to the dataset: it goes on by itself; or `millrace outbox resume {reference}` once the platform lets it"
        ),
        _ => format!("mend the cause, then `millrace outbox resume {reference}`"),
    }
}

fn overdue(places: &[Place], waiting: &HashMap<i32, Micros>, findings: &mut Findings) {
    let before = clock::from_environment().wall().plus_secs(-OVERDUE_S);
    let late: Vec<_> = places
        .iter()
        .filter(|p| p.pause.is_none() && p.channel_pause.is_none())
        .filter_map(|p| Some((p, *waiting.get(&p.no)?)))
        .filter(|(_, oldest)| *oldest < before)
        .collect();
    let Some((place, oldest)) = late.iter().min_by_key(|(_, oldest)| *oldest) else {
        return;
    };
    findings.fail(
        "outbox",
        format!(
            "messages are overdue for {} destinations; the oldest, for {} ({}), is due since {}",
            late.len(),
            place.reference,
            place.channel,
            oldest.rfc3339()
        ),
        "does a process with the role `delivery` run (`millrace up`, `millrace run --roles delivery`), and what does its log say? \
         `millrace outbox destinations` shows what waits for whom",
    );
}
