//! The rows that the bare loop writes: those of the product, column by column, made from the record alone.

use crate::workload::{MARK_EARLY, MARK_REPEAT, VisitFacts};
use millrace::postgres::copy::Rows;
use millrace_schemas::click::{ClickRecord, Kind};
use millrace_schemas::ids::{ClickKey, RecordId, digest};
use millrace_schemas::outcome::Outcome;
use millrace_schemas::postback::PostbackRecord;
use millrace_schemas::time::Micros;
use rust_decimal::Decimal;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use uuid::Uuid;

/// What became of a postback, for its row in the log.
#[derive(Clone, Copy)]
struct Became {
    outcome: Outcome,
    conversion: Option<Uuid>,
    /// Its first row: the query stands there.
    first: bool,
}

impl Became {
    fn first(outcome: Outcome) -> Became {
        Became {
            outcome,
            conversion: None,
            first: true,
        }
    }
}

/// Rows of one transaction.
#[derive(Default)]
pub struct Batch {
    pub visits: Rows,
    pub clicks: Rows,
    pub conversions: Rows,
    pub postback_log: Rows,
    pub parked: Rows,
    /// Identity keys in order, and whose they are.
    pub keys: BTreeMap<Uuid, (Uuid, Micros)>,
    /// Clicks whose parked postbacks are to go: a visit came.
    pub woken: Vec<Uuid>,
    /// First offset not in it, a topic number.
    pub next: BTreeMap<i32, i64>,
    /// How many records.
    pub records: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Batch {
    /// Adds a record of `clicks`.
    ///
    /// # Errors
    /// It is none.
    pub fn click(&mut self, id: RecordId, payload: &[u8]) -> anyhow::Result<()> {
        let record: ClickRecord = serde_json::from_slice(payload)?;
        self.took(id, payload);
        if payload.ends_with(MARK_REPEAT) {
            return Ok(());
        }
        let key = record.key();
        match record.kind {
            Kind::Visit => self.visit(id, &record, key),
            _ => {
                let out = self.clicks.row(9);
                out.i32(record.workspace).uuid(key.key).uuid(id.to_uuid());
                out.time(record.accepted_at).opt_time(record.occurred_at);
                out.i16(stage(record.stage)).null();
                out.text(record.campaign.as_deref().unwrap_or_default());
                let facts = VisitFacts::of_click_key(key.key);
                out.text(&facts.offer_id());
            }
        }
        Ok(())
    }

    fn visit(&mut self, id: RecordId, record: &ClickRecord, key: ClickKey) {
        let out = self.visits.row(19);
        out.i32(record.workspace).uuid(key.key);
        out.opt_uuid(record.visit_id).uuid(id.to_uuid());
        out.time(record.accepted_at).opt_time(record.occurred_at);
        out.i16(stage(record.stage)).bool(record.direct).null();
        out.text(record.campaign.as_deref().unwrap_or_default());
        let facts = VisitFacts::of_click_key(key.key);
        out.text(&facts.offer_id());
        out.opt_text(record.ip.as_deref()).opt_uuid(record.ip_hash);
        out.opt_text(record.user_agent.as_deref());
        out.opt_text(record.source_url.as_deref());
        out.opt_text(record.fbp.as_deref());
        out.opt_text(record.fbc.as_deref());
        out.opt_text(record.params.as_deref().map(RawValue::get));
        out.opt_text(record.journey.as_deref().map(RawValue::get));
    }

    /// Adds a record of `postbacks`.
    ///
    /// # Errors
    /// It is none, or its query says nothing.
    pub fn postback(&mut self, id: RecordId, payload: &[u8], now: Micros) -> anyhow::Result<()> {
        let record: PostbackRecord = serde_json::from_slice(payload)?;
        self.took(id, payload);
        let said = record
            .read()
            .map_err(|reason| anyhow::anyhow!("a postback of the workload: {reason}"))?;
        let key = ClickKey::new(record.workspace, &said.click_id);
        let record_id = id.to_uuid();
        if payload.ends_with(MARK_REPEAT) {
            let became = Became::first(Outcome::Duplicate);
            self.log(&record, record_id, key, now, became);
            return Ok(());
        }
        let early = payload.ends_with(MARK_EARLY);
        if early {
            let became = Became::first(Outcome::Parked);
            self.log(&record, record_id, key, now, became);
            let out = self.parked.row(9);
            out.i32(record.workspace)
                .uuid(key.key)
                .uuid(record_id)
                .i32(0);
            out.time(record.accepted_at);
            out.time(record.accepted_at.plus_secs(86_400));
            out.text("postback").text(&said.click_id).bytes(payload);
            self.woken.push(key.key);
        }
        let facts = VisitFacts::of_click_key(key.key);
        let sidecar = format!("{:05}", facts.campaign());
        let (offer, role) = match said.offer_id.as_deref() {
            Some(returned) if returned == sidecar => (facts.sidecar_id(), "monetization"),
            _ => (facts.offer_id(), "navigation"),
        };
        // A sidecar offer of the workload has no payout of its own.
        let default = match role {
            "navigation" => Decimal::new(i64::from(facts.default_cents()), 2),
            _ => Decimal::ZERO,
        };
        let flags = match (role, said.payout.is_some(), said.offer_id.is_some()) {
            ("navigation", true, true) => "offer_id_unmatched",
            ("navigation", false, true) => "offer_id_unmatched,payout_defaulted",
            ("navigation", false, false) => "payout_defaulted",
            (_, false, _) => "payout_defaulted,payout_unknown",
            _ => "",
        };
        let became = Became {
            outcome: Outcome::Applied,
            conversion: Some(record_id),
            first: !early,
        };
        self.log(&record, record_id, key, now, became);
        let identity = identity(&record, said.txid.as_deref().unwrap_or_default(), &offer);
        self.keys.insert(identity, (record_id, record.accepted_at));
        let out = self.conversions.row(25);
        out.i32(record.workspace).uuid(record_id).uuid(key.key);
        out.time(record.accepted_at)
            .opt_time(record.occurred_at)
            .time(now);
        out.null().text(&facts.campaign_id()).uuid(facts.visit_id());
        out.text(&offer).text(role).text(&record.network);
        out.opt_text(said.external_id.as_deref());
        out.opt_text(said.txid.as_deref());
        out.opt_text(said.event.as_deref());
        out.opt_text(said.provider_event.as_deref());
        out.opt_text(said.offer_id.as_deref());
        out.decimal(said.payout.unwrap_or(default))
            .text("USD")
            .text(said.status.name());
        out.time(record.accepted_at);
        out.opt_text(said.email_hash.as_deref());
        out.opt_text(said.phone_hash.as_deref());
        out.opt_text(said.lead_hash.as_deref());
        out.text(flags);
        Ok(())
    }

    fn log(
        &mut self,
        record: &PostbackRecord,
        record_id: Uuid,
        key: ClickKey,
        now: Micros,
        became: Became,
    ) {
        let out = self.postback_log.row(10);
        out.i32(record.workspace).uuid(record_id);
        out.time(record.accepted_at).time(now).uuid(key.key);
        out.opt_uuid(became.conversion);
        out.i16(became.outcome.code()).text("");
        out.text(&record.network);
        // The query stands in the first row of a postback alone.
        out.opt_text(became.first.then_some(record.query.as_str()));
    }

    fn took(&mut self, id: RecordId, payload: &[u8]) {
        self.next.insert(id.topic_no, id.offset + 1);
        self.records += 1;
        self.bytes += payload.len();
    }
}

/// An identity key as the product makes it, for a postback that brings a transaction id and nothing else.
fn identity(record: &PostbackRecord, txid: &str, offer: &str) -> Uuid {
    let workspace = record.workspace.to_be_bytes();
    let parts: [&[u8]; 5] = [
        &workspace,
        record.network.as_bytes(),
        txid.as_bytes(),
        offer.as_bytes(),
        &[0],
    ];
    digest("conversion-txid", &parts)
}

fn stage(stage: u16) -> i16 {
    i16::try_from(stage).unwrap_or(i16::MAX)
}
