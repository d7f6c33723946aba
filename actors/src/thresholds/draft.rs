//! Overlay and effects of one attempt at a batch.

use super::letters::Turned;
use super::roster::{Change, ListKey, Members};
use super::slice::{Memory, Shard, ShardKey, StateKey};
use hashbrown::HashMap;
use millrace_schemas::frame::Frame;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::Micros;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One attempt.
#[derive(Debug, Default)]
pub struct Draft {
    /// Shards as this batch leaves them.
    pub shards: HashMap<ShardKey, Shard>,
    /// What became of letters.
    pub letters: Turned,
    /// Memories that this batch changed.
    pub memories: HashMap<StateKey, Memory>,
    /// Frames that fire or change a roster, in offset order: what became of them is told when owners and lists are known.
    pub steps: Vec<Step>,
    /// What the store says of accounts and lists that the steps name.
    pub found: Found,
    /// Lists as this batch leaves them.
    pub lists: BTreeMap<ListKey, Members>,
    /// Firings that broke their declaration.
    pub rejected: BTreeMap<RejectKey, Rejected>,
    /// Slots and accounts that are too long for a list ([`super::roster::change_of`]).
    pub long_names: u64,
}

/// A frame that fires or changes a roster.
#[derive(Debug)]
pub struct Step {
    /// Its coordinates.
    pub id: RecordId,
    /// When it was accepted, clamped.
    pub accepted_at: Micros,
    /// Stream time at it.
    pub at: Micros,
    /// The frame.
    pub frame: Frame,
    /// Its shard's id, shared by the keys that are made of it.
    pub shard: Arc<str>,
    /// Its body, whole.
    pub body: Value,
    /// What it is to each module that reads it.
    pub parts: Vec<Part>,
    /// Why it was not taken in as a whole; empty: it was.
    pub held: &'static str,
}

/// What a frame is to one module.
#[derive(Debug, Default)]
pub struct Part {
    /// The module's place in the plan.
    pub module: usize,
    /// Mappings whose trackers fired, in the manifest's order.
    pub fired: Vec<usize>,
    /// Mappings that wait for a roster's change and apply to this frame.
    pub watching: Vec<usize>,
    /// What it does to rosters: place in the module, the list, the change.
    pub changes: Vec<(usize, ListKey, Change)>,
    /// A tracker or a roster passed it by, as it was overtaken.
    pub held: bool,
}

/// A game account.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccountKey {
    /// The workspace's number.
    pub workspace: i32,
    /// The module's id.
    pub module: Arc<str>,
    /// The shard's id.
    pub shard: Arc<str>,
    /// The account, as the shard spells it.
    pub account: Arc<str>,
}

/// A link of an account, or what is left of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The user's id.
    pub user: String,
    /// Whether the account is this user's now.
    pub live: bool,
    /// When it was linked, if that is known.
    pub linked_at: Option<Micros>,
    /// When it was unlinked, if it ever was.
    pub unlinked_at: Option<Micros>,
}

/// What the store says.
#[derive(Debug, Default)]
pub struct Found {
    /// Links of accounts, live and removed.
    pub links: HashMap<AccountKey, Vec<Link>>,
    /// Lists as they stood before the batch.
    pub lists: BTreeMap<ListKey, Members>,
}

/// Which declaration was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RejectKey {
    /// The workspace's number.
    pub workspace: i32,
    /// The trigger's id.
    pub trigger: Box<str>,
    /// The reason's code.
    pub reason: &'static str,
    /// The variable, where it is one's fault.
    pub variable: Box<str>,
}

/// How often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// How many firings.
    pub n: i64,
    /// When the frame of the last one was accepted.
    pub at: Micros,
    /// The last one's id.
    pub id: String,
}
