//! The records' texts: wire JSON of 300 to 800 bytes, details by chance.

use super::VisitFacts;
use fastrand::Rng;
use std::fmt::Write;
use uuid::Uuid;

const AGENTS: [&str; 5] = [
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.1 Mobile/15E148 Safari/604.1",
    "Mozilla/5.0 (Linux; Android 14; SM-S921B) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Mobile Safari/537.36",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.1 Safari/605.1.15",
    "Mozilla/5.0 (X11; Linux x86_64; rv:133.0) Gecko/20100101 Firefox/133.0",
];

fn agent(rng: &mut Rng) -> &'static str {
    AGENTS
        .get(rng.usize(0..AGENTS.len()))
        .copied()
        .unwrap_or("")
}

/// A visit as a door writes it, with the journey that was served.
pub(super) fn visit(
    out: &mut String,
    facts: &VisitFacts,
    click_id: &str,
    accepted: i64,
    rng: &mut Rng,
) -> std::fmt::Result {
    let (campaign, cents) = (facts.campaign_id(), facts.default_cents());
    write!(
        out,
        r#"{{"v":1,"kind":"visit","workspace":{},"click_id":"{click_id}","accepted_at":{accepted},"visit_id":"{}","campaign":"{campaign}","stage":0,"journey":{{"offer":{{"id":"{}","network":"{nw}","payout":"{}.{:02}","currency":"USD"}},"sidecar_offers":[{{"offer":"{}","network":"{nw}","network_offer_id":"{:05}"}}]}}"#,
        facts.workspace(),
        facts.visit_id(),
        facts.offer_id(),
        cents / 100,
        cents % 100,
        facts.sidecar_id(),
        facts.campaign(),
        nw = facts.network_id(),
    )?;
    match rng.u8(0..4) {
        0 => write!(
            out,
            r#","params":{{"gclid":"Cj0KCQ{:016x}{:08x}"}}"#,
            rng.u64(..),
            rng.u32(..)
        )?,
        1 => write!(
            out,
            r#","params":{{"fbclid":"IwZXh0bgNhZW0{:016x}","utm_source":"fb","utm_campaign":"{campaign}"}}"#,
            rng.u64(..)
        )?,
        2 => write!(
            out,
            r#","params":{{"ttclid":"E.C.P.{:016x}","sub1":"{}"}}"#,
            rng.u64(..),
            rng.u16(..)
        )?,
        _ => {}
    }
    write!(
        out,
        r#","ip_hash":"{}","user_agent":"{}""#,
        Uuid::from_u128(rng.u128(..)),
        agent(rng)
    )?;
    if rng.bool() {
        write!(
            out,
            r#","source_url":"https://land.example/{campaign}/{}""#,
            rng.u16(..)
        )?;
    }
    out.push('}');
    Ok(())
}

/// A call to action that was clicked.
pub(super) fn click(
    out: &mut String,
    facts: &VisitFacts,
    click_id: &str,
    accepted: i64,
    rng: &mut Rng,
) -> std::fmt::Result {
    write!(
        out,
        r#"{{"v":1,"kind":"click","workspace":{},"click_id":"{click_id}","accepted_at":{accepted},"campaign":"{}","stage":0,"ip_hash":"{}","user_agent":"{}","source_url":"https://land.example/{}/offer/{:08}"}}"#,
        facts.workspace(),
        facts.campaign_id(),
        Uuid::from_u128(rng.u128(..)),
        agent(rng),
        facts.campaign_id(),
        rng.u32(0..100_000_000),
    )
}

/// A network's postback: a transaction, its payout and status, and what networks send beside. The cents that it
/// books, unless it books the served offer's default: a sidecar offer has none.
pub(super) fn postback(
    out: &mut String,
    facts: &VisitFacts,
    click_id: &str,
    accepted: i64,
    txid: u32,
    rng: &mut Rng,
) -> Result<Option<u32>, std::fmt::Error> {
    let mut said = None;
    write!(
        out,
        r#"{{"v":1,"workspace":{},"network":"{}","accepted_at":{accepted},"query":"click_id={click_id}&txid=T{txid:010}&event={}"#,
        facts.workspace(),
        facts.network_id(),
        if rng.u8(0..4) == 0 {
            "lead"
        } else {
            "purchase"
        },
    )?;
    if rng.u8(0..10) < 7 {
        let cents = rng.u32(50..20_000);
        write!(out, "&payout={}.{:02}", cents / 100, cents % 100)?;
        said = Some(cents);
    }
    match rng.u8(0..20) {
        0 => out.push_str("&status=rejected"),
        1..=3 => out.push_str("&status=pending"),
        _ => out.push_str("&status=approved"),
    }
    match rng.u8(0..10) {
        0..=2 => {
            write!(out, "&offer_id={:05}", facts.campaign())?;
            said = said.or(Some(0));
        }
        3 => write!(out, "&offer_id=99{:05}", facts.campaign())?,
        _ => {}
    }
    write!(
        out,
        "&email_hash={:032x}{:032x}",
        rng.u128(..),
        rng.u128(..)
    )?;
    // What networks send beside: kept in the log, read by nobody.
    write!(
        out,
        "&aff_id={}&aff_sub=fb&ip=203.0.113.{}&device=mobile&country=US&ts={}",
        rng.u16(..),
        rng.u8(..),
        accepted / 1_000_000
    )?;
    out.push_str("\"}");
    Ok(said)
}
