//! A model of the ledger: what records must become when they are decided one after another. Written from the specification,
//! without product code: names instead of digests, maps instead of tables, whole numbers instead of decimals.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Acceptance of the first record, in microseconds.
pub const T0: i64 = 1_780_000_000_000_000;

/// A record, abstractly.
#[derive(Debug, Clone)]
pub enum Op {
    /// A visit.
    Visit {
        /// Its workspace.
        ws: i32,
        /// Its click id.
        click: String,
        /// Its visit id.
        visit: u128,
        /// Its campaign.
        campaign: &'static str,
        /// A direct link.
        direct: bool,
        /// Which journey: 0 none, 1 and 2 lead to offers `n1` and `n2`, both with sidecar `s` of network `w1` under `77`.
        journey: u8,
    },
    /// A click.
    Click {
        /// Its workspace.
        ws: i32,
        /// Its click id.
        click: String,
        /// The campaign it names.
        campaign: &'static str,
        /// Its stage.
        stage: u16,
    },
    /// A postback.
    Postback(Postback),
}

/// A postback, abstractly.
#[derive(Debug, Clone)]
pub struct Postback {
    /// Its workspace.
    pub ws: i32,
    /// Its click id.
    pub click: String,
    /// Its network.
    pub network: &'static str,
    /// `external_conversion_id`.
    pub external: Option<&'static str>,
    /// `txid`.
    pub txid: Option<&'static str>,
    /// `event`.
    pub event: Option<&'static str>,
    /// `offer_id`.
    pub offer: Option<&'static str>,
    /// `payout`, whole.
    pub payout: Option<i64>,
    /// `status`.
    pub status: &'static str,
    /// Whether the network may take back.
    pub reversals: bool,
}

impl Op {
    /// Workspace and click id.
    #[must_use]
    pub fn key(&self) -> (i32, &str) {
        match self {
            Op::Visit { ws, click, .. } | Op::Click { ws, click, .. } => (*ws, click),
            Op::Postback(p) => (p.ws, &p.click),
        }
    }

    /// Its topic's place in the group, and its wire form.
    #[must_use]
    pub fn wire(&self, accepted_at: i64) -> (usize, Value) {
        match self {
            Op::Visit {
                ws,
                click,
                visit,
                campaign,
                direct,
                journey,
            } => {
                let side = json!([{"offer": "s", "network": "w1", "network_offer_id": "77", "payout": "7"}]);
                let mut record = json!({"v": 1, "kind": "visit", "workspace": ws, "click_id": click,
                    "accepted_at": accepted_at, "visit_id": uuid::Uuid::from_u128(*visit), "campaign": campaign,
                    "direct": direct});
                match journey {
                    0 => {}
                    n => {
                        record["journey"] = json!({"offer": {"id": format!("n{n}"), "payout": "3"}, "sidecar_offers": side})
                    }
                }
                (0, record)
            }
            Op::Click {
                ws,
                click,
                campaign,
                stage,
            } => (
                0,
                json!({"v": 1, "kind": "click", "workspace": ws, "click_id": click, "accepted_at": accepted_at,
                    "campaign": campaign, "stage": stage}),
            ),
            Op::Postback(p) => {
                let mut query = format!("click_id={}&status={}", p.click, p.status);
                for (name, value) in [
                    ("external_conversion_id", p.external),
                    ("txid", p.txid),
                    ("event", p.event),
                    ("offer_id", p.offer),
                ] {
                    if let Some(value) = value {
                        query.push_str(&format!("&{name}={value}"));
                    }
                }
                if let Some(payout) = p.payout {
                    query.push_str(&format!("&payout={payout}"));
                }
                (
                    1,
                    json!({"v": 1, "workspace": p.ws, "network": p.network, "accepted_at": accepted_at,
                        "query": query, "rules": {"reversals": p.reversals}}),
                )
            }
        }
    }
}

/// A conversion of the model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conversion {
    /// The record that booked it.
    pub by: usize,
    /// Its workspace.
    pub ws: i32,
    /// The credited offer.
    pub offer: String,
    /// Its payout.
    pub payout: i64,
    /// Its status.
    pub status: String,
    /// The provider's id.
    pub external: Option<String>,
}

#[derive(Debug, Default, Clone)]
struct Click {
    visits: Vec<(u128, &'static str, u8)>,
    stages: BTreeSet<u16>,
    waiting: Vec<usize>,
}

type Identity = (i32, &'static str, Vec<Option<String>>);

/// The ledger as it must be.
#[derive(Debug, Default, Clone)]
pub struct Model {
    ops: Vec<Op>,
    clicks: BTreeMap<(i32, String), Click>,
    identities: BTreeMap<Identity, usize>,
    /// Conversions in the order of booking.
    pub conversions: Vec<Conversion>,
    /// The outcome of each record so far, with its reason.
    pub outcomes: Vec<(&'static str, &'static str)>,
    /// Charged clicks.
    pub charged: usize,
    /// Visits.
    pub visits: usize,
}

impl Model {
    /// Takes the next record.
    pub fn take(&mut self, op: Op) {
        let index = self.ops.len();
        self.ops.push(op);
        self.outcomes.push(("undecided", ""));
        self.decide(index);
    }

    fn decide(&mut self, index: usize) {
        let op = self.ops[index].clone();
        let (ws, id) = op.key();
        let key = (ws, id.to_owned());
        match op {
            Op::Visit {
                visit,
                campaign,
                direct,
                journey,
                ..
            } => {
                let click = self.clicks.entry(key).or_default();
                if click.visits.iter().any(|v| v.0 == visit) {
                    self.outcomes[index] = ("duplicate", "");
                    return;
                }
                click.visits.push((visit, campaign, journey));
                self.visits += 1;
                self.outcomes[index] = ("applied", "");
                if direct && click.stages.insert(0) {
                    self.charged += 1;
                }
                for waits in std::mem::take(&mut click.waiting) {
                    self.decide(waits);
                }
            }
            Op::Click {
                campaign, stage, ..
            } => {
                let click = self.clicks.entry(key).or_default();
                self.outcomes[index] = if click.visits.is_empty() {
                    click.waiting.push(index);
                    ("parked", "")
                } else if !click.visits.iter().any(|v| v.1 == campaign) {
                    ("rejected", "campaign_mismatch")
                } else if click.stages.insert(stage) {
                    self.charged += 1;
                    ("applied", "")
                } else {
                    ("duplicate", "")
                };
            }
            Op::Postback(p) => {
                let click = self.clicks.entry(key).or_default();
                let journeys: BTreeSet<u8> = click
                    .visits
                    .iter()
                    .map(|v| v.2)
                    .filter(|j| *j != 0)
                    .collect();
                if journeys.len() != 1 {
                    click.waiting.push(index);
                    self.outcomes[index] = ("parked", "");
                    return;
                }
                let navigation = journeys.first().copied().unwrap_or(0);
                self.outcomes[index] = self.book(index, &p, navigation);
            }
        }
    }

    fn book(&mut self, index: usize, p: &Postback, navigation: u8) -> (&'static str, &'static str) {
        let side = p.network == "w1" && p.offer == Some("77");
        let (offer, default) = if side {
            ("s".to_owned(), 7)
        } else {
            (format!("n{navigation}"), 3)
        };
        let numeric = p
            .event
            .filter(|e| e.bytes().all(|b| b.is_ascii_digit()))
            .map(str::to_owned);
        let some = |s: &str| Some(s.to_owned());
        let external: Option<Identity> = p
            .external
            .map(|e| (p.ws, p.network, vec![some("external"), some(e)]));
        let txid: Option<Identity> = p.txid.map(|t| {
            (
                p.ws,
                p.network,
                vec![some("txid"), some(t), some(&offer), numeric.clone()],
            )
        });
        let click: Option<Identity> = (external.is_none() && txid.is_none()).then(|| {
            let event = p.event.map(str::to_owned);
            (
                p.ws,
                p.network,
                vec![
                    some("click"),
                    some(&p.click),
                    some(&offer),
                    event,
                    numeric.clone(),
                ],
            )
        });
        let by = |k: &Option<Identity>| k.as_ref().and_then(|k| self.identities.get(k).copied());
        let found = if external.is_some() {
            by(&external)
                .or_else(|| by(&txid).filter(|at| self.conversions[*at].external.is_none()))
        } else {
            by(&txid).or_else(|| by(&click))
        };
        let Some(at) = found else {
            let at = self.conversions.len();
            for key in [external, txid, click].into_iter().flatten() {
                self.identities.entry(key).or_insert(at);
            }
            self.conversions.push(Conversion {
                by: index,
                ws: p.ws,
                offer,
                payout: p.payout.unwrap_or(default),
                status: p.status.to_owned(),
                external: p.external.map(str::to_owned),
            });
            return ("applied", "");
        };
        if let Some(key) = external
            && !self.identities.contains_key(&key)
        {
            self.identities.insert(key, at);
            self.conversions[at].external = p.external.map(str::to_owned);
        }
        let held = &mut self.conversions[at];
        if held.status == p.status {
            return ("duplicate", "");
        }
        let moves = held.status == "pending"
            || (held.status == "approved" && p.status == "rejected" && p.reversals);
        if !moves {
            return ("duplicate", "status_conflict");
        }
        if held.status == "pending" && p.status == "approved" {
            held.payout = p.payout.unwrap_or(held.payout);
        }
        held.status = p.status.to_owned();
        ("applied", "status_changed")
    }

    /// Outcomes counted.
    #[must_use]
    pub fn tally(&self) -> BTreeMap<(String, String), i64> {
        let mut all = BTreeMap::new();
        for (outcome, reason) in &self.outcomes {
            *all.entry(((*outcome).to_owned(), (*reason).to_owned()))
                .or_insert(0) += 1;
        }
        all
    }

    /// Conversions by what can be compared.
    #[must_use]
    pub fn ledger(&self) -> Vec<Conversion> {
        let mut all = self.conversions.clone();
        all.sort();
        all
    }
}
