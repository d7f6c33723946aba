//! Scopes and their bundles (access § Scopes). No scope implies another.

use std::collections::BTreeSet;

/// How a scope may come to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// By name, or by the word `full`.
    Ordinary,
    /// By name alone; `full` never covers it.
    ByName,
    /// The deployment's: only a key without a workspace may hold it.
    Deployment,
    /// Of users alone; a key has none.
    UserOnly,
}

/// One row of the table of scopes.
#[derive(Clone, Copy, Debug)]
pub struct ScopeSpec {
    /// Its name, as in keys and problems.
    pub name: &'static str,
    /// How a key gets it.
    pub grant: Grant,
    /// Bundles of users that hold it, of `V` viewer, `E` editor, `O` owner, and `R` read-only consent.
    pub bundles: &'static str,
}

const fn scope(name: &'static str, grant: Grant, bundles: &'static str) -> ScopeSpec {
    ScopeSpec {
        name,
        grant,
        bundles,
    }
}

/// The word that stands for every ordinary scope, whatever is added later.
pub const FULL: &str = "full";

/// Every scope there is.
pub const SCOPES: &[ScopeSpec] = &[
    scope("reports:read", Grant::Ordinary, "VEOR"),
    scope("reports:identity", Grant::Ordinary, "O"),
    scope("entities:read", Grant::Ordinary, "VEOR"),
    scope("records:read", Grant::Ordinary, "VEOR"),
    scope("records:replay", Grant::Ordinary, "EO"),
    scope("links:write", Grant::Ordinary, "EO"),
    scope("landers:write", Grant::Ordinary, "EO"),
    scope("offers:write", Grant::Ordinary, "EO"),
    scope("domains:write", Grant::Ordinary, "EO"),
    scope("webhooks:manage", Grant::Ordinary, "EO"),
    scope("conversion_events:write", Grant::Ordinary, "EO"),
    scope("leads:configure", Grant::Ordinary, "EO"),
    scope("engagement:write", Grant::Ordinary, "O"),
    scope("people:read", Grant::Ordinary, "O"),
    scope("people:write", Grant::Ordinary, "O"),
    scope("deliverability:manage", Grant::Ordinary, "O"),
    scope("audit:read", Grant::Ordinary, "O"),
    scope("keys:manage", Grant::Ordinary, "O"),
    scope("members:manage", Grant::Ordinary, "O"),
    scope("preferences:write", Grant::UserOnly, "VEO"),
    scope("ingest:write", Grant::ByName, ""),
    scope("meta_spend:write", Grant::ByName, ""),
    scope("sentry:write", Grant::ByName, ""),
    scope("ops:read", Grant::Deployment, ""),
    scope("ops:write", Grant::Deployment, ""),
];

/// The row of a scope's name.
#[must_use]
pub fn find(name: &str) -> Option<&'static ScopeSpec> {
    SCOPES.iter().find(|s| s.name == name)
}

/// What an actor may do, computed for each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeSet(BTreeSet<&'static str>);

impl ScopeSet {
    /// The scopes that a stored list stands for now: `full` becomes every ordinary scope; names that no longer exist are
    /// nothing.
    #[must_use]
    pub fn expand<S: AsRef<str>>(stored: &[S]) -> ScopeSet {
        let mut set = BTreeSet::new();
        for word in stored {
            if word.as_ref() == FULL {
                set.extend(
                    SCOPES
                        .iter()
                        .filter(|s| s.grant == Grant::Ordinary)
                        .map(|s| s.name),
                );
            } else if let Some(found) = find(word.as_ref()).filter(|s| s.grant != Grant::UserOnly) {
                set.insert(found.name);
            }
        }
        ScopeSet(set)
    }

    /// Whether it holds the scope.
    #[must_use]
    pub fn holds(&self, scope: &str) -> bool {
        self.0.contains(scope)
    }

    /// What of `other` it lacks, in order.
    #[must_use]
    pub fn lacking(&self, other: &ScopeSet) -> Vec<&'static str> {
        other.0.difference(&self.0).copied().collect()
    }

    /// The names, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_covers_every_ordinary_scope_and_nothing_else() {
        let full = ScopeSet::expand(&["full"]);
        for s in SCOPES {
            assert_eq!(full.holds(s.name), s.grant == Grant::Ordinary, "{}", s.name);
        }
    }

    #[test]
    fn unknown_words_and_users_scopes_grant_nothing() {
        let set = ScopeSet::expand(&["nonsense", "preferences:write", "ingest:write"]);
        assert_eq!(set.iter().collect::<Vec<_>>(), ["ingest:write"]);
        assert_eq!(
            set.lacking(&ScopeSet::expand(&["ingest:write", "ops:read"])),
            ["ops:read"]
        );
    }
}
