//! Requests that no honest sender makes, against a whole deployment: every door and every admin route, found in the registry,
//! with valid requests mutated, over connections that break the protocol too. Afterwards the books must balance.
//!
//! - `stage`: the deployment, with everything made that requests may name.
//! - `requests`: one request after another from a seed; `mutation`: how values and texts are made wrong; `sample`: a value
//!   that a JSON Schema allows, to begin with.
//! - `wire`: sending, and reading what comes back.
//! - [`run`]: many connections at once; `tally`: what was answered, by route and status.

mod mutation;
mod requests;
mod run;
mod sample;
mod stage;
mod tally;
mod wire;

pub use run::{Ended, run};
pub use stage::Stage;
pub use tally::Tally;
