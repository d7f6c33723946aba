//! What a story can say: one wire record each, its JSON written out by hand.

use super::{Booking, Conversion, End, Fact, Record, Right, Teller, Topic, uuid_v7};
use serde_json::{Value, json};

/// Stands where `accepted_at` will.
const STAMP: &str = "\"@accepted_at@\"";

/// A campaign as it is served, and what its journey credits.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// Its id.
    pub id: &'static str,
    /// The offer of its navigation.
    pub offer: &'static str,
    /// That offer's default payout, as text and in cents.
    pub payout: Option<(&'static str, i64)>,
    /// The sidecar offer: its id, the network that may credit it, its id there, its default payout as text and in cents.
    pub sidecar: Option<(&'static str, &'static str, &'static str, &'static str, i64)>,
}

/// The campaigns of all stories.
pub const CAMPAIGNS: [Campaign; 3] = [
    Campaign {
        id: "summer",
        offer: "of_nav1",
        payout: Some(("2.50", 250)),
        sidecar: Some(("of_side1", "nw_1", "0077", "0.40", 40)),
    },
    Campaign {
        id: "winter",
        offer: "of_nav2",
        payout: Some(("13", 1300)),
        sidecar: None,
    },
    Campaign {
        id: "bare",
        offer: "of_nav3",
        payout: None,
        sidecar: None,
    },
];

impl Campaign {
    fn journey(&self) -> Value {
        let mut offer = json!({"id": self.offer, "network": "nw_1", "currency": "USD"});
        if let Some((text, _)) = self.payout {
            offer["payout"] = json!(text);
        }
        let sidecars: Vec<Value> = self
            .sidecar
            .iter()
            .map(|(offer, network, id, payout, _)| {
                json!({"offer": offer, "network": network, "network_offer_id": id, "payout": payout, "currency": "USD"})
            })
            .collect();
        json!({"offer": offer, "sidecar_offers": sidecars, "pixels": [{"kind": "meta", "n": 1.0}]})
    }
}

/// Whose click it is: everything about a click is told of one of these.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The story.
    pub story: &'static str,
    /// The workspace.
    pub workspace: i32,
    /// The click id.
    pub click_id: String,
    /// The campaign served.
    pub campaign: Campaign,
}

/// One right answer with any reason.
#[must_use]
pub fn ends(end: End) -> Vec<Right> {
    vec![Right { end, reason: None }]
}

/// One right answer with its reason.
#[must_use]
pub fn ends_with(end: End, reason: &'static str) -> Vec<Right> {
    vec![Right {
        end,
        reason: Some(reason),
    }]
}

/// Applied.
#[must_use]
pub fn applied() -> Vec<Right> {
    ends(End::Applied)
}

/// Duplicate.
#[must_use]
pub fn duplicate() -> Vec<Right> {
    ends(End::Duplicate)
}

/// Applied or duplicate: whoever is faster.
#[must_use]
pub fn contested() -> Vec<Right> {
    [End::Applied, End::Duplicate]
        .map(|end| Right { end, reason: None })
        .to_vec()
}

impl Teller {
    fn record(&self, of: &Subject, topic: Topic, right: Vec<Right>, fact: Fact) -> Record {
        Record {
            topic,
            key: format!("{}:{}", of.workspace, of.click_id).into_bytes(),
            payload: Vec::new(),
            story: of.story,
            workspace: of.workspace,
            click_id: of.click_id.clone(),
            campaign: of.campaign.id.to_owned(),
            stage: 0,
            right,
            fact,
        }
    }

    fn say(&mut self, record: Record, mut body: Value) -> usize {
        body["accepted_at"] = json!("@accepted_at@");
        let text = body.to_string();
        let around = text
            .split_once(STAMP)
            .map(|(before, after)| (before.to_owned(), after.to_owned()));
        self.push(record, around)
    }

    /// A fresh visit id.
    pub fn visit_id(&mut self) -> u128 {
        let millis = self.plan.start / 1000;
        uuid_v7(&mut self.rng, millis)
    }

    /// A visit with a given id.
    pub fn visit_as(
        &mut self,
        of: &Subject,
        visit_id: u128,
        stage: i16,
        direct: bool,
        right: Vec<Right>,
    ) -> usize {
        let serial = self.serial();
        let mut body = json!({
            "v": 1, "kind": "visit", "workspace": of.workspace, "click_id": of.click_id,
            "visit_id": uuid::Uuid::from_u128(visit_id).to_string(), "campaign": of.campaign.id, "stage": stage,
            "journey": of.campaign.journey(),
            "params": {"utm_source": "news", "sub1": format!("s{serial}"), "x": ["1", "2"]},
            "user_agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36",
            "source_url": format!("https://shop.example/landing/{}", serial % 50),
            "ip_hash": uuid::Uuid::from_u128(u128::from(serial)).to_string(),
        });
        if direct {
            body["direct"] = json!(true);
        }
        if self.rng.one_in(4) {
            body["fbp"] = json!(format!("fb.1.1764500000000.{serial}"));
            body["later_field"] = json!({"of": "a newer build"});
        }
        let mut record = self.record(of, Topic::Clicks, right, Fact::Visit { visit_id, direct });
        record.stage = stage;
        self.say(record, body)
    }

    /// A visit that is applied.
    pub fn visit(&mut self, of: &Subject) -> u128 {
        let id = self.visit_id();
        self.visit_as(of, id, 0, false, applied());
        id
    }

    /// A click on a page.
    pub fn click(&mut self, of: &Subject, stage: i16, right: Vec<Right>) -> usize {
        let mut body = json!({"v": 1, "kind": "click", "workspace": of.workspace, "click_id": of.click_id, "stage": stage});
        if !self.rng.one_in(4) {
            body["campaign"] = json!(of.campaign.id);
        }
        let mut record = self.record(of, Topic::Clicks, right, Fact::Click);
        record.stage = stage;
        self.say(record, body)
    }

    /// A click that names another campaign than its visit.
    pub fn strayed_click(&mut self, of: &Subject) -> usize {
        let right = ends_with(End::Rejected, "campaign_mismatch");
        let record = self.record(of, Topic::Clicks, right, Fact::Click);
        self.say(
            record,
            json!({"v": 1, "kind": "click", "workspace": of.workspace, "click_id": of.click_id, "campaign": "elsewhere"}),
        )
    }

    /// A postback of a network; `query` without its click id, which is put first under `alias`.
    pub fn postback_as(
        &mut self,
        of: &Subject,
        network: &str,
        alias: &str,
        query: &str,
        rules: Value,
        right: Vec<Right>,
    ) -> usize {
        let mut body = json!({
            "v": 1, "workspace": of.workspace, "network": network,
            "query": format!("{alias}={}&{query}", of.click_id),
        });
        if !rules.is_null() {
            body["rules"] = rules;
        }
        let record = self.record(of, Topic::Postbacks, right, Fact::Nothing);
        self.say(record, body)
    }

    /// A postback of `nw_1` under its ordinary rules.
    pub fn postback(&mut self, of: &Subject, query: &str, right: Vec<Right>) -> usize {
        let alias = *self.rng.pick(&["click_id", "ct1", "sub2"]);
        self.postback_as(of, "nw_1", alias, query, Value::Null, right)
    }

    /// A record whose query or bytes are given whole.
    pub fn raw(&mut self, of: &Subject, topic: Topic, body: Value, right: Vec<Right>) -> usize {
        let record = self.record(of, topic, right, Fact::Nothing);
        self.say(record, body)
    }

    /// Bytes that are no record at all.
    pub fn garbage(&mut self, of: &Subject, topic: Topic, bytes: &[u8]) -> usize {
        let right = ends_with(End::DeadLettered, "undecodable");
        let mut record = self.record(of, topic, right, Fact::Nothing);
        record.payload = bytes.to_vec();
        self.push(record, None)
    }

    /// A conversion booked in one of these ways.
    pub fn books(
        &mut self,
        of: &Subject,
        network: &str,
        ways: Vec<Booking>,
        changes: std::ops::RangeInclusive<i64>,
    ) {
        self.conversion(Conversion {
            workspace: of.workspace,
            network: network.to_owned(),
            ways,
            changes,
        });
    }

    /// A navigation booking, approved, by one record, with its names: external id, txid, event, provider event.
    #[must_use]
    pub fn booking(
        &self,
        of: &Subject,
        record: usize,
        cents: i64,
        names: [Option<&str>; 4],
    ) -> Booking {
        Booking {
            record,
            offer: of.campaign.offer,
            role: "navigation",
            cents,
            status: "approved",
            names: Some(names.map(|n| n.map(str::to_owned))),
        }
    }
}
