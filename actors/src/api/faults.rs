//! What can be wrong with a change: shared by the REST routes and the terminal.

use serde::{Deserialize, Serialize};

/// One fault of an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Fault {
    /// Where: a JSON pointer into the body, `?name` for a query parameter, a header's name.
    #[schemars(extend("x-class" = "open"))]
    pub path: String,
    /// A stable code.
    #[schemars(extend("x-class" = "open"))]
    pub code: String,
    /// For a person.
    #[schemars(extend("x-class" = "open"))]
    pub message: String,
}

/// How many faults are told; whoever has more of them has them from one cause.
pub const MOST_TOLD: usize = 200;

/// Longest path and message, in bytes: both may hold a name of the sender's.
const LONGEST: usize = 490;

/// Faults, collected until all are known, or [`MOST_TOLD`] of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// None yet.
    #[must_use]
    pub fn new() -> Faults {
        Faults::default()
    }

    /// One more.
    pub fn add(&mut self, path: impl Into<String>, code: &str, message: impl Into<String>) {
        if self.is_full() {
            return;
        }
        self.0.push(Fault {
            path: shortened(path.into()),
            code: code.to_owned(),
            message: shortened(message.into()),
        });
    }

    /// Whether further ones would not be told.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.len() >= MOST_TOLD
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing, or all of them.
    ///
    /// # Errors
    /// [`ChangeError::Invalid`] with all faults.
    pub fn done(self) -> Result<(), ChangeError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(ChangeError::Invalid(self.0))
        }
    }

    /// The faults.
    #[must_use]
    pub fn into_vec(self) -> Vec<Fault> {
        self.0
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push('…');
    }
    text
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The input is wrong; every fault of it.
    #[error("{}", listed(.0))]
    Invalid(Vec<Fault>),
    /// Nothing of that id in the workspace.
    #[error("not found")]
    NotFound,
    /// The actor does not hold what it would give away.
    #[error("the scopes {} are not the actor's to give", .0.join(", "))]
    NotHeld(Vec<&'static str>),
    /// It collides with what is there.
    #[error("{message}")]
    Conflict {
        /// A stable code.
        code: &'static str,
        /// For a person.
        message: String,
    },
    /// The store failed.
    #[error("the store: {0}")]
    Store(#[from] tokio_postgres::Error),
    /// The operating system's random source failed.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// A secret could not be sealed.
    #[error(transparent)]
    Seal(#[from] crate::sealing::SealError),
}

fn listed(faults: &[Fault]) -> String {
    faults
        .iter()
        .map(|f| format!("{}: {}", f.path, f.message))
        .collect::<Vec<_>>()
        .join("; ")
}
