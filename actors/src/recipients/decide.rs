//! Gates 0 and 5 of a notice by what was read ([`first`]), gates 6 to 8 by what is remembered ([`last`]). Pure: no clock, no I/O.

use super::facts::{Facts, Person, RuleNow};
use super::keys;
use super::ledger::Ledger;
use super::preference;
use crate::delivery::outbox;
use crate::runtime::failpoint;
use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::ids::RecordId;
use millrace_schemas::notice::Notice;
use millrace_schemas::time::Micros;
use uuid::Uuid;

/// Why a gate refused: a name from a closed list.
pub mod why {
    /// Gate 0: a later firing called it off.
    pub const CALLED_OFF: &str = "called_off";
    /// Gate 1: the rule is gone.
    pub const RULE_GONE: &str = "rule_gone";
    /// Gate 1: the rule was switched off.
    pub const RULE_OFF: &str = "rule_off";
    /// Gate 3: the user is not in the directory or not active.
    pub const INACTIVE: &str = "user_inactive";
    /// Gate 4: the user is not within the ceiling any more.
    pub const CEILING: &str = "ceiling";
    /// Gate 5: the channel is not configured.
    pub const UNCONFIGURED: &str = "channel_unconfigured";
    /// Gate 5: the rule does not use the channel any more.
    pub const NOT_BY_RULE: &str = "channel_not_in_rule";
    /// Gate 5: the user's preference, or the default, is off.
    pub const OFF: &str = "preference_off";
    /// Gate 5: it comes in a digest.
    pub const DIGEST: &str = "preference_digest";
    /// Gate 5: the trigger does not allow to be told at once.
    pub const NEVER_INSTANT: &str = "never_instant";
    /// Gate 5: it will be older than its trigger's bound when it is due.
    pub const STALE: &str = "stale";
    /// Gate 5: there is no address.
    pub const NO_ADDRESS: &str = "no_address";
    /// Gate 5: the address is not verified.
    pub const UNVERIFIED: &str = "unverified";
    /// Gate 5: the address is suppressed; it bounced, or an operator says so.
    pub const SUPPRESSED: &str = "address_suppressed";
    /// Gate 5: there is no device.
    pub const NO_DEVICE: &str = "no_device";
    /// Gate 6: the rule's rolling hour is full.
    pub const HOURLY_CAP: &str = "hourly_cap";
    /// Gate 7: the same subject was told within the cooldown.
    pub const COOLDOWN: &str = "cooldown";
    /// Gate 8: the same event was told already.
    pub const TOLD_ALREADY: &str = "told_already";
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which of the notice's rules.
    pub rule: usize,
    /// Which channel.
    pub channel: Channel,
    /// Which gate.
    pub gate: i16,
    /// Why.
    pub reason: &'static str,
}

/// A message that has passed gates 0 to 5.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which of the notice's rules.
    pub rule: usize,
    /// On which channel.
    pub channel: Channel,
    /// To which destination.
    pub destination: i32,
    /// Key of its mark.
    pub cancel: Uuid,
    /// Key of the rule's hour.
    pub hour: Uuid,
    /// Messages of that hour at most.
    pub cap: i64,
    /// Key of its cooldown; none: the rule has none.
    pub cooldown: Option<Uuid>,
    /// The cooldown in seconds.
    pub cooldown_s: i64,
    /// Key of what was sent.
    pub sent: Uuid,
    /// Seconds after the event.
    pub delay_s: i64,
}

/// A message that passed all gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Its id.
    pub id: Uuid,
    /// What was wanted.
    pub wanted: Wanted,
    /// When it is due.
    pub due_at: Micros,
    /// The message that must have ended before.
    pub after: Option<Uuid>,
}

/// Gates 0 to 5, for each rule in rule order and each channel in the order in which they go out. Gates 1, 3 and 4 were passed when
/// the notice was emitted; what may have changed since is asked again.
pub fn first(facts: &Facts, notice: &Notice, wanted: &mut Vec<Wanted>, refused: &mut Vec<Refusal>) {
    let pos = RecordId::from(notice.firing_pos).to_uuid();
    let person = facts.person(notice.ws, &notice.user);
    for (at, rule) in notice.rules.iter().enumerate() {
        let now = facts.rules.get(&*rule.id).filter(|now| now.ws == notice.ws);
        let cancel = keys::cancel(notice.ws, &rule.id, &notice.shard, &notice.subject);
        let called_off = facts.is_called_off(cancel, pos);
        let hour = keys::hour(notice.ws, &rule.id);
        for channel in Channel::ALL {
            if !rule.channels.contains(&channel) {
                continue;
            }
            let mut refuse = |(gate, reason)| {
                refused.push(Refusal {
                    rule: at,
                    channel,
                    gate,
                    reason,
                });
            };
            if called_off {
                refuse((0, why::CALLED_OFF));
                continue;
            }
            match gates_to_5(facts, notice, now, person, channel) {
                Err(refusal) => refuse(refusal),
                Ok((now, destination)) => wanted.push(Wanted {
                    rule: at,
                    channel,
                    destination,
                    cancel,
                    hour,
                    cap: now.hourly_cap,
                    cooldown: (now.cooldown_s > 0).then(|| {
                        keys::cooldown(
                            notice.ws,
                            &rule.id,
                            &notice.user,
                            &notice.shard,
                            &notice.subject,
                            channel,
                        )
                    }),
                    cooldown_s: now.cooldown_s,
                    sent: keys::sent(
                        notice.ws,
                        &rule.id,
                        &notice.user,
                        channel,
                        &notice.dedupe_key,
                    ),
                    delay_s: now.delay_s,
                }),
            }
        }
    }
}

fn gates_to_5<'a>(
    facts: &Facts,
    notice: &Notice,
    rule: Option<&'a RuleNow>,
    person: Option<&Person>,
    channel: Channel,
) -> Result<(&'a RuleNow, i32), (i16, &'static str)> {
    let rule = rule.ok_or((1, why::RULE_GONE))?;
    if !rule.enabled {
        return Err((1, why::RULE_OFF));
    }
    let person = person.filter(|p| p.active).ok_or((3, why::INACTIVE))?;
    if !person.is_within(notice.ceiling, &notice.trigger) {
        return Err((4, why::CEILING));
    }
    let place = facts.places.get(&notice.ws).ok_or((5, why::UNCONFIGURED))?;
    let destination = place.destination(channel).ok_or((5, why::UNCONFIGURED))?;
    if !rule.channels.contains(&channel) {
        return Err((5, why::NOT_BY_RULE));
    }
    let default = notice.default_modes.get(&channel).copied();
    let mode = preference::mode(
        &person.said,
        &notice.trigger,
        &notice.scope,
        channel,
        default,
    );
    match mode {
        Mode::Off => return Err((5, why::OFF)),
        Mode::Digest => return Err((5, why::DIGEST)),
        Mode::Instant if !notice.modes.is_empty() && !notice.modes.contains(&Mode::Instant) => {
            return Err((5, why::NEVER_INSTANT));
        }
        Mode::Instant => {}
    }
    eligible(person, place.verified_only, channel).map_err(|reason| (5, reason))?;
    Ok((rule, destination))
}

/// Whether a channel can reach the user at all.
///
/// # Errors
/// Why it cannot.
pub fn eligible(
    person: &Person,
    verified_only: bool,
    channel: Channel,
) -> Result<(), &'static str> {
    match channel {
        Channel::Inapp => Ok(()),
        Channel::Email if !person.has_email => Err(why::NO_ADDRESS),
        Channel::Email if verified_only && !person.verified => Err(why::UNVERIFIED),
        // It would be held back right before it left, and until then claim a cooldown and a place in the rule's hour. An address
        // that is suppressed while a message waits is asked for there, as ever.
        Channel::Email if person.suppressed => Err(why::SUPPRESSED),
        Channel::Email => Ok(()),
        Channel::Push if !person.has_device => Err(why::NO_DEVICE),
        Channel::Push => Ok(()),
    }
}

/// When a notice is decided.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The notice's own coordinates.
    pub cause: RecordId,
    /// Stream time: the greatest acceptance so far.
    pub stream: Micros,
    /// The wall clock.
    pub wall: Micros,
}

/// Gates 6 to 8, in the order in which messages were wanted.
///
/// What a message claims here it keeps (spec: engagement § The gates, in this order: a claim is given back where gate 7 or 8 refuses, and
/// nowhere else). One that is asked about again right before it would leave and ends there, as `called_off`, `rule_off`, `stale`,
/// `ceiling` or `preference`, keeps its cooldown, its place in the rule's hour and its sent key: the claims are this partition's own,
/// held hot, and whoever sends is another process; and a subject that calls its own messages off every few minutes would otherwise
/// have no cooldown at all. `rules explain` says so of whatever such a cooldown refuses.
pub fn last(
    ledger: &mut Ledger,
    notice: &Notice,
    wanted: &[Wanted],
    stamp: Stamp,
    passed: &mut Vec<Passed>,
    refused: &mut Vec<Refusal>,
) {
    let begin = stamp.stream.max(stamp.wall);
    // In-app comes first of the channels: a push of the same rule refers to it.
    let mut inapp: Option<(usize, Uuid)> = None;
    for w in wanted {
        // What is too old by the time it is due must not cool down what is not.
        let stale = notice
            .max_age_s
            .is_some_and(|age| notice.at.plus_secs(age) < stamp.wall.plus_secs(w.delay_s));
        let refusal = if stale {
            Some((5, why::STALE))
        } else if !ledger.has_room(w.hour, stamp.wall, w.cap) {
            Some((6, why::HOURLY_CAP))
        } else if w
            .cooldown
            .is_some_and(|key| !ledger.has_cooled(key, stamp.stream, w.cooldown_s))
            && !failpoint::sabotaged("cooldown")
        {
            Some((7, why::COOLDOWN))
        } else if ledger.was_sent(w.sent) {
            Some((8, why::TOLD_ALREADY))
        } else {
            None
        };
        if let Some((gate, reason)) = refusal {
            refused.push(Refusal {
                rule: w.rule,
                channel: w.channel,
                gate,
                reason,
            });
            continue;
        }
        let rule = notice.rules.get(w.rule).map_or("", |r| &*r.id);
        let id = outbox::id_of(
            stamp.stream,
            stamp.cause,
            w.channel.word(),
            w.destination,
            rule,
        );
        ledger.claim(w.hour, w.cooldown, w.sent, id, stamp.stream);
        if w.channel == Channel::Inapp {
            inapp = Some((w.rule, id));
        }
        passed.push(Passed {
            id,
            due_at: begin.plus_secs(w.delay_s),
            after: inapp
                .filter(|(rule, _)| *rule == w.rule && w.channel == Channel::Push)
                .map(|(_, id)| id),
            wanted: w.clone(),
        });
    }
}
