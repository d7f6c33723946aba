//! Lines of the batch doors, each read into the record it makes.

use super::members::{check_id, check_journey, check_params, decimal_text};
use crate::ingress::beacon::{check_click_id, check_stage, unwritable};
use crate::ingress::body;
use crate::ingress::click::{ip_hash, is_fbc, is_fbp};
use crate::ingress::compile::{Campaign, Snapshot};
use crate::ingress::errors::Refusal;
use crate::ingress::wire::{self, ClickOut, PostbackOut};
use bytes::Bytes;
use millrace_schemas::click::Kind;
use millrace_schemas::ids::{self, ClickKey};
use millrace_schemas::macros::encode_query_value;
use millrace_schemas::outcome::reason;
use millrace_schemas::time::Micros;
use millrace_schemas::{WIRE_VERSION, postback};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use uuid::Uuid;

/// How far back `occurred_at` may lie, in seconds.
const MAX_AGE_SECS: i64 = 7 * 86_400;

/// How far ahead it may lie, in seconds.
const MAX_AHEAD_SECS: i64 = 300;

/// Longest text of a visit's fields, in bytes.
const MAX_TEXT: usize = 2_048;

/// What every line of a batch is read under.
pub(super) struct Context<'a> {
    pub(super) workspace: i32,
    pub(super) snapshot: &'a Arc<Snapshot>,
    pub(super) now: Micros,
}

/// A line made into a record.
pub(super) struct Ready {
    pub(super) id: String,
    pub(super) click_id: String,
    pub(super) visit_id: Option<Uuid>,
    pub(super) key: String,
    pub(super) payload: Bytes,
}

/// Why a line was refused, with its `id` where that much could be read.
pub(super) type LineRefusal = (Option<String>, Refusal);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VisitLine<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    campaign: Cow<'a, str>,
    #[serde(default, borrow)]
    click_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    occurred_at: Option<Cow<'a, str>>,
    #[serde(default)]
    stage: Option<u16>,
    #[serde(default)]
    direct: Option<bool>,
    #[serde(default, borrow)]
    journey: Option<&'a RawValue>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default)]
    ip: Option<IpAddr>,
    #[serde(default, borrow)]
    user_agent: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    source_url: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    fbp: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    fbc: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClickLine<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(default, borrow)]
    campaign: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    link_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    click_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    occurred_at: Option<Cow<'a, str>>,
    #[serde(default)]
    stage: Option<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PostbackLine<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    network: Cow<'a, str>,
    #[serde(default, borrow)]
    click_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    occurred_at: Option<Cow<'a, str>>,
    /// Decimal text, or a number, whose digits are taken as they stand.
    #[serde(default, borrow)]
    payout: Option<&'a RawValue>,
    #[serde(default, borrow)]
    txid: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    event: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    status: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    offer_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    provider_event_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    external_conversion_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    email_hash: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    phone_hash: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    lead_hash: Option<Cow<'a, str>>,
}

impl Context<'_> {
    /// A line of `visits`.
    pub(super) fn visit(&self, text: &[u8]) -> Result<Ready, LineRefusal> {
        let line: VisitLine<'_> = parse(text)?;
        let id = line.id.clone().into_owned();
        self.make_visit(&line).map_err(|r| (Some(id), r))
    }

    fn make_visit(&self, line: &VisitLine<'_>) -> Result<Ready, Refusal> {
        check_id(&line.id)?;
        let click_id = self.click_id(&line.id, line.click_id.as_deref())?;
        let campaign = self.campaign(&line.campaign)?;
        let occurred_at = self.occurred_at(line.occurred_at.as_deref())?;
        let journey = match line.journey.filter(|j| j.get() != "null") {
            Some(own) => {
                check_journey(own)?;
                own
            }
            None => {
                let pick = campaign
                    .active
                    .then(|| campaign.route(ClickKey::new(self.workspace, &click_id)))
                    .flatten();
                &*pick
                    .ok_or_else(|| {
                        Refusal::bad(
                            "no_active_offer",
                            "the campaign is not active or leads to no active offer; send the served journey",
                        )
                    })?
                    .journey
            }
        };
        let params = line.params.filter(|p| p.get() != "null");
        if let Some(params) = params {
            check_params(params)?;
        }
        for (name, value) in [
            ("user_agent", &line.user_agent),
            ("source_url", &line.source_url),
        ] {
            if value.as_ref().is_some_and(|v| v.len() > MAX_TEXT) {
                return Err(Refusal::bad(
                    reason::FIELD_MALFORMED,
                    format!("{name} has more than {MAX_TEXT} bytes"),
                ));
            }
        }
        let visit_id = ids::digest(
            "batch-visit",
            &[&self.workspace.to_be_bytes(), line.id.as_bytes()],
        );
        let ip = line.ip.map(|a| a.to_canonical());
        let ip_text = ip.map(|a| a.to_string());
        let mut record = ClickOut::new(Kind::Visit, self.workspace, &click_id, self.now);
        record.occurred_at = occurred_at;
        record.visit_id = Some(visit_id);
        record.campaign = Some(&campaign.id);
        record.stage = check_stage(line.stage)?;
        record.direct = line.direct.unwrap_or(false);
        record.journey = Some(journey);
        record.params = params;
        record.ip = ip_text.as_deref().filter(|_| campaign.store_ip);
        record.ip_hash = ip.map(|a| ip_hash(self.workspace, a));
        record.user_agent = line.user_agent.as_deref().map(Cow::Borrowed);
        record.source_url = line
            .source_url
            .as_deref()
            .and_then(|u| u.split(['?', '#']).next());
        record.fbp = line.fbp.as_deref().filter(|v| is_fbp(v));
        record.fbc = line.fbc.as_deref().filter(|v| is_fbc(v));
        self.ready(&line.id, &click_id, Some(visit_id), &record)
    }

    /// A line of `clicks`.
    pub(super) fn click(&self, text: &[u8]) -> Result<Ready, LineRefusal> {
        let line: ClickLine<'_> = parse(text)?;
        let id = line.id.clone().into_owned();
        self.make_click(&line).map_err(|r| (Some(id), r))
    }

    fn make_click(&self, line: &ClickLine<'_>) -> Result<Ready, Refusal> {
        check_id(&line.id)?;
        let click_id = self.click_id(&line.id, line.click_id.as_deref())?;
        let named = match (&line.campaign, &line.link_id) {
            (Some(a), Some(b)) if a != b => {
                return Err(Refusal::bad(
                    reason::ALIAS_CONFLICT,
                    "campaign and link_id differ",
                ));
            }
            (Some(name), _) | (None, Some(name)) => name,
            (None, None) => {
                return Err(Refusal::bad("invalid", "missing field `campaign`"));
            }
        };
        let campaign = self.campaign(named)?;
        let mut record =
            ClickOut::<&RawValue>::new(Kind::Click, self.workspace, &click_id, self.now);
        record.occurred_at = self.occurred_at(line.occurred_at.as_deref())?;
        record.campaign = Some(&campaign.id);
        record.stage = check_stage(line.stage)?;
        self.ready(&line.id, &click_id, None, &record)
    }

    /// A line of `postbacks`.
    pub(super) fn postback(&self, text: &[u8]) -> Result<Ready, LineRefusal> {
        let line: PostbackLine<'_> = parse(text)?;
        let id = line.id.clone().into_owned();
        self.make_postback(&line).map_err(|r| (Some(id), r))
    }

    fn make_postback(&self, line: &PostbackLine<'_>) -> Result<Ready, Refusal> {
        check_id(&line.id)?;
        let network = self
            .snapshot
            .networks
            .get(&*line.network)
            .filter(|n| n.workspace == self.workspace)
            .ok_or_else(|| Refusal::bad("unknown_network", "no network has this id"))?;
        let click_id = self.click_id(&line.id, line.click_id.as_deref())?;
        let occurred_at = self.occurred_at(line.occurred_at.as_deref())?;
        let payout = line.payout.map(decimal_text).transpose()?.flatten();
        let mut query = format!("click_id={}", encode_query_value(&click_id));
        let fields = [
            ("payout", payout.as_deref()),
            ("txid", line.txid.as_deref()),
            ("event", line.event.as_deref()),
            ("status", line.status.as_deref()),
            ("offer_id", line.offer_id.as_deref()),
            ("provider_event_id", line.provider_event_id.as_deref()),
            (
                "external_conversion_id",
                line.external_conversion_id.as_deref(),
            ),
            ("email_hash", line.email_hash.as_deref()),
            ("phone_hash", line.phone_hash.as_deref()),
            ("lead_hash", line.lead_hash.as_deref()),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                query.push('&');
                query.push_str(name);
                query.push('=');
                query.push_str(&encode_query_value(value));
            }
        }
        postback::read(&query, self.workspace, self.now, &network.rules)
            .map_err(|reason| Refusal::bad(reason, "it can never be booked; see code"))?;
        let record = PostbackOut {
            v: WIRE_VERSION,
            workspace: self.workspace,
            network: &network.id,
            accepted_at: self.now,
            occurred_at,
            query: &query,
            rules: network.rules_json.as_deref(),
        };
        self.ready(
            &line.id,
            postback::click_id_of(&query).as_ref(),
            None,
            &record,
        )
    }

    fn ready(
        &self,
        id: &str,
        click_id: &str,
        visit_id: Option<Uuid>,
        record: &impl serde::Serialize,
    ) -> Result<Ready, Refusal> {
        Ok(Ready {
            id: id.to_owned(),
            click_id: click_id.to_owned(),
            visit_id,
            key: ids::partition_key(self.workspace, click_id),
            payload: wire::to_bytes(record, 512).map_err(|_| unwritable())?,
        })
    }

    /// The line's own click id, or one derived from workspace and `id`: a digest, so never one that was minted.
    fn click_id(&self, id: &str, own: Option<&str>) -> Result<String, Refusal> {
        match own {
            Some(own) => {
                check_click_id(own, self.now)?;
                Ok(own.to_owned())
            }
            None => Ok(ids::encode(ids::digest(
                "batch-click",
                &[&self.workspace.to_be_bytes(), id.as_bytes()],
            ))),
        }
    }

    fn campaign(&self, id: &str) -> Result<&Arc<Campaign>, Refusal> {
        self.snapshot
            .campaigns
            .get(id)
            .filter(|c| c.workspace == self.workspace)
            .ok_or_else(|| Refusal::bad("unknown_campaign", "no campaign has this id"))
    }

    fn occurred_at(&self, text: Option<&str>) -> Result<Option<Micros>, Refusal> {
        let Some(text) = text else { return Ok(None) };
        // The parser's complaint would repeat the text, which may be anything.
        let at = Micros::parse_rfc3339(text)
            .map_err(|_| Refusal::bad("occurred_at", "occurred_at is no RFC 3339 time"))?;
        if at < self.now.plus_secs(-MAX_AGE_SECS) || at > self.now.plus_secs(MAX_AHEAD_SECS) {
            return Err(Refusal::bad(
                "occurred_at",
                "occurred_at lies more than 7 days back or 5 minutes ahead",
            ));
        }
        Ok(Some(at))
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, LineRefusal> {
    #[derive(Deserialize)]
    struct Identified<'a> {
        #[serde(borrow)]
        id: Cow<'a, str>,
    }
    let named = |refusal: Refusal| {
        // Its id is repeated in the answer, if that much is there.
        let id = serde_json::from_slice::<Identified<'_>>(text)
            .ok()
            .filter(|i| check_id(&i.id).is_ok())
            .map(|i| i.id.into_owned());
        (id, refusal)
    };
    body::check_raw_object(text).map_err(named)?;
    serde_json::from_slice(text).map_err(|e| named(body::parse_refusal(&e)))
}
