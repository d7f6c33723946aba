//! From a line of the log to what a visitor, a page and a network would have sent.
//!
//! A page view is a visit. An entrance by a person is an ad click seven times out of ten, else the page was served by a server
//! that reports it in a batch. Some people click on the call to action, and networks report conversions for some of those; a
//! line's digest decides which, so that every run is the same.

use super::access::{Line, Part};
use super::dice::Dice;
use super::scenery::Scenery;
use super::traffic::{
    AdClick, BatchLine, Beacon, Call, ClickId, Door, Expect, Expected, Plan, Postback, Wave,
};
use millrace_schemas::macros::encode_query_value;
use millrace_schemas::outcome::Outcome;
use serde_json::json;

/// Visits or clicks in one batch at most.
const BATCH: usize = 100;
/// Bytes of padding that no door but the batch doors takes.
const TOO_MUCH: usize = 100_000;

/// Writes the plan.
pub struct Author<'a> {
    pub(super) scenery: &'a Scenery,
    pub(super) plan: Plan,
    pub(super) wave: Wave,
    visits: Vec<BatchLine>,
    repeats: Vec<BatchLine>,
    clicks: Vec<BatchLine>,
    held: Vec<BatchLine>,
    pub(super) postbacks: [Vec<BatchLine>; 2],
}

/// Before the pages are served.
pub(super) const BEFORE: usize = 0;
const PAGES: usize = 1;
/// After the pages.
pub(super) const AFTER: usize = 2;
/// After that.
pub(super) const LATER: usize = 3;

impl<'a> Author<'a> {
    /// With nothing written yet.
    #[must_use]
    pub fn new(scenery: &'a Scenery) -> Author<'a> {
        Author {
            scenery,
            plan: Plan::default(),
            wave: Wave::default(),
            visits: Vec::new(),
            repeats: Vec::new(),
            clicks: Vec::new(),
            held: Vec::new(),
            postbacks: [Vec::new(), Vec::new()],
        }
    }

    /// Writes one wave.
    pub fn stretch(&mut self, lines: &[Line<'_>]) {
        for line in lines {
            self.line(line);
            self.wave.lines += 1;
            self.wave.until = self.wave.until.max(line.at);
        }
        let mut wave = std::mem::take(&mut self.wave);
        let [first, second] = &mut self.postbacks;
        for (step, door, lines) in [
            (PAGES, Door::BatchVisits, &mut self.visits),
            (AFTER, Door::BatchClicks, &mut self.clicks),
            (AFTER, Door::BatchPostbacks, first),
            (LATER, Door::BatchVisits, &mut self.repeats),
            (LATER, Door::BatchPostbacks, second),
        ] {
            if let Some(calls) = wave.steps.get_mut(step) {
                calls.extend(batches(door, lines));
            }
        }
        self.plan.waves.push(wave);
    }

    /// The plan as written.
    #[must_use]
    pub fn finish(mut self) -> Plan {
        self.plan.held = batches(Door::BatchVisits, &mut self.held).collect();
        self.plan.expected.bookings.sort();
        self.plan
    }

    pub(super) fn send(&mut self, step: usize, call: Call, expect: Expect) {
        self.expected().note(call.door(), expect);
        if let Some(calls) = self.wave.steps.get_mut(step) {
            calls.push(call);
        }
    }

    pub(super) fn expected(&mut self) -> &mut Expected {
        &mut self.plan.expected
    }

    fn line(&mut self, line: &Line<'_>) {
        let mut dice = Dice::of(line.number, line.text);
        let place = match line.part {
            Part::Entrance => 0,
            Part::Onward => 1,
            Part::Program => 2,
            Part::Other => 3,
        };
        if let Some(n) = self.plan.lines.get_mut(place) {
            *n += 1;
        }
        match line.part {
            Part::Entrance if dice.percent(70) => self.ad_click(line, &mut dice),
            Part::Entrance | Part::Onward => self.served_page(line, &mut dice, true),
            Part::Program => self.served_page(line, &mut dice, false),
            Part::Other => {}
        }
        self.stray(line, &mut dice);
    }

    fn campaign(&self, line: &Line<'_>) -> (usize, String) {
        let place = self.scenery.campaign_of(line.path);
        let id = self.scenery.campaigns.get(place).map_or("", |c| c.id);
        (place, id.to_owned())
    }

    /// Somebody clicked on an ad: the door mints the click id, and the redirect is itself the click.
    fn ad_click(&mut self, line: &Line<'_>, dice: &mut Dice) {
        let (place, campaign) = self.campaign(line);
        let slot = self.plan.slots;
        self.plan.slots += 1;
        let referrer = line.referrer.unwrap_or("direct");
        let (parameter, medium) = match referrer {
            r if r.contains("google") => ("gclid", "cpc"),
            r if r.contains("bing") || r.contains("yahoo") => ("msclkid", "cpc"),
            r if r == "t.co" || r.contains("twitter") => ("twclid", "social"),
            _ => ("fbclid", "paid_social"),
        };
        let query = format!(
            "{parameter}={:016x}{:08x}&utm_source={}&utm_medium={medium}&utm_campaign=spring&sub1={}&sub3={}",
            dice.bits(),
            dice.below(1 << 32),
            encode_query_value(referrer),
            encode_query_value(line.path),
            line.number,
        );
        let click = Call::Click(AdClick {
            slot,
            campaign: campaign.clone(),
            query,
            address: line.address.to_owned(),
            agent: line.agent.to_owned(),
            answer: 302,
        });
        self.send(PAGES, click, Expect::Ends(Outcome::Applied));
        let id = ClickId::Minted(slot);
        if dice.percent(25) {
            // The landing page has the beacon's script too: the direct link was the click already.
            self.beacon(AFTER, &id, &campaign, Outcome::Duplicate);
        }
        if dice.percent(50) {
            self.report(line, dice, &id, place);
        }
    }

    /// A server that tracks by itself served a page and tells in a batch, under ids of its own.
    fn served_page(&mut self, line: &Line<'_>, dice: &mut Dice, person: bool) {
        let (place, campaign) = self.campaign(line);
        let own = format!("pv-{:05}-{:08x}", line.number, dice.below(1 << 32));
        let id = ClickId::Own(own);
        let visit = BatchLine {
            members: members(json!({
                "id": format!("page-{}", line.number),
                "campaign": campaign,
                "source_url": format!("https://semicomplete.com{}", line.path),
                "user_agent": line.agent,
                "ip": line.address.parse::<std::net::IpAddr>().ok(),
            })),
            click: id.clone(),
            at: line.at,
        };
        let applied = Expect::Ends(Outcome::Applied);
        self.expected().note(Door::BatchVisits, applied);
        if person && dice.percent(4) {
            // The server is late with its batch: what follows the page overtakes it, waits, and is woken by it.
            self.held.push(visit);
            if dice.percent(50) {
                self.beacon(BEFORE, &id, &campaign, Outcome::Applied);
            }
            self.early_report(line, dice, &id, place);
            return;
        }
        if dice.percent(7) {
            // The server saw no answer and sends the line again.
            self.repeats.push(visit.clone());
            self.expected()
                .note(Door::BatchVisits, Expect::Ends(Outcome::Duplicate));
        }
        self.visits.push(visit);
        if !person {
            return;
        }
        match dice.below(100) {
            0..=59 => {
                self.click(line, dice, &id, &campaign);
                if dice.percent(40) {
                    self.report(line, dice, &id, place);
                }
            }
            60..=62 => {
                // A page that names another campaign than the one it was served for.
                let other = self
                    .scenery
                    .campaigns
                    .iter()
                    .find(|c| c.id != campaign)
                    .map_or("", |c| c.id);
                self.beacon(AFTER, &id, other, Outcome::Rejected);
            }
            _ => {}
        }
    }

    /// The call to action was clicked: by the page's beacon, or by the server's batch.
    fn click(&mut self, line: &Line<'_>, dice: &mut Dice, id: &ClickId, campaign: &str) {
        if dice.percent(20) {
            self.clicks.push(BatchLine {
                members: members(json!({
                    "id": format!("click-{}", line.number),
                    "campaign": campaign,
                })),
                click: id.clone(),
                at: line.at,
            });
            self.expected()
                .note(Door::BatchClicks, Expect::Ends(Outcome::Applied));
        } else {
            self.beacon(AFTER, id, campaign, Outcome::Applied);
        }
        if dice.percent(12) {
            self.beacon(LATER, id, campaign, Outcome::Duplicate);
        }
    }

    fn beacon(&mut self, step: usize, click: &ClickId, campaign: &str, outcome: Outcome) {
        let beacon = Call::Beacon(Beacon {
            click: click.clone(),
            campaign: campaign.to_owned(),
            padding: 0,
            answer: 204,
        });
        self.send(step, beacon, Expect::Ends(outcome));
    }

    /// What comes from outside without belonging to any page, by the number of the line.
    fn stray(&mut self, line: &Line<'_>, dice: &mut Dice) {
        let n = line.number;
        let nobody = ClickId::Own(format!("nobody-{n}"));
        let campaign = self.campaign(line).1;
        if n.is_multiple_of(400) {
            self.unknown_click(line, dice, &nobody);
        }
        if n.is_multiple_of(900) {
            self.beacon(BEFORE, &nobody, &campaign, Outcome::Parked);
        }
        if n % 1_000 == 77 {
            let missing = Call::Click(AdClick {
                slot: usize::MAX,
                campaign: "demo-nowhere".to_owned(),
                query: format!("fbclid={:016x}", dice.bits()),
                address: line.address.to_owned(),
                agent: line.agent.to_owned(),
                answer: 404,
            });
            self.send(BEFORE, missing, Expect::Refused);
        }
        if n % 2_000 == 177 {
            let swollen = Call::Beacon(Beacon {
                click: nobody,
                campaign,
                padding: TOO_MUCH,
                answer: 413,
            });
            self.send(BEFORE, swollen, Expect::Refused);
        }
        if n % 2_000 == 277 {
            self.send(
                BEFORE,
                Call::BrokenBatch(Door::BatchVisits),
                Expect::Refused,
            );
        }
    }

    pub(super) fn postback(&mut self, step: usize, postback: Postback, expect: Expect) {
        self.send(step, Call::Postback(postback), expect);
    }
}

/// An object's members.
pub(super) fn members(value: serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
    match value {
        serde_json::Value::Object(members) => members,
        _ => serde_json::Map::new(),
    }
}

fn batches(door: Door, lines: &mut Vec<BatchLine>) -> impl Iterator<Item = Call> + use<> {
    let lines = std::mem::take(lines);
    let chunks: Vec<Vec<BatchLine>> = lines.chunks(BATCH).map(<[BatchLine]>::to_vec).collect();
    chunks.into_iter().map(move |c| Call::Batch(door, c))
}
