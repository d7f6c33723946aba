//! A harbour whose shards tell of bells, storms, fires and crews, and the people who are told: the scene of the fault runs of
//! engagement. What it must come to is known before anything is sent.
//!
//! - [`plan`]: the frames of its shards, and what is right for each by the workspace's [`rules`]. No product code decides it.
//! - [`stage`]: a deployment furnished for it (module, shards, people, rules, mail server, devices), and its sidecars.
//! - `news`: what the directory is told meanwhile, and whether it knows all of it.
//! - [`seen`]: what became of it, by plain SQL, by the log, and by what the receivers wrote down.
//! - [`account()`]: the one laid beside the other.
//!
//! What may not live here: faults, and whoever lets them happen.

mod account;
mod news;
mod people;
pub mod plan;
pub mod rules;
pub mod seen;
pub mod stage;

pub use account::account;
pub use plan::{Plan, Size};
pub use stage::Quay;

/// The module's id.
pub const MODULE: &str = "quay";
/// The protocol of its frames.
pub const PROTOCOL: u32 = 3;
/// Its shards. An account of the one is somebody else's on the other.
pub const SHARDS: [&str; 2] = ["east", "west"];

const MANIFEST: &str = include_str!("quay/quay.toml");
const TOLLED: &str = include_str!("quay/tolled.toml");

/// The module's manifest.
#[must_use]
pub fn manifest() -> String {
    MANIFEST.to_owned()
}

/// The manifest after its change: bells have a trigger more, and notices that everybody was told are for the staff alone.
#[must_use]
pub fn changed_manifest() -> String {
    let (before, after) = (
        "audience = \"authenticated\"\nceiling = \"authenticated\"",
        "audience = \"staff\"\nceiling = \"staff\"",
    );
    let mut text = MANIFEST.replace(before, after);
    text.push_str(TOLLED);
    text
}

#[cfg(test)]
mod tests {
    use millrace::modules::compile;

    #[test]
    fn both_manifests_are_good_and_differ_as_told() {
        let before = compile("quay.toml", &super::manifest()).expect("a manifest");
        let after = compile("quay.toml", &super::changed_manifest()).expect("a manifest");
        assert_eq!(before.triggers.len() + 1, after.triggers.len());
        let ceiling = |module: &millrace::modules::Module| {
            let mut all = module.triggers.iter();
            let posted = all.find(|t| &*t.id == "quay.notice.posted");
            posted.expect("the trigger").ceiling.word().to_owned()
        };
        assert_eq!(
            (ceiling(&before), ceiling(&after)),
            ("authenticated".to_owned(), "staff".to_owned())
        );
    }
}
