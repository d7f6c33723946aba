//! What can be wrong with a manifest.

use crate::modules::field::Path;
use millrace_schemas::ceiling::{Ceiling, Incomparable};
use std::collections::BTreeSet;

/// One fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{file}: `{key}`: {rule}")]
pub struct Fault {
    /// The file, as it was named.
    pub file: String,
    /// The key, its tables and places joined by dots (`trigger.3.ceiling`; places count from 0).
    pub key: String,
    /// The rule that it breaks.
    pub rule: Rule,
}

/// A rule of manifests.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rule {
    /// Not TOML, an unknown key, a value of another type, a key that must be there.
    #[error("{0}")]
    Shape(String),
    /// The folder of manifests or one of its files cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// The module's id.
    #[error("`{0}` is no module's id: a lower-case letter, then letters and digits")]
    ModuleId(String),
    /// The file is called after its module.
    #[error("the module is `{0}`, so its file must be called `{0}.toml`")]
    FileName(String),
    /// An enabled module has no manifest.
    #[error("there is no manifest of the module `{0}`")]
    NoManifest(String),
    /// The grammar of ids.
    #[error(
        "`{0}` is no id: at least two words of lower-case letters, digits and `_`, joined by dots"
    )]
    Id(String),
    /// An id begins with its owner's.
    #[error("`{0}` must begin with `{1}.`, or stand in `legacy_ids`")]
    NotOwned(String, String),
    /// An id has one owner.
    #[error("`{0}` is held by {1}")]
    Held(String, String),
    /// The legacy list holds what the prefix gives already.
    #[error("`{0}` begins with the module's id and needs no place among the legacy ids")]
    LegacyNotNeeded(String),
    /// The legacy list claims what nothing declares.
    #[error("`{0}` is claimed as a legacy id, but no stream and no trigger has it")]
    LegacyUnused(String),
    /// Names within one section differ.
    #[error("`{0}` stands twice")]
    Twice(String),
    /// The name of a kind.
    #[error("`{0}` is no kind of frame: up to 64 characters without blanks")]
    FrameKind(String),
    /// The name of a variable or mapping.
    #[error("`{0}` is no name: letters, digits and `_`, a letter first")]
    Name(String),
    /// A path.
    #[error("`{0}` is no path: up to 8 names of letters, digits, `_` and `-`, joined by dots")]
    Path(String),
    /// A text with expressions.
    #[error("{0}")]
    Expression(String),
    /// A key that the loader asks for because no default is safe.
    #[error("must be there: {0}")]
    Missing(&'static str),
    /// A text for people is empty.
    #[error("must say something")]
    Empty,
    /// One of a few words.
    #[error("`{0}` is none of {1}")]
    Word(String, String),
    /// A number out of its range.
    #[error("must be {0}")]
    Range(&'static str),
    /// The default audience is within the ceiling.
    #[error("the audience `{0}` is not within the ceiling `{1}`")]
    Ceiling(Ceiling, Ceiling),
    /// Two ceilings without a common bound.
    #[error(transparent)]
    Incomparable(#[from] Incomparable),
    /// The subject is one of the trigger's variables.
    #[error("`{0}` is none of the trigger's variables")]
    Subject(String),
    /// The subject is always there and can be a key.
    #[error("the subject `{0}` must be a required variable of type string or int")]
    SubjectType(String),
    /// The subject is a stable id, never a name.
    #[error("the subject comes from `{0}`, which is a name; a subject is a stable id")]
    SubjectName(String),
    /// A variable has an example: without one a preview would need a live event.
    #[error("a variable must have an example")]
    NoExample,
    /// The example is of the variable's type.
    #[error("the example is not of type {0}{1}")]
    Example(&'static str, &'static str),
    /// A mode that may not be chosen cannot be the default.
    #[error("`{0}` is none of the modes that may be chosen")]
    DefaultMode(String),
    /// A default that cannot hold.
    #[error(
        "`{0}` may not be chosen and is what holds on `{1}` by default; say another one in `default_modes`"
    )]
    ModeOfChannel(String, String),
    /// Something is named that is not declared.
    #[error("there is no {0} `{1}`")]
    Unknown(&'static str, String),
    /// A scheduled trigger is fired by its evaluator alone.
    #[error("`{0}` is a scheduled trigger; frames cannot fire it")]
    Scheduled(String),
    /// A tracker needs this key.
    #[error("the tracker `{0}` needs it")]
    TrackerNeeds(String),
    /// A tracker has no use for this key.
    #[error("the tracker `{0}` has no use for it")]
    TrackerRefuses(String),
    /// A stateful tracker is kept by the partition key, else two partitions would each see half.
    #[error("a tracker with a memory is kept by the frame's own key, `{0}`")]
    TrackerKey(String),
    /// The kinds of one stateful mapping are keyed alike.
    #[error("`{0}` and `{1}` are not partitioned alike, so one tracker cannot watch both")]
    KeysDiffer(String, String),
    /// A required variable has a source.
    #[error("the trigger's variable `{0}` is required and has no source here")]
    NoSource(String),
    /// An owner's trigger says whom it is about.
    #[error("the trigger is for its owner, so the mapping must say where the account stands")]
    NoOwner,
    /// A members' trigger carries its recipients.
    #[error("the trigger is for members, so the mapping must take its recipients from a roster")]
    NoRecipients,
    /// A firing narrows, never widens.
    #[error("`{0}` is not within the trigger's ceiling `{1}`")]
    Widens(Ceiling, Ceiling),
    /// A roster is fed by frames of its own key.
    #[error("the roster is kept by the frame's own key, `{0}`")]
    RosterKey(String),
    /// A mapping reads lists of its frames' own key: those of another key are kept by other partitions.
    #[error(
        "frames that are kept by their key, `{0}`, reach no list of a roster that is kept by `{1}`"
    )]
    RosterOther(String, String),
    /// A roster's tracker watches the frames that change it.
    #[error("`{0}` does not change the roster `{1}`, so the tracker would never fire")]
    NotFed(String, String),
    /// One list, one writer.
    #[error(
        "the roster is one list and its frames are kept by `{0}`, so that several would write it at once: \
         give it a `param`, or let each frame keep a `seat`"
    )]
    RosterShared(String),
    /// A seeded rule's conditions are what a rule's may be.
    #[error("conditions that cannot hold: {0}")]
    Conditions(String),
    /// One condition, one comparison.
    #[error("a condition has exactly one comparison beside its path")]
    OneComparison,
    /// A seeded rule is disabled.
    #[error("a seeded rule is disabled until somebody enables it")]
    Enabled,
    /// Triggers that cancel each other share their subject.
    #[error(
        "`{0}` is about `{1}` and `{2}` is about `{3}`: triggers that cancel each other must share their subject"
    )]
    CancelSubject(String, String, String, String),
    /// No stream, no push.
    #[error("`{0}` has no stream, so it has no push")]
    NoStream(String),
    /// A template is for one channel.
    #[error("`{0}` is a template of the channel `{1}`")]
    TemplateChannel(String, String),
    /// The grammar of template keys.
    #[error(
        "`{0}` is no template key: words of lower-case letters, digits and dashes, joined by dots"
    )]
    TemplateKey(String),
    /// The committed declarations are not these.
    #[error("is committed as {0} and is now {1}; `millrace modules check --write` commits it")]
    Drift(String, String),
    /// A renamed or retyped variable raises its trigger's version.
    #[error(
        "the variable `{0}` was renamed, removed or changed its type, so the version must be raised"
    )]
    VersionNotRaised(String),
    /// A template is for one trigger.
    #[error("`{0}` is a template of the trigger `{1}`")]
    TemplateTrigger(String, String),
}

/// Collects the faults of one file.
pub(super) struct Faults {
    file: String,
    found: Vec<Fault>,
}

impl Faults {
    pub(super) fn new(file: &str) -> Faults {
        Faults {
            file: file.to_owned(),
            found: Vec::new(),
        }
    }

    pub(super) fn file(&self) -> String {
        self.file.clone()
    }

    pub(super) fn push(&mut self, key: &str, rule: Rule) {
        self.found.push(Fault {
            file: self.file.clone(),
            key: key.to_owned(),
            rule,
        });
    }

    pub(super) fn take(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.found)
    }

    pub(super) fn end(mut self) -> Result<(), Vec<Fault>> {
        if self.found.is_empty() {
            Ok(())
        } else {
            Err(self.take())
        }
    }

    pub(super) fn unique<'a>(&mut self, section: &str, names: impl Iterator<Item = &'a str>) {
        let mut seen = BTreeSet::new();
        for (place, name) in names.enumerate() {
            if !seen.insert(name) {
                self.push(&format!("{section}.{place}"), Rule::Twice(name.to_owned()));
            }
        }
    }

    pub(super) fn path(&mut self, key: &str, text: &str) -> Option<Path> {
        let path = Path::parse(text);
        if path.is_none() {
            self.push(key, Rule::Path(text.to_owned()));
        }
        path
    }

    pub(super) fn said(&mut self, key: &str, text: &str) {
        if text.trim().is_empty() {
            self.push(key, Rule::Empty);
        }
    }

    /// One of a few words; anything else is a fault that lists them.
    pub(super) fn word<T>(
        &mut self,
        key: &str,
        word: &str,
        all: &[T],
        of: impl Fn(&T) -> &'static str,
    ) -> Option<T>
    where
        T: Copy,
    {
        let found = all.iter().copied().find(|t| of(t) == word);
        if found.is_none() {
            let known: Vec<&str> = all.iter().map(&of).collect();
            self.push(key, Rule::Word(word.to_owned(), known.join(", ")));
        }
        found
    }

    /// A ceiling's word that must be there.
    pub(super) fn ceiling(
        &mut self,
        key: &str,
        word: Option<&str>,
        why: &'static str,
    ) -> Option<Ceiling> {
        match word {
            Some(word) => self.word(key, word, &Ceiling::ALL, |c| c.word()),
            None => {
                self.push(key, Rule::Missing(why));
                None
            }
        }
    }
}
