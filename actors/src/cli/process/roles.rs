//! What a process does.

use std::str::FromStr;

/// Roles of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Takes records over HTTP.
    pub doors: bool,
    /// Consumes group `attribution`.
    pub attribution: bool,
    /// Sends what the outbox holds.
    pub delivery: bool,
    /// Serves the admin API.
    pub admin: bool,
}

impl Roles {
    /// Everything.
    pub const ALL: Roles = Roles {
        doors: true,
        attribution: true,
        delivery: true,
        admin: true,
    };

    /// Nothing: a process of streams that are mounted apart ([`super::Plan::also`]).
    pub const NONE: Roles = Roles {
        doors: false,
        attribution: false,
        delivery: false,
        admin: false,
    };

    /// The roles, joined by `+`.
    #[must_use]
    pub fn name(self) -> String {
        let all = [
            (self.doors, "doors"),
            (self.attribution, "attribution"),
            (self.delivery, "delivery"),
            (self.admin, "admin"),
        ];
        let names: Vec<&str> = all.iter().filter(|(on, _)| *on).map(|(_, n)| *n).collect();
        match names.len() {
            0 => "none".to_owned(),
            4 => "all".to_owned(),
            _ => names.join("+"),
        }
    }
}

impl FromStr for Roles {
    type Err = String;

    /// `doors,attribution,delivery,admin`, any of them.
    fn from_str(text: &str) -> Result<Roles, String> {
        let mut roles = Roles::NONE;
        for name in text.split(',').map(str::trim) {
            match name {
                "doors" => roles.doors = true,
                "attribution" => roles.attribution = true,
                "delivery" => roles.delivery = true,
                "admin" => roles.admin = true,
                "all" => roles = Roles::ALL,
                _ => {
                    return Err(format!(
                        "no role `{name}`; there are doors, attribution, delivery, admin, all"
                    ));
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
        assert!("door".parse::<Roles>().unwrap_err().contains("doors"));
        assert!("".parse::<Roles>().is_err());
    }
}
