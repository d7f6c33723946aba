//! The step that a run is at.

use std::sync::{Arc, Mutex, PoisonError};

/// How the steps of [`super::finish`] begin, which are the same in all runs.
const FINISH: &str = "finish: ";

/// The step that a run is at, to be named when it takes too long or goes wrong; and the last one that was the fault's own.
#[derive(Clone, Debug, Default)]
pub struct Step(Arc<Mutex<Steps>>);

#[derive(Clone, Debug, Default)]
struct Steps {
    at_hand: String,
    of_fault: String,
}

impl Step {
    /// Names the next step.
    pub fn set(&self, name: impl Into<String>) {
        let name = name.into();
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !name.starts_with(FINISH) {
            steps.of_fault.clone_from(&name);
        }
        steps.at_hand = name;
    }

    /// The step at hand.
    #[must_use]
    pub fn get(&self) -> String {
        let steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steps.at_hand.clone()
    }

    /// The last step before the end of the run began: what was done last to what then does not balance.
    #[must_use]
    pub fn of_fault(&self) -> String {
        let steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steps.of_fault.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fault_s_last_step_outlives_the_end_of_the_run() {
        let step = Step::default();
        step.set("kill 2 of doors");
        step.set("finish: recount");
        assert_eq!(step.get(), "finish: recount");
        assert_eq!(step.of_fault(), "kill 2 of doors");
    }
}
