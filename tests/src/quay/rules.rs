//! The rules of the workspace, one for each promise of the gates.

/// Messages of the rule with the narrow hour, at most.
pub const RARE: usize = 40;
/// How long the rule of storms waits, in seconds: longer than any run.
pub const DELAY_S: i64 = 3_600;
const DAY_S: i64 = 86_400;

/// A rule of the workspace.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its id.
    pub id: &'static str,
    /// What it tells of.
    pub trigger: &'static str,
    /// Whom.
    pub audience: &'static str,
    /// How.
    pub channels: &'static [&'static str],
    /// Seconds after the event.
    pub delay_s: i64,
    /// Seconds between two of one subject.
    pub cooldown_s: i64,
    /// Messages an hour.
    pub hourly_cap: i32,
    /// What calls it off.
    pub cancel_on: &'static [&'static str],
}

const PLAIN: Rule = Rule {
    id: "",
    trigger: "",
    audience: "owner",
    channels: &["inapp", "email"],
    delay_s: 0,
    cooldown_s: 0,
    hourly_cap: 1_000_000,
    cancel_on: &[],
};

/// All rules, all of them switched on.
pub const RULES: [Rule; 9] = [
    Rule {
        id: "qr_rung",
        trigger: "quay.bell.rung",
        channels: &["inapp", "email", "push"],
        ..PLAIN
    },
    // Wider than its trigger's ceiling: it may never tell anybody anything.
    Rule {
        id: "qr_wide",
        trigger: "quay.bell.rung",
        audience: "everyone",
        ..PLAIN
    },
    Rule {
        id: "qr_first",
        trigger: "quay.bell.first",
        channels: &["email"],
        cooldown_s: DAY_S,
        ..PLAIN
    },
    Rule {
        id: "qr_rare",
        trigger: "quay.bell.rare",
        channels: &["inapp"],
        hourly_cap: RARE as i32,
        ..PLAIN
    },
    Rule {
        id: "qr_storm",
        trigger: "quay.storm.seen",
        delay_s: DELAY_S,
        cancel_on: &["quay.storm.passed"],
        ..PLAIN
    },
    Rule {
        id: "qr_fire",
        trigger: "quay.fire.seen",
        audience: "staff",
        ..PLAIN
    },
    Rule {
        id: "qr_crew",
        trigger: "quay.crew.called",
        audience: "members",
        ..PLAIN
    },
    Rule {
        id: "qr_posted",
        trigger: "quay.notice.posted",
        audience: "authenticated",
        channels: &["inapp"],
        ..PLAIN
    },
    // Of a trigger that only the changed manifest has.
    Rule {
        id: "qr_tolled",
        trigger: "quay.bell.tolled",
        channels: &["inapp"],
        ..PLAIN
    },
];
