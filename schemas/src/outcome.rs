//! The one outcome of a record, and the named reasons.

use serde::{Deserialize, Serialize};

/// What became of a record. Each accepted record ends in exactly one; `parked` later becomes one of the others.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[repr(i16)]
pub enum Outcome {
    /// Its effects stand in the ledger.
    Applied = 0,
    /// Known already; nothing changed.
    Duplicate = 1,
    /// Waits for its visit.
    Parked = 2,
    /// Can never be booked; the reason says why, the original is kept.
    Rejected = 3,
    /// Could not be processed, or waited too long; kept whole and can be replayed.
    DeadLettered = 4,
}

impl Outcome {
    /// All outcomes, in the order of their stored numbers.
    pub const ALL: [Outcome; 5] = [
        Outcome::Applied,
        Outcome::Duplicate,
        Outcome::Parked,
        Outcome::Rejected,
        Outcome::DeadLettered,
    ];

    /// The stored number.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The name in metrics, tables and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Applied => "applied",
            Outcome::Duplicate => "duplicate",
            Outcome::Parked => "parked",
            Outcome::Rejected => "rejected",
            Outcome::DeadLettered => "dead_lettered",
        }
    }

    /// The outcome of a stored number.
    #[must_use]
    pub const fn from_code(code: i16) -> Option<Outcome> {
        match code {
            0 => Some(Outcome::Applied),
            1 => Some(Outcome::Duplicate),
            2 => Some(Outcome::Parked),
            3 => Some(Outcome::Rejected),
            4 => Some(Outcome::DeadLettered),
            _ => None,
        }
    }
}

/// Named reason codes. The empty string is "no more to say".
pub mod reason {
    /// No further reason.
    pub const NONE: &str = "";
    /// No click id under any alias.
    pub const CLICK_ID_MISSING: &str = "click_id_missing";
    /// The click id is empty, too long, or holds control characters.
    pub const CLICK_ID_MALFORMED: &str = "click_id_malformed";
    /// The click id claims to have been minted more than five minutes ahead of its acceptance.
    pub const CLICK_ID_IN_FUTURE: &str = "click_id_in_future";
    /// Two names of one field differ.
    pub const ALIAS_CONFLICT: &str = "alias_conflict";
    /// The payout is no decimal number of at most 18 digits, or its form is not allowed for the network.
    pub const PAYOUT_MALFORMED: &str = "payout_malformed";
    /// A macro of the sender's was left as it stands.
    pub const MACRO_UNSUBSTITUTED: &str = "macro_unsubstituted";
    /// An explicit provider event id is not 1–20 digits.
    pub const PROVIDER_EVENT_MALFORMED: &str = "provider_event_malformed";
    /// A field is longer than the ledger keeps, or holds control characters.
    pub const FIELD_MALFORMED: &str = "field_malformed";
    /// The click names another campaign than its visit.
    pub const CAMPAIGN_MISMATCH: &str = "campaign_mismatch";
    /// A visit without a served journey.
    pub const JOURNEY_MALFORMED: &str = "journey_malformed";
    /// The visit or click did not come within `park_for`.
    pub const JOURNEY_UNKNOWN: &str = "journey_unknown";
    /// The identity is booked; the status it brings cannot apply.
    pub const STATUS_CONFLICT: &str = "status_conflict";
    /// The identity is booked; its status moved.
    pub const STATUS_CHANGED: &str = "status_changed";
    /// A provider click that no served sidecar matches, or more than one.
    pub const PROVIDER_CLICK_UNMATCHED: &str = "provider_click_unmatched";
    /// A provider click noted for later correlation.
    pub const PROVIDER_CLICK: &str = "provider_click";
    /// The user's id is empty, too long, or holds control characters.
    pub const USER_ID_MALFORMED: &str = "user_id_malformed";
    /// A login of a user whom nobody told of.
    pub const USER_UNKNOWN: &str = "user_unknown";
    /// The address is none.
    pub const EMAIL_MALFORMED: &str = "email_malformed";
    /// Another user of the workspace has the address, case folded.
    pub const EMAIL_TAKEN: &str = "email_taken";
    /// A newer record about the same has been applied.
    pub const SUPERSEDED: &str = "superseded";
    /// The workspace is unknown.
    pub const WORKSPACE_UNKNOWN: &str = "workspace_unknown";
    /// A notice of which the gates let nothing through.
    pub const HELD_BACK: &str = "held_back";
    /// A firing that reaches nobody.
    pub const NOBODY: &str = "nobody";
    /// A firing of a trigger that no enabled module declares.
    pub const TRIGGER_UNKNOWN: &str = "trigger_unknown";
    /// A firing from outside of a trigger that a clock alone fires.
    pub const TRIGGER_SCHEDULED: &str = "trigger_scheduled";
    /// A firing that names another module than its trigger's.
    pub const MODULE_MISMATCH: &str = "module_mismatch";
    /// A firing whose ceiling is incomparable with its trigger's.
    pub const CEILING_INCOMPARABLE: &str = "ceiling_incomparable";
    /// A firing whose subject is not what its variables say.
    pub const SUBJECT_MISMATCH: &str = "subject_mismatch";
    /// A frame of a kind that no enabled module maps: counted, kept for nothing.
    pub const UNMAPPED: &str = "unmapped";
    /// A frame that was set aside and comes again after later ones of its key, or of its shard where a state is not of one key: what
    /// compares with what was before, and rosters, pass it by; the rest of it is taken in.
    pub const OVERTAKEN: &str = "overtaken";
    /// A frame with a value that no mapping can hold: nested too deep, or a number beyond all range.
    pub const FRAME_UNREADABLE: &str = "frame_unreadable";
    /// A firing that is longer than the log takes.
    pub const FIRING_TOO_LARGE: &str = "firing_too_large";
    /// The bytes are no record of this topic.
    pub const UNDECODABLE: &str = "undecodable";
    /// The decision panicked on it.
    pub const PANICKED: &str = "panicked";
    /// The store refuses its data.
    pub const DATA_REFUSED: &str = "data_refused";
}
