//! Gates 1 to 4 of a firing, of gate 5 what needs no user, and the notices that are left. Pure: no clock, no I/O.

use super::declared::vars_of;
use super::rules::Rule;
use crate::directory::audience::{Reached, Unreached};
use crate::directory::conditions;
use crate::modules::Modules;
use crate::modules::module::Trigger;
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::firing::Firing;
use millrace_schemas::notice::{Elsewhere, FiringPos, Notice, NoticeRule};
use millrace_schemas::notification::project;
use std::collections::{BTreeMap, HashSet};

/// Why a gate refused: a name from a closed list.
pub mod why {
    /// Gate 1: the rule is switched off.
    pub const RULE_OFF: &str = "rule_off";
    /// Gate 1: it names a channel that there is not, or none that this trigger can have.
    pub const DORMANT: &str = "rule_dormant";
    /// Gate 2: its conditions do not hold, or cannot be read.
    pub const CONDITIONS: &str = "conditions";
    /// Gate 3: nobody declares its audience, or its segment is gone.
    pub const AUDIENCE_UNKNOWN: &str = "audience_unknown";
    /// Gate 3: the audience is empty; `no_owner` and `no_list` say why, where that is known.
    pub const NOBODY: &str = "nobody";
    /// Gate 3: with the rules before it the firing would reach more users than one may at once.
    pub const TOO_MANY: &str = "too_many";
    /// Gate 4: the audience is not within the ceiling.
    pub const CEILING: &str = "ceiling";
    /// Gate 5: none of its channels is configured.
    pub use crate::recipients::decide::why::UNCONFIGURED;
}

/// What a gate said of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Which of the trigger's rules.
    pub rule: usize,
    /// The gate that refused; 0: none.
    pub gate: i16,
    /// Why; empty: it passed.
    pub reason: &'static str,
    /// How many users it reaches.
    pub reached: usize,
    /// There were more.
    pub capped: bool,
}

impl Said {
    const fn refused(rule: usize, gate: i16, reason: &'static str) -> Said {
        Said {
            rule,
            gate,
            reason,
            reached: 0,
            capped: false,
        }
    }
}

/// The channels of a rule that its trigger can have: one without a stream has no push.
#[must_use]
pub fn channels(modules: &Modules, trigger: &Trigger, rule: &Rule) -> Vec<Channel> {
    let has_stream = modules.stream(&trigger.id).is_some();
    let can = |c: &Channel| *c != Channel::Push || has_stream;
    rule.channels.iter().copied().filter(can).collect()
}

/// Gates 1 and 2.
///
/// # Errors
/// Gate and reason.
pub fn gates_1_and_2(
    modules: &Modules,
    trigger: &Trigger,
    rule: &Rule,
    firing: &Firing,
) -> Result<(), (i16, &'static str)> {
    if !rule.enabled {
        return Err((1, why::RULE_OFF));
    }
    if rule.unknown_channel || channels(modules, trigger, rule).is_empty() {
        return Err((1, why::DORMANT));
    }
    if !conditions::hold(rule.stored.conditions.as_ref(), &|name| {
        firing.vars.get(name)
    }) {
        return Err((2, why::CONDITIONS));
    }
    Ok(())
}

/// Gate 4: containment, asked again whenever something fires. An audience without a ceiling is within none.
///
/// # Errors
/// Gate and reason.
pub fn gate_4(ceiling: Ceiling, audience: Ceiling) -> Result<(), (i16, &'static str)> {
    if ceiling.permits(audience) {
        Ok(())
    } else {
        Err((4, why::CEILING))
    }
}

/// Gate 5, as far as it is asked before users are resolved (spec: engagement § The gates, in this order): a rule none of whose
/// channels is configured reaches nobody. Where one is, the others are refused to each user.
///
/// # Errors
/// Gate and reason.
pub fn gate_5(
    channels: &[Channel],
    is_configured: impl Fn(Channel) -> bool,
) -> Result<(), (i16, &'static str)> {
    if channels.iter().any(|c| is_configured(*c)) {
        Ok(())
    } else {
        Err((5, why::UNCONFIGURED))
    }
}

/// What the gates said of a rule so far: refused, or passed on to these users.
#[derive(Clone, Debug)]
pub enum Gate {
    /// Refused.
    Refused(i16, &'static str),
    /// Resolved.
    Open(Reached),
}

/// A firing's end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What was said of each rule, in rule order.
    pub said: Vec<Said>,
    /// Users, and which rules want them told.
    pub users: Vec<(String, Vec<usize>)>,
}

/// Puts together what the gates said of a firing's rules. `most`: users that it may reach by all of them together; a rule that would
/// bring more is refused as a whole.
#[must_use]
pub fn verdict(gates: &[Gate], most: usize) -> Verdict {
    let mut verdict = Verdict::default();
    let mut by_user: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, gate) in gates.iter().enumerate() {
        verdict.said.push(match gate {
            Gate::Refused(gate, reason) => Said::refused(at, *gate, reason),
            Gate::Open(reached) if reached.users.is_empty() => {
                let reason = reached.reason.map_or(why::NOBODY, Unreached::word);
                Said::refused(at, 3, reason)
            }
            Gate::Open(reached) if more(&by_user, &reached.users) > most => {
                Said::refused(at, 3, why::TOO_MANY)
            }
            Gate::Open(reached) => {
                for user in reached.users.iter() {
                    by_user.entry(user).or_default().push(at);
                }
                Said {
                    rule: at,
                    gate: 0,
                    reason: "",
                    reached: reached.users.len(),
                    capped: reached.capped,
                }
            }
        });
    }
    let users = by_user.into_iter();
    verdict.users = users.map(|(user, by)| (user.to_owned(), by)).collect();
    verdict
}

/// How many users there are with these.
fn more(by_user: &BTreeMap<&str, Vec<usize>>, users: &[String]) -> usize {
    let new = users.iter().filter(|u| !by_user.contains_key(u.as_str()));
    by_user.len() + new.count()
}

/// The notices of a firing, serialised, each with its key in the log.
#[must_use]
pub fn notices(
    modules: &Modules,
    trigger: &Trigger,
    ceiling: Ceiling,
    rules: &[Rule],
    firing: &Firing,
    pos: FiringPos,
    verdict: &Verdict,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    if verdict.users.is_empty() {
        return Vec::new();
    }
    let wire: Vec<NoticeRule> = rules
        .iter()
        .map(|rule| NoticeRule {
            id: rule.id.clone(),
            version: rule.version,
            channels: channels(modules, trigger, rule),
            delay_s: rule.delay_s,
            cooldown_s: rule.cooldown_s,
            hourly_cap: rule.hourly_cap,
        })
        .collect();
    let mut notice = Notice {
        v: millrace_schemas::WIRE_VERSION,
        ws: firing.ws,
        user: String::new(),
        firing: firing.id.clone(),
        firing_pos: pos,
        trigger: firing.trigger.clone(),
        module: firing.module.clone(),
        shard: firing.shard.clone(),
        subject: firing.subject.clone(),
        scope: firing.scope.clone(),
        dedupe_key: format!("{}:{}", firing.trigger, firing.dedupe),
        vars: Elsewhere::default(),
        body: body(trigger, firing),
        at: firing.at,
        accepted_at: firing.accepted_at,
        max_age_s: trigger.max_age_s.and_then(|s| i64::try_from(s).ok()),
        default_modes: default_modes(trigger),
        modes: if trigger.allows(Mode::Instant) {
            Vec::new()
        } else {
            trigger.modes.clone()
        },
        rules: Vec::new(),
        ceiling,
        linked_by: None,
        emit: None,
        replay: None,
    };
    let links = Links::of(ceiling, firing);
    let mut out = Vec::with_capacity(verdict.users.len());
    for (user, by) in &verdict.users {
        notice.user.clear();
        notice.user.push_str(user);
        notice.linked_by = links.of_user(user).map(str::to_owned);
        notice.rules.clear();
        let of = by.iter().filter_map(|at| wire.get(*at));
        notice.rules.extend(of.cloned());
        if let Ok(payload) = serde_json::to_vec(&notice) {
            out.push((notice.log_key().into_bytes(), payload));
        }
    }
    out
}

/// The links by which users are within a ceiling: of the owner and of members, where the firing found them so. Whoever leaves an
/// account behind is neither any more.
enum Links<'a> {
    None,
    Owner { user: &'a str, account: &'a str },
    Members(HashSet<&'a str>),
}

impl<'a> Links<'a> {
    fn of(ceiling: Ceiling, firing: &'a Firing) -> Links<'a> {
        match (ceiling, &firing.owner, &firing.account, &firing.recipients) {
            (Ceiling::Owner, Some(user), Some(account), _) => Links::Owner { user, account },
            (Ceiling::Members, _, _, Some(users)) if firing.by_links => {
                Links::Members(users.iter().map(String::as_str).collect())
            }
            _ => Links::None,
        }
    }

    /// The account; empty: any of the shard.
    fn of_user(&self, of: &str) -> Option<&'a str> {
        match self {
            Links::Owner { user, account } if *user == of => Some(*account),
            Links::Members(users) if users.contains(of) => Some(""),
            Links::None | Links::Owner { .. } | Links::Members(_) => None,
        }
    }
}

/// What a generic message says of a firing.
fn body(trigger: &Trigger, firing: &Firing) -> millrace_schemas::notification::GenericBody {
    let urls: Vec<&str> = trigger
        .variables
        .iter()
        .filter(|v| v.of == crate::modules::variable::VariableType::Url)
        .map(|v| &*v.name)
        .collect();
    project(
        &trigger.label,
        &trigger.description,
        &urls,
        &vars_of(firing),
    )
    .bounded()
}

/// The trigger's own defaults, where they are not the channels'.
fn default_modes(trigger: &Trigger) -> BTreeMap<Channel, Mode> {
    let own = Channel::ALL
        .into_iter()
        .map(|c| (c, trigger.default_mode(c)));
    own.filter(|(c, mode)| *mode != c.default_mode()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_none_of_whose_channels_is_configured_is_off() {
        let configured = |c: Channel| c == Channel::Email;
        assert_eq!(gate_5(&[Channel::Email, Channel::Push], configured), Ok(()));
        let off = Err((5, "channel_unconfigured"));
        assert_eq!(gate_5(&[Channel::Inapp, Channel::Push], configured), off);
    }

    #[test]
    fn the_rule_that_would_reach_too_many_is_refused_and_those_behind_it_are_asked_still() {
        let reach = |users: &[&str]| {
            Gate::Open(Reached {
                users: users.iter().map(|u| (*u).to_owned()).collect(),
                ..Reached::default()
            })
        };
        let gates = [
            reach(&["a", "b"]),
            reach(&["b", "c", "d"]),
            Gate::Refused(1, why::RULE_OFF),
            reach(&["a", "c"]),
        ];
        let said = |most| {
            let verdict = verdict(&gates, most);
            let reasons: Vec<&str> = verdict.said.iter().map(|s| s.reason).collect();
            (reasons, verdict.users.len())
        };
        assert_eq!(said(4), (vec!["", "", "rule_off", ""], 4));
        assert_eq!(said(3), (vec!["", why::TOO_MANY, "rule_off", ""], 3));
    }
}
