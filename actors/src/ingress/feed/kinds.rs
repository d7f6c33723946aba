//! Which kinds of frames a module maps, as far as the door must know it: whether, and under which key.

use crate::modules::Live;
use std::sync::Arc;

/// What becomes of a frame of some kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// No enabled module maps it: it is counted, and kept for nothing.
    No,
    /// It is one of the shard as a whole: its kind has no key path, or the frame nothing at it.
    OfShard,
    /// It goes under the text at its kind's key path.
    Under(String),
}

/// Asks the enabled modules: of a module's id, a kind and a frame's body.
pub type KindMap = Arc<dyn Fn(&str, &str, &str) -> Mapped + Send + Sync>;

/// What the enabled modules map, each frame by the set in force when it comes.
#[must_use]
pub fn of(live: Live) -> KindMap {
    Arc::new(move |module, kind, body| {
        let modules = live.now();
        let kinds = modules.get(module).map(|m| &m.kinds);
        let Some(kind) = kinds.and_then(|k| k.get(kind)) else {
            return Mapped::No;
        };
        if kind.key.is_none() {
            return Mapped::OfShard;
        }
        match kind.key_of("", body) {
            Ok(Some(key)) => Mapped::Under(key),
            // The actor says what is wrong with it; it is kept where it is found.
            Ok(None) | Err(_) => Mapped::OfShard,
        }
    })
}

/// No module is enabled.
#[must_use]
pub fn none() -> KindMap {
    Arc::new(|_, _, _| Mapped::No)
}
