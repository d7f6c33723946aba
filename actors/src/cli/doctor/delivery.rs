//! What leaves: sealed secrets that do not open, what is paused or held, what is overdue.

use super::Findings;
use crate::delivery::holds::{self, BY_HAND, EVERYTHING, Place};
use crate::runtime::clock;
use crate::sealing::{Seals, Under, stored};
use millrace_schemas::time::Micros;
use std::collections::HashMap;
use tokio_postgres::Client;

/// Destinations that are named one by one at most.
const NAMED: usize = 20;
/// A message that is due for so long is overdue: no schedule and no breaker lets one wait past its moment.
const OVERDUE_S: i64 = 3_600;

/// Every sealed secret that is in use must open, and none should need the old key for long.
pub(super) async fn seals(
    client: &Client,
    seals: &Seals,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    const WHAT: &str = "secrets";
    let stored = stored::all(client).await?;
    let (mut shut, mut old, mut used) = (Vec::new(), 0_usize, 0_usize);
    for secret in &stored {
        used += usize::from(secret.used);
        match secret.under(seals) {
            Ok(Under::Old) => old += 1,
            Ok(_) => {}
            Err(why) if secret.used => shut.push(format!("{} ({why})", secret.name())),
            Err(_) => {}
        }
    }
    if !shut.is_empty() {
        let (n, more) = (shut.len(), shut.len().saturating_sub(NAMED));
        shut.truncate(NAMED);
        if more > 0 {
            shut.push(format!("{more} more"));
        }
        findings.fail(
            WHAT,
            format!("{n} of {used} do not open: {}", shut.join(", ")),
            "give the key they were sealed with as MILLRACE_SECRET_KEY, or as MILLRACE_SECRET_KEY_OLD beside the new one; or \
             enter them anew: rotate the secrets of networks and webhooks, `POST /v1/pixels/<id>/credentials` for pixels. What \
             waits for them is kept meanwhile",
        );
    } else if old > 0 {
        findings.warn(
            WHAT,
            format!("{old} of {} are sealed under MILLRACE_SECRET_KEY_OLD", stored.len()),
            "once every process has the new MILLRACE_SECRET_KEY, `millrace secrets reseal` seals them under it",
        );
    } else if seals.has_old() {
        findings.warn(
            WHAT,
            format!("{} sealed, all open under the current key", stored.len()),
            "MILLRACE_SECRET_KEY_OLD is needed no more: take it out of every process's environment",
        );
    } else {
        findings.ok(WHAT, format!("{used} sealed, all open"));
    }
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
        ("no_public_url", _) => {
            "set `http.public_url` and start the delivery anew: it then goes on by itself".to_owned()
        }
        ("smtp_credentials" | "smtp_sender", _) => format!(
            "mend the mail transport, whose change lets it go on by itself, or its account at the provider, then \
             `millrace outbox resume {reference}`"
        ),
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
