//! The set of modules in force: one cell a process, whose content a reload replaces whole.

use super::compile::Fault;
use super::registry::Modules;
use super::shipped;
use arc_swap::ArcSwap;
use std::path::Path;
use std::sync::Arc;

/// The set in force. Clones share it.
///
/// Whoever decides by it takes one set ([`Live::now`]) and keeps to it until what is decided is whole: a batch, a request, a frame at
/// the door. What was taken later is never older.
#[derive(Clone, Debug)]
pub struct Live(Arc<ArcSwap<Modules>>);

impl Live {
    /// The set in force now.
    #[must_use]
    pub fn now(&self) -> Arc<Modules> {
        self.0.load_full()
    }

    /// Takes the set in force now, if it is another one than that in hand. True: it was.
    pub fn renew(&self, held: &mut Arc<Modules>) -> bool {
        if Arc::ptr_eq(&self.0.load(), held) {
            return false;
        }
        *held = self.now();
        true
    }

    /// Reads the manifests anew and puts the whole set in force.
    ///
    /// # Errors
    /// As [`shipped::load`]: then the set before stays in force.
    pub fn reload(
        &self,
        enabled: &[String],
        dir: Option<&Path>,
    ) -> Result<Arc<Modules>, Vec<Fault>> {
        let modules = Arc::new(shipped::load(enabled, dir)?);
        self.0.store(Arc::clone(&modules));
        Ok(modules)
    }
}

impl From<Arc<Modules>> for Live {
    fn from(modules: Arc<Modules>) -> Live {
        Live(Arc::new(ArcSwap::new(modules)))
    }
}

impl Default for Live {
    /// No module at all.
    fn default() -> Live {
        Live::from(Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::Rule;

    fn manifest(dir: &Path, id: &str, said: &str) {
        let text =
            format!("id = \"{id}\"\nlabel = \"{said}\"\ndescription = \"A game.\"\nprotocol = 1\n");
        std::fs::write(dir.join(format!("{id}.toml")), text).unwrap();
    }

    #[test]
    fn a_set_is_replaced_whole_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("millrace-live-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        manifest(&dir, "chess", "Chess");
        manifest(&dir, "go", "Go");
        let both = ["chess".to_owned(), "go".to_owned()];
        let live = Live::default();
        let mut held = live.now();
        assert!(held.is_empty() && !live.renew(&mut held));

        live.reload(&both, Some(&dir)).unwrap();
        assert!(held.is_empty(), "what is in hand stays as it was");
        assert!(live.renew(&mut held));
        assert_eq!(held.games().count(), 2);

        // One of them is good and has changed, the other has a fault: neither is taken.
        manifest(&dir, "chess", "Chess, said otherwise");
        std::fs::write(dir.join("go.toml"), "id = \"go\"\nprotocol = \"one\"\n").unwrap();
        let faults = live.reload(&both, Some(&dir)).unwrap_err();
        assert!(
            faults.iter().all(|f| f.file.ends_with("go.toml")),
            "{faults:?}"
        );
        assert!(!live.renew(&mut held));
        assert_eq!(&*live.now().get("chess").unwrap().label, "Chess");
        let absent = live
            .reload(&["draughts".to_owned()], Some(&dir))
            .unwrap_err();
        assert!(matches!(absent.first().unwrap().rule, Rule::NoManifest(_)));

        live.reload(&["chess".to_owned()], Some(&dir)).unwrap();
        assert!(live.renew(&mut held));
        assert!(held.get("go").is_none());
        let _ = std::fs::remove_dir_all(&dir);
    }
}
