//! What a process does.

use std::str::FromStr;

/// Roles of one process. Those of modules do nothing, and cost nothing, where no module is enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Takes records over HTTP.
    pub doors: bool,
    /// Consumes group `attribution`.
    pub attribution: bool,
    /// Sends what the outbox holds.
    pub delivery: bool,
    /// Serves the admin API.
    pub admin: bool,
    /// Consumes group `thresholds`: frames of shards.
    pub thresholds: bool,
    /// Consumes group `engagement`: firings.
    pub engagement: bool,
    /// Consumes group `recipients`: notices.
    pub recipients: bool,
    /// Consumes group `directory`: users, links, preferences.
    pub directory: bool,
}

/// How many roles there are.
const COUNT: usize = 8;

impl Roles {
    /// Everything.
    pub const ALL: Roles = Roles {
        doors: true,
        attribution: true,
        delivery: true,
        admin: true,
        thresholds: true,
        engagement: true,
        recipients: true,
        directory: true,
    };

    /// Nothing: a process of streams that are mounted apart ([`super::Plan::also`]).
    pub const NONE: Roles = Roles {
        doors: false,
        attribution: false,
        delivery: false,
        admin: false,
        thresholds: false,
        engagement: false,
        recipients: false,
        directory: false,
    };

    /// Each role with its name, in the order in which they are named.
    fn each(&mut self) -> [(&'static str, &mut bool); COUNT] {
        [
            ("doors", &mut self.doors),
            ("attribution", &mut self.attribution),
            ("delivery", &mut self.delivery),
            ("admin", &mut self.admin),
            ("thresholds", &mut self.thresholds),
            ("engagement", &mut self.engagement),
            ("recipients", &mut self.recipients),
            ("directory", &mut self.directory),
        ]
    }

    /// The roles, joined by `+`.
    #[must_use]
    pub fn name(mut self) -> String {
        let all = self.each();
        let names: Vec<&str> = all.iter().filter(|(_, on)| **on).map(|(n, _)| *n).collect();
        match names.len() {
            0 => "none".to_owned(),
            COUNT => "all".to_owned(),
            _ => names.join("+"),
        }
    }
}

impl FromStr for Roles {
    type Err = String;

    /// Any of the roles, joined by commas, or `all`.
    fn from_str(text: &str) -> Result<Roles, String> {
        let mut roles = Roles::NONE;
        for name in text.split(',').map(str::trim) {
            if name == "all" {
                roles = Roles::ALL;
                continue;
            }
            let mut all = roles.each();
            match all.iter_mut().find(|(role, _)| *role == name) {
                Some((_, on)) => **on = true,
                None => {
                    let there = all.map(|(role, _)| role).join(", ");
                    return Err(format!("no role `{name}`; there are {there}, all"));
                }
            }
        }
        Ok(roles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_and_named() {
        let some: Roles = "doors, admin".parse().unwrap();
        assert!(some.doors && some.admin && !some.attribution && !some.delivery);
        assert_eq!(some.name(), "doors+admin");
        assert_eq!("all".parse(), Ok(Roles::ALL));
        assert_eq!(
            (Roles::ALL.name(), Roles::NONE.name()),
            ("all".into(), "none".into())
        );
        assert_eq!(
            "thresholds,recipients".parse::<Roles>().unwrap().name(),
            "thresholds+recipients"
        );
        assert!("door".parse::<Roles>().unwrap_err().contains("doors"));
        assert!("".parse::<Roles>().is_err());
    }
}
