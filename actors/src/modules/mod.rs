//! Modules: what a game brings, as data. A module is a manifest (`config/modules/<id>.toml`) of frames, triggers, mappings,
//! rosters, audiences, streams, template keys and rule groups. The core knows none of its words; a test keeps it so.
//!
//! - [`manifest`]: the file as it is written. [`compile()`] reads it into a [`Module`] or refuses it, each [`Fault`] naming file,
//!   key and rule.
//! - [`module`]: the compiled form, which verticals and the API use. [`Modules`]: all that are enabled, one namespace of ids.
//! - [`mapping`], [`tracker`], [`condition`], [`source`], [`field`]: from a frame's body to a firing's variables. Pure, no clock.
//! - [`shipped`]: the manifests within this binary, and those of a folder. [`frozen`]: the committed form of all declarations.
//! - [`Live`]: the set in force, which a reload replaces whole while the process runs.
//!
//! What may not be here: SQL, actors, what a tracker remembers (`thresholds`), who is told (`engagement`, `recipients`).

mod compile;
pub mod condition;
pub mod field;
pub mod frozen;
pub mod ids;
mod live;
pub mod manifest;
pub mod mapping;
pub mod module;
mod registry;
pub mod shipped;
pub mod source;
pub mod tracker;
pub mod variable;

pub use compile::{Fault, Rule, compile};
pub use live::Live;
pub use mapping::{Fired, Mapping, Scene, Unfit};
pub use module::{
    Audience, AudienceSource, Kind, Module, Param, Roster, RosterChange, RosterFeed, RuleGroup,
    SeededRule, Stream, Template, Trigger, TriggerKind,
};
pub use registry::Modules;
pub use tracker::{Direction, Tracker};
pub use variable::{Variable, VariableType};
