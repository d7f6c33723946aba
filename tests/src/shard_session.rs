//! A shard's session, made up from a seed: what a sidecar of the module `uo` would send over one evening, plausible in order and
//! timing, with every kind of frame that the module reads and some that it does not. `config/demo/shard.ndjson` is its output.
//!
//! Things that must be told of are scripted: a house that decays and is saved, one that falls, a vendor that runs out of gold, a
//! city that votes, a guild that ends, a shard that starts three times in a minute. The rest is play.

use crate::generator::Rng;
use millrace_schemas::time::Micros;
use serde_json::{Value, json};

/// The seed of the committed session.
pub const SEED: u64 = 1997;

/// Frames of the committed session, without its hellos.
pub const FRAMES: usize = 2_000;

/// The module's protocol.
pub const PROTOCOL: u32 = 5;

/// Accounts of users of the demonstration; a deployment links them to them.
pub const LINKED: [&str; 5] = ["ana", "ben", "cleo", "dara", "eli"];

/// Accounts that nobody links.
const OTHERS: [&str; 7] = ["finn", "gwen", "hal", "iris", "jo", "kit", "lou"];

/// Every kind of frame that the module reads, by name.
pub const KINDS: [&str; 27] = [
    "account.login.result",
    "account.unlinked",
    "admin.audit",
    "audit.command",
    "audit.set",
    "champ.update",
    "cheat.fastwalk",
    "city.update",
    "economy.supply",
    "guild.join",
    "guild.leave",
    "guild.remove",
    "guild.roster",
    "house.decay",
    "house.remove",
    "page.new",
    "player.death",
    "player.murdered",
    "points.board",
    "quest.complete",
    "server.crashed",
    "server.hello",
    "server.shutdown",
    "skill.gain",
    "vendor.listing",
    "vendor.sale",
    "world.save.after",
];

/// 2026-11-02T18:00:00Z
const BEGIN: Micros = Micros(1_793_642_400_000_000);
const SKILLS: [&str; 6] = [
    "Swordsmanship",
    "Magery",
    "Blacksmithy",
    "Taming",
    "Stealth",
    "Fishing",
];
const PLACES: [(&str, i64, i64); 6] = [
    ("Britain", 1434, 1699),
    ("Vesper", 2899, 676),
    ("Trinsic", 1823, 2821),
    ("Moonglow", 4408, 1168),
    ("Yew", 535, 992),
    ("Skara Brae", 618, 2176),
];

struct Session {
    rng: Rng,
    now: Micros,
    seq: u64,
    boots: u32,
    frames: usize,
    out: String,
    gold: i64,
    skill: Vec<i64>,
}

impl Session {
    fn below(&mut self, n: u64) -> i64 {
        i64::try_from(self.rng.below(n)).expect("small")
    }

    fn accounts() -> impl Iterator<Item = &'static str> {
        LINKED.into_iter().chain(OTHERS)
    }

    fn account(&mut self) -> (usize, &'static str) {
        let at = usize::try_from(self.below((LINKED.len() + OTHERS.len()) as u64)).expect("small");
        (at, Session::accounts().nth(at).expect("within"))
    }

    /// Time goes on by up to `secs`.
    fn pass(&mut self, secs: u64) {
        let micros = self.below(secs * 1_000_000) + 20_000;
        self.now = Micros(self.now.0 + micros);
    }

    fn boot(&mut self) {
        self.boots += 1;
        self.seq = 0;
        let boot = format!("{}-{}", self.now.0 / 1_000_000, self.boots);
        let hello = json!({"type": "hello", "protocol": PROTOCOL, "boot": boot});
        self.out.push_str(&format!("{hello}\n"));
        let at = self.now.rfc3339();
        self.say("server.hello", json!({"version": "57.4", "bootedAt": at}));
    }

    fn say(&mut self, kind: &str, body: Value) {
        self.seq += 1;
        self.frames += 1;
        let at = self.now.rfc3339();
        self.out.push_str(&format!(
            "{{\"seq\":{},\"at\":\"{at}\",\"kind\":\"{kind}\",\"body\":{body}}}\n",
            self.seq
        ));
    }

    fn character(&self, at: usize, account: &str) -> Value {
        let name: String = account
            .chars()
            .enumerate()
            .map(|(i, c)| if i == 0 { c.to_ascii_uppercase() } else { c })
            .collect();
        json!({"serial": format!("0x{:08X}", 0x101 + at), "acct": account, "name": name})
    }

    fn somewhere(&mut self, mut body: Value) -> Value {
        let (region, x, y) = *self.rng.pick(&PLACES);
        let (dx, dy) = (self.below(40), self.below(40));
        body["region"] = json!(region);
        body["map"] = json!("Felucca");
        body["x"] = json!(x + dx);
        body["y"] = json!(y + dy);
        body
    }

    fn decay(&mut self, house: usize, stage: (&str, &str)) {
        let (from, to) = stage;
        let (serial, owner) = house_of(house);
        let (region, x, y) = PLACES[house % PLACES.len()];
        // A stage lasts a day; the last one ends in a fall.
        let next = decays(to).then(|| Micros(self.now.0 + 86_400_000_000).rfc3339());
        let mut schedule = json!({"nextStage": next, "decayPeriod": 432_000});
        if to == "IDOC" {
            let falls = Micros(self.now.0 + 14 * 3_600_000_000);
            schedule["estimatedCollapse"] = json!(falls.rfc3339());
        }
        let body = json!({"serial": serial, "from": from, "to": to, "region": region, "map": "Felucca", "x": x, "y": y,
            "name": format!("{owner}'s house"), "ownerAcct": owner, "ownerName": owner, "schedule": schedule});
        self.say("house.decay", body);
    }

    fn vendor(&mut self, vendor: usize, periods: f64) {
        let owner = Session::accounts().nth(vendor).expect("within");
        let charge = 60 + 10 * i64::try_from(vendor).expect("small");
        #[expect(
            clippy::cast_possible_truncation,
            reason = "some hundred pieces of gold"
        )]
        let hold = (periods * charge as f64) as i64;
        let dismissed = Micros(self.now.0 + (hold / charge) * 86_400_000_000);
        let body = json!({"serial": format!("0x{:08X}", 0x5000 + vendor), "shopName": format!("The {owner} Emporium"),
            "ownerAcct": owner, "ownerName": owner, "region": "Britain", "map": "Felucca", "x": 1440 + vendor, "y": 1690,
            "items": [{"name": "a katana", "price": 120 + self.below(80)}],
            "fees": {"exempt": false, "holdGold": hold, "chargePerPeriod": charge, "periodsRemaining": hold / charge,
                "periodHours": 24, "dismissalAt": dismissed.rfc3339()}});
        self.say("vendor.listing", body);
    }

    fn city(&mut self, city: &str, governor: Option<usize>, phase: &str) {
        let picks = Micros(self.now.0 + 3 * 86_400_000_000).rfc3339();
        let governor = governor.map(|at| {
            let account = Session::accounts().nth(at).expect("within");
            self.character(at, account)
        });
        let body = json!({"city": city, "governor": governor, "electionPhase": phase, "autoPickAt": picks});
        self.say("city.update", body);
    }

    fn champion(&mut self, spawn: usize, active: bool, boss: bool, level: i64) {
        let body = json!({"serial": format!("0x{:08X}", 0x7000 + spawn), "type": (["Abyss", "Vermin Horde", "Forest Lord"][spawn % 3]),
            "active": active, "bossUp": boss, "level": level, "region": "the Lost Lands", "map": "Felucca", "x": 5259, "y": 837});
        self.say("champ.update", body);
    }

    fn roster(&mut self, guild: i64, members: &[usize]) {
        let members: Vec<Value> = members
            .iter()
            .map(|at| self.character(*at, Session::accounts().nth(*at).expect("within")))
            .collect();
        self.say(
            "guild.roster",
            json!({"guildId": guild, "guildName": guild_name(guild), "members": members}),
        );
    }

    fn guild(&mut self, kind: &str, guild: i64, at: usize) {
        let mut body = self.character(at, Session::accounts().nth(at).expect("within"));
        body["guildId"] = json!(guild);
        body["guildName"] = json!(guild_name(guild));
        self.say(kind, body);
    }

    fn staff(&mut self) {
        let actor = json!({"serial": "0x00000001", "acct": "staff", "name": "Seer Nystul"});
        let body = match self.below(3) {
            0 => (
                "audit.set",
                json!({"actor": actor, "target": "0x40000101", "property": "Hue", "value": 1153}),
            ),
            1 => (
                "audit.command",
                json!({"actor": actor, "target": "Britain", "command": "[add chest"}),
            ),
            _ => (
                "admin.audit",
                json!({"actor": actor, "target": "kit", "action": "jail"}),
            ),
        };
        self.say(body.0, body.1);
    }

    /// One thing that happens in play.
    fn play(&mut self) {
        let (at, account) = self.account();
        let who = self.character(at, account);
        match self.below(100) {
            0..=33 => {
                let skill = usize::try_from(self.below(SKILLS.len() as u64)).expect("small");
                let place = at * SKILLS.len() + skill;
                self.skill[place] = (self.skill[place] + 1).min(1_000);
                let mut body = who;
                body["skill"] = json!(SKILLS[skill]);
                body["base"] = json!(self.skill[place] as f64 / 10.0);
                body["cap"] = json!(100.0);
                self.say("skill.gain", body);
            }
            34..=48 => {
                let vendor = 3 + usize::try_from(self.below(8)).expect("small");
                let periods = 5.0 + self.below(200) as f64 / 10.0;
                self.vendor(vendor, periods);
            }
            49..=58 => {
                let accepted = !self.rng.one_in(8);
                let reason = (!accepted).then_some("BadPass");
                self.say(
                    "account.login.result",
                    json!({"acct": account, "accepted": accepted, "reason": reason,
                    "ip": format!("203.0.113.{}", 10 + at)}),
                );
            }
            59..=66 => {
                let length = 10 + self.below(90);
                self.say("chat.line", json!({"channel": "general", "length": length}));
            }
            67..=72 => {
                let body = self.somewhere(who);
                self.say("player.moved", body);
            }
            73..=78 => {
                let mut body = self.somewhere(who);
                if self.rng.one_in(3) {
                    body["killer"] = json!({"name": "a lich"});
                }
                self.say("player.death", body);
            }
            79..=80 => {
                let mut body = self.somewhere(who);
                body["killer"] = json!({"serial": "0x00000109", "name": "Iris", "acct": "iris"});
                self.say("player.murdered", body);
            }
            81..=84 => {
                let mut body = who;
                body["quest"] =
                    json!(
                        *self
                            .rng
                            .pick(&["A Lost Cat", "The Tainted Well", "Bonds of Iron"])
                    );
                self.say("quest.complete", body);
            }
            85..=88 => {
                let sum = 80 + self.below(400);
                self.say("vendor.sale", json!({"vendorSerial": format!("0x{:08X}", 0x5000 + at), "ownerAcct": account,
                    "shopName": format!("The {account} Emporium"), "item": "a katana", "amount": 1, "price": sum, "buyerName": "Kit"}));
            }
            89..=91 => {
                self.gold += 400_000 + self.below(1_600_000);
                self.say(
                    "economy.supply",
                    json!({"gold": self.gold, "accounts": 212}),
                );
            }
            92..=93 => {
                let mut top: Vec<Value> = (0..10)
                    .map(|i| json!({"rank": i + 1, "serial": format!("0x{:08X}", 0x101 + i), "name": Session::accounts().nth(i),
                        "points": 5_000 - 300 * i}))
                    .collect();
                if self.rng.one_in(3) {
                    let low = usize::try_from(self.below(9)).expect("small");
                    let names: Vec<Value> = [low, low + 1]
                        .iter()
                        .map(|i| top[*i]["serial"].clone())
                        .collect();
                    top[low]["serial"] = names[1].clone();
                    top[low + 1]["serial"] = names[0].clone();
                }
                self.say(
                    "points.board",
                    json!({"board": "doom", "title": "Doom Gauntlet", "top": top}),
                );
            }
            94..=95 => {
                let spawn = usize::try_from(self.below(3)).expect("small");
                let level = self.below(16);
                self.champion(spawn, level > 0, level == 15, level);
            }
            96 => {
                let page = 100 + self.below(900);
                let body = self.somewhere(json!({"pageId": page, "sender": who, "type": "Stuck", "message": "I am behind the bank."}));
                self.say("page.new", body);
            }
            97 => {
                let body = self.somewhere(who);
                self.say("cheat.fastwalk", body);
            }
            98 => self.staff(),
            _ => {
                let items = 412_000 + self.below(900);
                let body = json!({"items": items, "mobiles": 30_200, "seconds": 3.2});
                self.say("world.save.after", body);
            }
        }
    }

    /// Play until so many frames stand there.
    fn until(&mut self, frames: usize) {
        while self.frames < frames {
            self.pass(14);
            self.play();
        }
    }
}

fn decays(stage: &str) -> bool {
    matches!(stage, "LikeNew" | "Fairly" | "Greatly" | "IDOC")
}

fn house_of(house: usize) -> (String, &'static str) {
    let owner = Session::accounts().nth(house).expect("within");
    (format!("0x{:08X}", 0x4000_0101 + house), owner)
}

fn guild_name(guild: i64) -> &'static str {
    if guild == 7 {
        "The Silver Serpents"
    } else {
        "Order of the Anvil"
    }
}

/// The session of a seed, as NDJSON.
///
/// # Panics
/// Never: every table is as long as what it is asked for.
#[must_use]
pub fn session(seed: u64) -> String {
    let mut s = Session {
        rng: Rng::new(seed),
        now: BEGIN,
        seq: 0,
        boots: 0,
        frames: 0,
        out: String::new(),
        gold: 92_000_000,
        skill: Vec::new(),
    };
    // One has a skill just below its cap: it is reached in play.
    s.skill = (0..(LINKED.len() + OTHERS.len()) * SKILLS.len())
        .map(|i| {
            if i == 0 {
                997
            } else {
                300 + i64::try_from(i * 37 % 500).expect("small")
            }
        })
        .collect();
    s.boot();
    s.roster(7, &[0, 1, 2, 5, 6]);
    s.roster(9, &[3, 4, 7]);
    for city in ["Britain", "Vesper", "Trinsic"] {
        s.city(city, None, "None");
    }
    for vendor in 0..3 {
        s.vendor(vendor, 3.0);
    }
    s.until(120);
    // Saved in time: told once, and cancelled by the refresh.
    s.decay(0, ("Fairly", "Greatly"));
    s.until(210);
    s.decay(0, ("Greatly", "LikeNew"));
    // Not saved.
    s.decay(1, ("Fairly", "Greatly"));
    s.city("Britain", None, "Nomination");
    s.until(330);
    s.vendor(0, 2.0);
    s.city("Britain", None, "Voting");
    s.guild("guild.join", 7, 3);
    // Whose owner nobody links.
    s.decay(6, ("Fairly", "Greatly"));
    s.until(470);
    s.decay(1, ("Greatly", "IDOC"));
    s.vendor(0, 1.0);
    s.champion(0, true, false, 1);
    s.until(600);
    s.champion(0, true, true, 15);
    s.guild("guild.leave", 7, 2);
    s.roster(7, &[0, 1, 3, 5, 6]);
    s.vendor(0, 0.5);
    s.city("Britain", Some(2), "None");
    s.until(760);
    s.decay(1, ("IDOC", "Collapsed"));
    let (serial, owner) = house_of(1);
    s.say("house.remove", json!({"serial": serial, "ownerAcct": owner, "ownerName": owner, "name": format!("{owner}'s house"),
        "region": "Vesper", "map": "Felucca", "x": 2899, "y": 676}));
    s.champion(0, false, false, 0);
    s.vendor(0, 9.0);
    s.until(900);
    s.roster(7, &[0, 1, 3, 5]);
    s.say("account.unlinked", json!({"acct": "dara"}));
    s.staff();
    s.until(1_150);
    s.guild("guild.leave", 9, 7);
    s.say(
        "guild.remove",
        json!({"guildId": 9, "guildName": guild_name(9)}),
    );
    s.until(1_300);
    // Three starts in a minute.
    s.say(
        "server.shutdown",
        json!({"reason": "maintenance", "restart": true}),
    );
    for _ in 0..2 {
        s.pass(20);
        s.boot();
        s.pass(5);
        s.say(
            "server.crashed",
            json!({"exception": "NullReferenceException"}),
        );
    }
    s.pass(20);
    s.boot();
    s.roster(7, &[0, 1, 3, 5]);
    s.until(1_500);
    // As the next login of its owner leaves it.
    s.decay(6, ("Greatly", "Ageless"));
    s.city("Vesper", Some(4), "None");
    s.until(FRAMES);
    s.out
}
