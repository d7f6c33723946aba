//! What affiliate networks report, and what must come of it.

use super::access::Line;
use super::dice::Dice;
use super::scenery::{Campaign, NORTH, Network, SIDECAR_ID, SOUTH};
use super::stories::{AFTER, Author, BEFORE, LATER, members};
use super::traffic::{BatchLine, Booking, ClickId, Door, Expect, Postback};
use millrace_schemas::journey::Role;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::postback::Status;
use rust_decimal::Decimal;

const DUPLICATE: Expect = Expect::Ends(Outcome::Duplicate);
const APPLIED: Expect = Expect::Ends(Outcome::Applied);
const REJECTED: Expect = Expect::Ends(Outcome::Rejected);

/// One conversion as its network knows it.
struct Deal {
    click: ClickId,
    campaign: &'static str,
    network: usize,
    txid: String,
    payout: Decimal,
    default: Decimal,
    post: bool,
}

impl Deal {
    fn says(&self, fields: &[(&'static str, String)]) -> Postback {
        Postback {
            click: Some(self.click.clone()),
            network: self.network,
            fields: fields.to_vec(),
            post: self.post,
            forged: false,
            answer: 200,
        }
    }
    fn txid(&self) -> (&'static str, String) {
        ("txid", self.txid.clone())
    }
    fn booked(&self, status: Status) -> Booking {
        Booking::new(
            &self.txid,
            self.campaign,
            self.payout,
            status,
            Role::Navigation,
        )
    }
}

impl Author<'_> {
    /// The deal of a line, with its campaign's network.
    fn deal(&self, line: &Line<'_>, dice: &mut Dice, click: &ClickId, campaign: usize) -> Deal {
        let campaign = self.scenery.campaigns.get(campaign);
        let offer = campaign.and_then(|c| self.scenery.offers.get(c.offer));
        let cents = i64::try_from(300 + dice.below(8_700)).unwrap_or(300);
        Deal {
            click: click.clone(),
            campaign: campaign.map_or("", |c: &Campaign| c.id),
            network: offer.map_or(NORTH, |o| o.network),
            txid: format!("tx{:05}{:04x}", line.number, dice.below(1 << 16)),
            payout: Decimal::new(cents, 2),
            default: offer.map_or(Decimal::ZERO, |o| o.payout),
            post: dice.percent(30),
        }
    }

    fn network(&self, place: usize) -> Network {
        self.scenery
            .networks
            .get(place)
            .cloned()
            .unwrap_or_default()
    }

    fn status(&self, network: usize, status: Status) -> (&'static str, String) {
        let [approved, pending, rejected] = self.network(network).words;
        let word = match status {
            Status::Approved => approved,
            Status::Pending => pending,
            Status::Rejected => rejected,
        };
        ("status", word.to_owned())
    }

    fn payout(&self, network: usize, payout: Decimal) -> (&'static str, String) {
        let text = if self.network(network).loose {
            format!("${payout}").replace('.', ",")
        } else {
            payout.to_string()
        };
        ("payout", text)
    }

    fn book(&mut self, booking: Booking) {
        self.expected().bookings.push(booking);
    }

    /// A conversion, reported in one of the ways networks have.
    pub(super) fn report(
        &mut self,
        line: &Line<'_>,
        dice: &mut Dice,
        click: &ClickId,
        campaign: usize,
    ) {
        let deal = self.deal(line, dice, click, campaign);
        let paid = self.payout(deal.network, deal.payout);
        let plain = deal.says(&[paid.clone(), deal.txid()]);
        match dice.below(100) {
            0..=33 => {
                self.postback(AFTER, plain, APPLIED);
                self.book(deal.booked(Status::Approved));
            }
            34..=39 => self.imported(line, &deal, dice.percent(40)),
            40..=47 => {
                // No payout: the offer's default is taken.
                let blank = if dice.percent(50) {
                    deal.says(&[("payout", String::new()), deal.txid()])
                } else {
                    deal.says(&[deal.txid()])
                };
                self.postback(AFTER, blank, APPLIED);
                let payout = deal.default;
                self.book(Deal { payout, ..deal }.booked(Status::Approved));
            }
            48..=63 => self.pending(&deal, dice),
            64..=71 => self.repeated(&deal, plain, dice),
            72..=77 => self.sidecar(deal),
            78..=80 => {
                // An offer id that no sidecar offer has: the navigation offer is credited.
                let unmatched = deal.says(&[paid, deal.txid(), ("offer_id", "9999".to_owned())]);
                self.postback(AFTER, unmatched, APPLIED);
                self.book(deal.booked(Status::Approved));
            }
            81..=90 => self.hopeless(&deal, paid, dice),
            91..=93 => {
                // Somebody who has not the secret, then the network itself.
                let forged = Postback {
                    forged: true,
                    answer: 403,
                    ..plain.clone()
                };
                self.postback(AFTER, forged, Expect::Refused);
                self.postback(LATER, plain, APPLIED);
                self.book(deal.booked(Status::Approved));
            }
            94..=96 => {
                // Two conversions of one click.
                let event = |name: &str| ("event", name.to_owned());
                let lead = deal.says(&[paid.clone(), deal.txid(), event("lead")]);
                self.postback(AFTER, lead, APPLIED);
                self.book(deal.booked(Status::Approved));
                let txid = format!("{}b", deal.txid);
                let second = Deal { txid, ..deal };
                let sale = second.says(&[paid, second.txid(), event("sale")]);
                self.postback(LATER, sale, APPLIED);
                self.book(second.booked(Status::Approved));
            }
            _ => {
                // The network's callback was upgraded between two tries: the external id attaches to what is booked.
                self.postback(AFTER, plain, APPLIED);
                let external = ("external_conversion_id", format!("ext-{}", line.number));
                self.postback(LATER, deal.says(&[paid, deal.txid(), external]), DUPLICATE);
                self.book(deal.booked(Status::Approved));
            }
        }
    }

    /// Told in a batch by a server that collected it, perhaps twice.
    fn imported(&mut self, line: &Line<'_>, deal: &Deal, twice: bool) {
        let network = self.network(deal.network);
        let mut told = members(serde_json::json!({
            "id": format!("postback-{}", line.number),
            "network": network.id,
        }));
        for (name, value) in [self.payout(deal.network, deal.payout), deal.txid()] {
            told.insert(name.to_owned(), value.into());
        }
        let told = BatchLine {
            members: told,
            click: deal.click.clone(),
            at: line.at,
        };
        let [first, second] = &mut self.postbacks;
        if twice {
            second.push(told.clone());
        }
        first.push(told);
        self.expected().note(Door::BatchPostbacks, APPLIED);
        if twice {
            self.expected().note(Door::BatchPostbacks, DUPLICATE);
        }
        self.book(deal.booked(Status::Approved));
    }

    /// Pending first; approved, rejected or nothing later. Or rejected at once.
    fn pending(&mut self, deal: &Deal, dice: &mut Dice) {
        let network = deal.network;
        let paid = self.payout(network, deal.payout);
        let said =
            |author: &Self, status| deal.says(&[deal.txid(), author.status(network, status)]);
        let first = match dice.below(8) {
            0 => Status::Rejected,
            _ => Status::Pending,
        };
        let opening = deal.says(&[paid, deal.txid(), self.status(network, first)]);
        self.postback(AFTER, opening, APPLIED);
        if first == Status::Rejected {
            self.book(deal.booked(Status::Rejected));
            return;
        }
        match dice.below(8) {
            0..=3 => {
                // The approving receipt's payout is the one that counts.
                let raised = deal.payout + Decimal::new(150, 2);
                let mut approving = said(self, Status::Approved);
                approving.fields.push(self.payout(network, raised));
                self.postback(LATER, approving, APPLIED);
                self.expected().status_changes += 1;
                self.book(Booking::new(
                    &deal.txid,
                    deal.campaign,
                    raised,
                    Status::Approved,
                    Role::Navigation,
                ));
            }
            4..=5 => {
                let refusing = said(self, Status::Rejected);
                self.postback(LATER, refusing, APPLIED);
                self.expected().status_changes += 1;
                self.book(deal.booked(Status::Rejected));
            }
            _ => self.book(deal.booked(Status::Pending)),
        }
    }

    /// The same again; or a rejection after the approval, which only a network that takes back may bring.
    fn repeated(&mut self, deal: &Deal, plain: Postback, dice: &mut Dice) {
        self.postback(AFTER, plain.clone(), APPLIED);
        if dice.percent(70) {
            for _ in 0..=dice.below(2) {
                self.postback(LATER, plain.clone(), DUPLICATE);
            }
            self.book(deal.booked(Status::Approved));
            return;
        }
        let back = deal.says(&[deal.txid(), self.status(deal.network, Status::Rejected)]);
        if self.network(deal.network).loose {
            self.postback(LATER, back, APPLIED);
            let taken_back = &mut self.expected().taken_back;
            *taken_back.entry(deal.campaign.to_owned()).or_default() += 1;
            self.expected().status_changes += 1;
            self.book(deal.booked(Status::Rejected));
        } else {
            self.postback(LATER, back, DUPLICATE);
            self.book(deal.booked(Status::Approved));
        }
    }

    /// The sidecar offer of the page converted, under the id that its network knows it by.
    fn sidecar(&mut self, deal: Deal) {
        let network = SOUTH;
        let deal = Deal { network, ..deal };
        let paid = self.payout(network, deal.payout);
        let report = deal.says(&[paid, deal.txid(), ("offer_id", SIDECAR_ID.to_owned())]);
        self.postback(AFTER, report, APPLIED);
        self.book(Booking::new(
            &deal.txid,
            deal.campaign,
            deal.payout,
            Status::Approved,
            Role::Monetization,
        ));
    }

    /// What can never be booked: accepted, answered 400, rejected.
    fn hopeless(&mut self, deal: &Deal, paid: (&'static str, String), dice: &mut Dice) {
        let text = |v: &str| v.to_owned();
        let bad = match dice.below(7) {
            0 => deal.says(&[("payout", text("1e3")), deal.txid()]),
            1 => deal.says(&[("payout", text("NaN")), deal.txid()]),
            2 => deal.says(&[("payout", text("12.5O")), deal.txid()]),
            3 => deal.says(&[paid, ("txid", text("{transaction_id}"))]),
            4 => deal.says(&[("payout", text("${PAYOUT}")), deal.txid()]),
            5 => deal.says(&[
                paid,
                deal.txid(),
                ("transaction_id", text("another")),
                ("txid", text("one")),
            ]),
            _ => Postback {
                click: None,
                ..deal.says(&[paid, deal.txid()])
            },
        };
        self.postback(AFTER, Postback { answer: 400, ..bad }, REJECTED);
    }

    /// Before the page's own report.
    pub(super) fn early_report(
        &mut self,
        line: &Line<'_>,
        dice: &mut Dice,
        click: &ClickId,
        campaign: usize,
    ) {
        let deal = self.deal(line, dice, click, campaign);
        let paid = self.payout(deal.network, deal.payout);
        let report = deal.says(&[paid, deal.txid()]);
        self.postback(BEFORE, report.clone(), APPLIED);
        self.expected().woken += 1;
        if dice.percent(25) {
            // Twice before the page: both wait, the first in order is booked.
            self.postback(AFTER, report, DUPLICATE);
            self.expected().woken += 1;
        }
        self.book(deal.booked(Status::Approved));
    }

    /// For a click that nobody ever served: it stays parked.
    pub(super) fn unknown_click(&mut self, line: &Line<'_>, dice: &mut Dice, nobody: &ClickId) {
        let deal = self.deal(line, dice, nobody, 0);
        let paid = self.payout(deal.network, deal.payout);
        let report = deal.says(&[paid, deal.txid()]);
        self.postback(BEFORE, report, Expect::Ends(Outcome::Parked));
    }
}
