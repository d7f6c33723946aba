//! A firing against its trigger's declaration: the same words at the door of outside firings and at the gates.

use crate::modules::Modules;
use crate::modules::module::{Trigger, TriggerKind};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::firing::Firing;
use millrace_schemas::outcome::reason;
use serde_json::{Map, Value};

/// A firing that keeps its declaration.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// The trigger.
    pub trigger: &'a Trigger,
    /// Whom it may reach at most: the declared ceiling, narrowed by the firing's own.
    pub ceiling: Ceiling,
}

/// Why a firing is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// A name from a closed list.
    pub reason: &'static str,
    /// The variable that it hangs on, if one does.
    pub variable: Option<String>,
}

impl From<&'static str> for Broken {
    fn from(reason: &'static str) -> Broken {
        Broken {
            reason,
            variable: None,
        }
    }
}

/// Holds a firing against what its trigger declares.
///
/// # Errors
/// [`Broken`].
pub fn check<'a>(modules: &'a Modules, firing: &Firing) -> Result<Kept<'a>, Broken> {
    if let Some(fault) = firing.fault() {
        return Err(fault.into());
    }
    let trigger = modules
        .trigger(&firing.trigger)
        .ok_or(reason::TRIGGER_UNKNOWN)?;
    if *trigger.module != *firing.module {
        return Err(reason::MODULE_MISMATCH.into());
    }
    let vars = vars_of(firing);
    trigger.check(&vars).map_err(|unfit| Broken {
        reason: unfit.reason(),
        variable: Some(unfit.variable().to_owned()),
    })?;
    // A subject that is another than the declared one would cool down, and be called off, as somebody else's.
    if trigger.subject_of(&vars).ok().as_deref() != Some(&*firing.subject) {
        return Err(reason::SUBJECT_MISMATCH.into());
    }
    let ceiling = trigger
        .ceiling_of(firing.ceiling)
        .map_err(|_| reason::CEILING_INCOMPARABLE)?;
    Ok(Kept { trigger, ceiling })
}

/// What a firing says, as the manifests' functions take it.
#[must_use]
pub fn vars_of(firing: &Firing) -> Map<String, Value> {
    let vars = firing.vars.iter();
    vars.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// As [`check`], for a firing from outside: one of a trigger that a clock fires is refused.
///
/// # Errors
/// [`Broken`].
pub fn check_from_outside<'a>(modules: &'a Modules, firing: &Firing) -> Result<Kept<'a>, Broken> {
    let kept = check(modules, firing)?;
    match kept.trigger.kind {
        TriggerKind::Event => Ok(kept),
        TriggerKind::Scheduled => Err(reason::TRIGGER_SCHEDULED.into()),
    }
}
