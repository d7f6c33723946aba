//! From a frame to what a firing says. What a tracker makes of the frame is decided elsewhere; here stand the questions that need
//! the body alone: whether the mapping applies, what its tracker watches, and the firing's variables.

use super::condition::Condition;
use super::field::{Fields, Path, as_key};
use super::module::Trigger;
use super::source::{Source, Text, View};
use super::tracker::Tracker;
use super::variable::{MAX_TEXT, VariableType};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::time::Micros;
use serde_json::{Map, Value};

/// One mapping, compiled.
#[derive(Debug)]
pub struct Mapping {
    /// Its name within the module: what its trackers are stored under.
    pub id: Box<str>,
    /// The kinds it reads.
    pub frames: Vec<Box<str>>,
    /// What it fires, in [`super::Module::triggers`].
    pub trigger: usize,
    /// What must hold, all of it.
    pub when: Vec<Condition>,
    /// What it watches.
    pub tracker: Tracker,
    /// Where the game account stands whom it is about.
    pub owner: Option<Path>,
    /// Where nobody has that account any more, whoever had it last is the owner.
    pub former_owner: bool,
    /// The roster (in [`super::Module::rosters`]) whose members, as they were before this frame and without the one whom the
    /// firing is of, travel with it. The list is the one of the frame's key where the roster has a parameter.
    pub recipients: Option<usize>,
    /// Narrows the trigger's ceiling.
    pub ceiling: Option<Ceiling>,
    /// Joins frames that report one fact.
    pub dedupe: Option<Text>,
    /// What a preference and an unsubscribe are kept by, beside the trigger.
    pub scope: Option<Text>,
    /// By place in [`Trigger::variables`], where the value comes from.
    pub vars: Vec<(usize, Source)>,
}

/// Somebody of a roster, as the roster knows them.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// What the roster knows them by.
    pub slot: &'a str,
    /// Their game account.
    pub account: &'a str,
}

/// One frame, with the one member whom the firing is of where a roster's change brought it about.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The shard's id.
    pub shard: &'a str,
    /// The sidecar's boot id.
    pub boot: &'a str,
    /// The frame's number in that boot.
    pub seq: u64,
    /// Its kind.
    pub kind: &'a str,
    /// Its partition key.
    pub key: &'a str,
    /// Stream time of the frame.
    pub at: Micros,
    /// Its body.
    pub body: &'a Value,
    /// Of a roster's change.
    pub member: Option<Member<'a>>,
}

/// What a firing says, before owner and recipients are found.
#[derive(Clone, Debug, PartialEq)]
pub struct Fired {
    /// What it is about: the trigger's subject variable as text.
    pub subject: String,
    /// Every variable that has a value, checked against the trigger's declaration.
    pub vars: Map<String, Value>,
    /// The game account whom it is about.
    pub account: Option<String>,
    /// What a preference and an unsubscribe are kept by, beside the trigger; empty: the trigger alone.
    pub scope: String,
    /// Qualified by the shard; the trigger's id is put before it where keys are claimed.
    pub dedupe: String,
}

/// Why a firing breaks its trigger's declaration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A required variable has no value.
    #[error("the variable `{0}` is required and has no value")]
    Missing(String),
    /// A variable's value is not of its type.
    #[error("the variable `{0}` is not of type {type}", type = .1.word())]
    Type(String, VariableType),
    /// A variable that the trigger does not declare.
    #[error("the trigger declares no variable `{0}`")]
    Undeclared(String),
    /// The subject is no text and no number.
    #[error("the subject `{0}` is no text and no number")]
    Subject(String),
}

impl Unfit {
    /// For outcomes and counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Unfit::Missing(_) => "variable_missing",
            Unfit::Type(..) => "variable_type",
            Unfit::Undeclared(_) => "variable_undeclared",
            Unfit::Subject(_) => "subject_invalid",
        }
    }

    /// Which variable.
    #[must_use]
    pub fn variable(&self) -> &str {
        match self {
            Unfit::Missing(name)
            | Unfit::Type(name, _)
            | Unfit::Undeclared(name)
            | Unfit::Subject(name) => name,
        }
    }
}

impl Mapping {
    /// Whether all its conditions hold.
    #[must_use]
    pub fn applies(&self, body: &impl Fields) -> bool {
        self.when.iter().all(|c| c.holds(body))
    }

    /// What its tracker watches, in this body.
    #[must_use]
    pub fn watched<'a>(&self, body: &'a impl Fields) -> Option<&'a Value> {
        body.field(self.tracker.value()?)
    }

    /// The value before, where the frame itself tells it.
    #[must_use]
    pub fn told_before<'a>(&self, body: &'a impl Fields) -> Option<&'a Value> {
        match &self.tracker {
            Tracker::Transition {
                previous: Some(path),
                ..
            } => body.field(path),
            _ => None,
        }
    }

    /// The paths that deciding needs, before anything fires.
    pub fn decisive(&self) -> impl Iterator<Item = &Path> {
        let before = match &self.tracker {
            Tracker::Transition { previous, .. } => previous.as_ref(),
            _ => None,
        };
        self.when
            .iter()
            .flat_map(Condition::paths)
            .chain(self.tracker.value())
            .chain(before)
    }

    /// What the firing says. `trigger` is the one that this mapping fires.
    ///
    /// # Errors
    /// It breaks the trigger's declaration.
    pub fn fire(&self, trigger: &Trigger, scene: &Scene<'_>) -> Result<Fired, Unfit> {
        let view = View::new(scene);
        let mut vars = Map::new();
        for (place, source) in &self.vars {
            let (Some(variable), Some(value)) =
                (trigger.variables.get(*place), source.value(&view))
            else {
                continue;
            };
            // Ids are opaque texts, whether the shard writes them as numbers or not.
            let value = match (variable.of, &value) {
                (VariableType::String, Value::Number(n)) => Value::from(n.to_string()),
                // What somebody typed into a game may be of any length; a message shows the beginning.
                (VariableType::String, Value::String(text)) if text.len() > MAX_TEXT => {
                    Value::from(beginning(text))
                }
                _ => value,
            };
            vars.insert(variable.name.to_string(), value);
        }
        trigger.check(&vars)?;
        let subject = trigger.subject_of(&vars)?;
        let account = self
            .owner
            .as_ref()
            .and_then(|p| p.get(scene.body))
            .and_then(as_key);
        let dedupe = match (&self.dedupe, scene.member) {
            (Some(text), _) => format!("{}:{}", scene.shard, text.render(&view)),
            (None, Some(member)) => {
                format!(
                    "{}:{}:{}:{}",
                    scene.shard, scene.boot, scene.seq, member.slot
                )
            }
            (None, None) => format!("{}:{}:{}", scene.shard, scene.boot, scene.seq),
        };
        Ok(Fired {
            subject,
            vars,
            scope: self
                .scope
                .as_ref()
                .map(|text| text.render(&view))
                .unwrap_or_default(),
            account: account.map(std::borrow::Cow::into_owned),
            dedupe,
        })
    }
}

/// As much of a long text as a variable may hold, and a sign that it goes on.
fn beginning(text: &str) -> String {
    const MORE: char = '…';
    let end = text.floor_char_boundary(MAX_TEXT - MORE.len_utf8());
    let mut kept = text.get(..end).unwrap_or_default().to_owned();
    kept.push(MORE);
    kept
}

#[cfg(test)]
mod tests;
