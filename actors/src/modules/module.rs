//! A module in its compiled form: ids resolved to places, paths and expressions parsed, every rule of the loader held.

use super::field::{Path, Reader};
use super::mapping::{Mapping, Unfit};
use super::tracker::RosterEvent;
use super::variable::Variable;
use hashbrown::HashMap;
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use serde_json::{Map, Value};

/// One module.
#[derive(Debug)]
pub struct Module {
    /// Its id.
    pub id: Box<str>,
    /// For people.
    pub label: Box<str>,
    /// For people.
    pub description: Box<str>,
    /// The version of its shards' protocol.
    pub protocol: u32,
    /// Every kind of frame that it reads.
    pub kinds: HashMap<Box<str>, Kind>,
    /// What it fires.
    pub triggers: Vec<Trigger>,
    /// What may be pushed.
    pub streams: Vec<Stream>,
    /// Lists of accounts.
    pub rosters: Vec<Roster>,
    /// Sets of people.
    pub audiences: Vec<Audience>,
    /// From frames to triggers, in the manifest's order.
    pub mappings: Vec<Mapping>,
    /// Keys of message bodies.
    pub templates: Vec<Template>,
    /// Rules that a workspace begins with.
    pub rule_groups: Vec<RuleGroup>,
}

/// One kind of frame.
#[derive(Debug, Clone)]
pub struct Kind {
    /// As the shard spells it.
    pub name: Box<str>,
    /// What partitions its frames; `None`: the shard as a whole.
    pub key: Option<Path>,
    /// Reads the key out of a body.
    pub key_reader: Reader,
    /// What reads it, in [`Module::mappings`].
    pub mappings: Vec<usize>,
    /// Which rosters it changes: roster in [`Module::rosters`], feed in [`Roster::feeds`].
    pub feeds: Vec<(usize, usize)>,
    /// Reads what those need before anything fires.
    pub reader: Reader,
}

/// Whether a trigger is fired by what happens or by what did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TriggerKind {
    /// Fired by frames and events.
    Event,
    /// Fired by an evaluator with a clock; a firing from outside is refused.
    Scheduled,
}

/// One trigger: a contract of what its firings say and whom they may reach.
#[derive(Debug)]
pub struct Trigger {
    /// Its id.
    pub id: Box<str>,
    /// The module that owns it.
    pub module: Box<str>,
    /// For people.
    pub label: Box<str>,
    /// For people.
    pub description: Box<str>,
    /// What fires it.
    pub kind: TriggerKind,
    /// The variable that names what it is about, in [`Trigger::variables`].
    pub subject: usize,
    /// The audience that a rule begins with.
    pub audience: Ceiling,
    /// The widest audience that a rule may ever have.
    pub ceiling: Ceiling,
    /// Raised when a variable is renamed or changes its type.
    pub version: u32,
    /// How old a firing may be when it is sent, in seconds.
    pub max_age_s: Option<u64>,
    /// What holds where nobody said otherwise, for the channels that it names.
    pub default_modes: Vec<(Channel, Mode)>,
    /// Which modes may be chosen.
    pub modes: Vec<Mode>,
    /// What every firing says.
    pub variables: Vec<Variable>,
}

/// What may be pushed.
#[derive(Debug)]
pub struct Stream {
    /// In the one namespace of streams and triggers; a trigger of the same id may be pushed.
    pub id: Box<str>,
    /// For people.
    pub label: Box<str>,
    /// For people.
    pub description: Box<str>,
    /// Only for the person whom it is about.
    pub personal: bool,
    /// Makes no sense without a linked account.
    pub requires_linked_account: bool,
}

/// A list of accounts a shard, or one a shard and parameter.
#[derive(Debug)]
pub struct Roster {
    /// Its id.
    pub id: Box<str>,
    /// Whether there is one list a frame's key; `false`: one a shard, and the parameter is ''.
    pub keyed: bool,
    /// What the parameter is called.
    pub param: Option<Box<str>>,
    /// What changes it.
    pub feeds: Vec<RosterFeed>,
}

/// How one kind of frame changes a roster.
#[derive(Debug)]
pub struct RosterFeed {
    /// The kind.
    pub frame: Box<str>,
    /// How.
    pub change: RosterChange,
}

/// A change of a roster. A slot is what the roster knows somebody by.
#[derive(Debug)]
pub enum RosterChange {
    /// The frame lists all.
    Replace {
        /// Where the list stands.
        members: Path,
        /// The account, within one member.
        account: Path,
        /// The slot, within one member; `None`: the account.
        slot: Option<Path>,
    },
    /// One more.
    Add {
        /// The account.
        account: Path,
        /// The slot; `None`: the account.
        slot: Option<Path>,
    },
    /// One less.
    Remove {
        /// The slot, or the account where the roster knows by that.
        slot: Path,
    },
    /// The frame's key is a seat that one account holds; no account: the seat is empty.
    Seat {
        /// The account.
        account: Path,
    },
    /// The list is gone.
    Clear,
}

/// Who answers an audience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AudienceSource {
    /// A roster, in [`Module::rosters`].
    Roster(usize),
    /// Everybody with a linked account of this module's shards.
    Linked,
}

/// A set of people that an operator may point a rule or a segment at.
#[derive(Debug)]
pub struct Audience {
    /// In the audiences' own space.
    pub id: Box<str>,
    /// For people.
    pub label: Box<str>,
    /// For people.
    pub description: Box<str>,
    /// The widest set that it can ever be.
    pub ceiling: Ceiling,
    /// Who answers it.
    pub source: AudienceSource,
    /// What an operator fills in.
    pub params: Vec<Param>,
}

/// A parameter of an audience.
#[derive(Debug)]
pub struct Param {
    /// Its name.
    pub id: Box<str>,
    /// `true`: a whole number; `false`: text.
    pub int: bool,
    /// Whether it must be there.
    pub required: bool,
}

/// The key of a message body.
#[derive(Debug)]
pub struct Template {
    /// The key.
    pub key: Box<str>,
    /// The channel it is for.
    pub channel: Channel,
    /// The trigger whose variables it may use, in [`Module::triggers`].
    pub trigger: usize,
    /// Raised when the shipped body is bettered.
    pub seed_version: u32,
}

/// Rules that are seeded together, once a workspace.
#[derive(Debug)]
pub struct RuleGroup {
    /// Its id.
    pub id: Box<str>,
    /// The rules, in order. All of them begin disabled.
    pub rules: Vec<SeededRule>,
}

/// A rule that a workspace begins with, disabled.
#[derive(Debug)]
pub struct SeededRule {
    /// Unique among all seeded rules.
    pub id: Box<str>,
    /// For people.
    pub label: Box<str>,
    /// For people.
    pub description: Box<str>,
    /// The trigger's id.
    pub trigger: Box<str>,
    /// By which channels, in the order in which they go out.
    pub channels: Vec<Channel>,
    /// Whom.
    pub audience: Ceiling,
    /// A tree over the trigger's variables, as the rules' API takes it.
    pub conditions: Option<Value>,
    /// How long a message waits, in seconds.
    pub delay_s: u32,
    /// How long one person is not told again of one subject on one channel, in seconds.
    pub cooldown_s: u32,
    /// How many messages an hour at most.
    pub hourly_cap: u32,
    /// Ids of triggers that cancel what still waits.
    pub cancel_on: Vec<Box<str>>,
    /// Template keys by channel's word, and by `digest`.
    pub template_keys: Vec<(Box<str>, Box<str>)>,
}

impl Module {
    /// The kind of that name; `None`: its frames are counted and kept for nothing.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<&Kind> {
        self.kinds.get(name)
    }

    /// The trigger of that id.
    #[must_use]
    pub fn trigger(&self, id: &str) -> Option<&Trigger> {
        self.triggers.iter().find(|t| &*t.id == id)
    }

    /// The trigger that a mapping fires.
    #[must_use]
    pub fn fires(&self, mapping: &Mapping) -> Option<&Trigger> {
        self.triggers.get(mapping.trigger)
    }

    /// Whether mappings wait for that change of that roster, on this kind of frame.
    #[must_use]
    pub fn watches(&self, kind: &Kind, roster: usize, wanted: RosterEvent) -> bool {
        let of = |m: &usize| self.mappings.get(*m);
        kind.mappings.iter().filter_map(of).any(|m| {
            matches!(m.tracker, super::Tracker::Roster { roster: r, event } if r == roster && event == wanted)
        })
    }
}

impl Kind {
    /// The partition key of a frame of this kind, as text; `None`: the key's value is not there, or no text and no number.
    /// A kind without a key path is partitioned by the shard's id.
    ///
    /// # Errors
    /// The body is no JSON.
    pub fn key_of(&self, shard: &str, body: &str) -> Result<Option<String>, serde_json::Error> {
        use super::field::{Fields, as_key};
        let Some(path) = &self.key else {
            return Ok(Some(shard.to_owned()));
        };
        let seen = self.key_reader.read(body)?;
        Ok(seen
            .field(path)
            .and_then(as_key)
            .map(std::borrow::Cow::into_owned))
    }
}

impl Trigger {
    /// The variable of that name.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&Variable> {
        self.variables.iter().find(|v| &*v.name == name)
    }

    /// The name of the variable that names what it is about.
    #[must_use]
    pub fn subject_key(&self) -> &str {
        self.variables.get(self.subject).map_or("", |v| &v.name)
    }

    /// What holds on that channel where nobody said otherwise: what the trigger names, else the channel's own default, else
    /// (where that may not be chosen) off.
    #[must_use]
    pub fn default_mode(&self, channel: Channel) -> Mode {
        let named = self.default_modes.iter().find(|(c, _)| *c == channel);
        let mode = named.map_or(channel.default_mode(), |(_, mode)| *mode);
        if self.allows(mode) { mode } else { Mode::Off }
    }

    /// Whether that mode may be chosen. Off always may.
    #[must_use]
    pub fn allows(&self, mode: Mode) -> bool {
        mode == Mode::Off || self.modes.contains(&mode)
    }

    /// Whether these variables keep the declaration.
    ///
    /// # Errors
    /// One is missing, undeclared or of another type.
    pub fn check(&self, vars: &Map<String, Value>) -> Result<(), Unfit> {
        for variable in &self.variables {
            match vars.get(&*variable.name) {
                Some(value) if variable.of.admits(value) => {}
                Some(_) => return Err(Unfit::Type(variable.name.to_string(), variable.of)),
                None if variable.required => return Err(Unfit::Missing(variable.name.to_string())),
                None => {}
            }
        }
        match vars.keys().find(|name| self.variable(name).is_none()) {
            Some(name) => Err(Unfit::Undeclared(name.clone())),
            None => Ok(()),
        }
    }

    /// What the firing is about, as text.
    ///
    /// # Errors
    /// It is not there, or no text and no number.
    pub fn subject_of(&self, vars: &Map<String, Value>) -> Result<String, Unfit> {
        let name = self.subject_key();
        let value = vars
            .get(name)
            .ok_or_else(|| Unfit::Missing(name.to_owned()))?;
        super::field::as_key(value)
            .map(std::borrow::Cow::into_owned)
            .ok_or_else(|| Unfit::Subject(name.to_owned()))
    }

    /// The ceiling of one firing: the declared one, narrowed by what the firing says of itself, never widened.
    ///
    /// # Errors
    /// The two are incomparable. A wider one narrows nothing.
    pub fn ceiling_of(
        &self,
        emitted: Option<Ceiling>,
    ) -> Result<Ceiling, millrace_schemas::ceiling::Incomparable> {
        match emitted {
            Some(emitted) => self.ceiling.meet(emitted),
            None => Ok(self.ceiling),
        }
    }
}
