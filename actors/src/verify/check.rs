//! The checks by name, what each asks, and what a difference means.

/// A family of questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Check {
    /// Outcomes add up to the records consumed, and those to the offsets passed.
    Consumed,
    /// Outcomes as counted are outcomes as facts show them.
    Outcomes,
    /// No record has two ends.
    Ends,
    /// Each identity is booked once.
    Identities,
    /// Conversions, their receipts and their history tell one story.
    Bookings,
    /// What waits, waits for a reason; what waited has ended.
    Parked,
    /// Dead letters are what the outcomes say.
    DeadLetters,
    /// Each open message is due once, each ended one is not.
    Outbox,
    /// Each ended message has the attempt that ended it.
    SendLog,
    /// Each claimed message can be found when its claim runs out.
    Leases,
    /// Each message has its cause, and causes have their messages.
    Causes,
    /// What was told to people has its keys and its firings, and went to whom it might, when it might.
    Gates,
    /// Positions are owned and within the log.
    Positions,
    /// Emitted records are numbered as they were given out.
    Emits,
    /// The Postgres log has no hole.
    Log,
}

impl Check {
    /// All, in the order in which they run.
    pub const ALL: [Check; 15] = [
        Check::Positions,
        Check::Consumed,
        Check::Outcomes,
        Check::Ends,
        Check::Identities,
        Check::Bookings,
        Check::Parked,
        Check::DeadLetters,
        Check::Outbox,
        Check::SendLog,
        Check::Leases,
        Check::Causes,
        Check::Gates,
        Check::Emits,
        Check::Log,
    ];

    /// The name by which it is asked for.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Check::Consumed => "consumed",
            Check::Outcomes => "outcomes",
            Check::Ends => "ends",
            Check::Identities => "identities",
            Check::Bookings => "bookings",
            Check::Parked => "parked",
            Check::DeadLetters => "dead-letters",
            Check::Outbox => "outbox",
            Check::SendLog => "send-log",
            Check::Leases => "leases",
            Check::Causes => "causes",
            Check::Gates => "gates",
            Check::Positions => "positions",
            Check::Emits => "emits",
            Check::Log => "log",
        }
    }

    /// The check of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Check> {
        Check::ALL.into_iter().find(|c| c.name() == name)
    }

    /// What must hold, in words.
    #[must_use]
    pub const fn question(self) -> &'static str {
        match self {
            Check::Consumed => "every consumed record has one outcome",
            Check::Outcomes => "outcomes of each kind are what the facts show",
            Check::Ends => "no record ended twice",
            Check::Identities => "each identity is booked once",
            Check::Bookings => "conversions, receipts and history agree",
            Check::Parked => "what waited has ended or still waits",
            Check::DeadLetters => "dead letters agree with receipts and replays",
            Check::Outbox => "every open message is due, once; no ended one is",
            Check::SendLog => "every end of a message stands in the send log",
            Check::Leases => "every claimed message can be given back",
            Check::Causes => "messages have their facts, facts their messages",
            Check::Gates => "what people were told has its keys and firings",
            Check::Positions => "positions are owned and within the log",
            Check::Emits => "emits are numbered as they were given out",
            Check::Log => "the Postgres log has no hole",
        }
    }

    /// What a difference means, and what to do.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Check::Consumed => {
                "Means: a partition's position and its counts were not moved together; two owners wrote at once, or the tables \
                 were changed by hand. Do: `millrace groups pause`, keep a copy of the database, report it with the lines above."
            }
            Check::Outcomes => {
                "Means: facts were written or removed without their count, or counted without being written. Do: keep a copy of \
                 the database; `ends` and `bookings` name the records where they can be told; a table restored or cleaned by \
                 hand is the usual reason."
            }
            Check::Ends => {
                "Means: a record was booked twice or counts under two outcomes. Do: `millrace dlq show RECORD` and `millrace \
                 trace CLICK` tell what became of it; keep both rows until it is understood."
            }
            Check::Identities => {
                "Means: one conversion, visit or click stands in the ledger twice, or an identity leads to nothing. Do: lay the \
                 named rows side by side, correct the report they go into, and restore the key or the row from a backup."
            }
            Check::Bookings => {
                "Means: a conversion lacks its receipt, or a receipt its conversion. Do: restore the missing row from a backup; \
                 what the postback said stands in postback_log.query."
            }
            Check::Parked => {
                "Means: a record that waited is gone without an end, or waits although it could be decided. Do: the record is \
                 still in the log if its retention allows; `millrace positions set --again` lets it be decided again."
            }
            Check::DeadLetters => {
                "Means: a record called dead has no letter, or a replayed one no new end. Do: restore the letter from a backup, \
                 then `millrace dlq replay RECORD`."
            }
            Check::Outbox => {
                "Means: an open message that is not due will never be sent; an ended one that is due will be sent again. Do: \
                 `millrace outbox show ID`; `millrace outbox cancel ID` or `release ID` puts one right."
            }
            Check::SendLog => {
                "Means: a message ended without a trace of the attempt, or a receiver that cannot tell got it twice. Do: ask the \
                 receiver for the id; `millrace outbox show ID` has what is known here."
            }
            Check::Leases => {
                "Means: a claimed message whose claim is not on record is never given back when its sender dies. Do: stop the \
                 delivery processes, then UPDATE outbox_due SET lease_token = NULL, lease_until = NULL for the named rows."
            }
            Check::Causes => {
                "Means: something was told that is not in the ledger, or a listener was not told of what is. Do: `millrace trace \
                 CLICK` lists facts and messages side by side."
            }
            Check::Gates => {
                "Means: a firing was decided without being noted, somebody may be told twice of one event, or was told again within \
                 a cooldown, outside an event's ceiling, or without finding it in the inbox. Do: `millrace rules explain` tells \
                 what the gates stored; keep a copy of the database, report it with the lines above."
            }
            Check::Positions => {
                "Means: a partition would read from where there is nothing. Do: `millrace positions list`, `millrace lag`; \
                 `millrace positions set --reason` puts one where it belongs."
            }
            Check::Emits => {
                "Means: a record for another topic was numbered out of turn; its receiver may drop it as seen. Do: \
                 `millrace groups pause`, keep a copy of the database, report it with the lines above."
            }
            Check::Log => {
                "Means: records are missing from the log's tables. Do: stop the processes and restore; what was consumed before \
                 is in the ledger."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        for check in Check::ALL {
            assert_eq!(Check::from_name(check.name()), Some(check));
            assert!(check.question().len() < 60 && check.advice().contains("Do: "));
        }
        assert_eq!(Check::from_name("nothing"), None);
    }
}
