//! How ids are written. One grammar for streams, triggers, audiences, rosters and rule groups: an id that were legal as one and
//! illegal as another could not name one thing.

/// Longest id, in bytes.
pub const MAX_ID: usize = 64;

/// A module's id: a lower-case letter, then letters and digits.
#[must_use]
pub fn is_module(text: &str) -> bool {
    text.len() <= 32 && segment(text, false)
}

/// Segments of lower-case letters, digits and `_`, joined by dots; at least two.
#[must_use]
pub fn is_id(text: &str) -> bool {
    text.len() <= MAX_ID && text.contains('.') && text.split('.').all(|s| segment(s, true))
}

/// A template's key has dashes where an id has underscores: it stands in URLs of the editor.
#[must_use]
pub fn is_template_key(text: &str) -> bool {
    text.len() <= MAX_ID
        && text.contains('.')
        && text
            .split('.')
            .all(|s| segment(&s.replace('-', "0"), false))
}

/// A variable's name: a letter, then letters, digits and `_`.
#[must_use]
pub fn is_variable(text: &str) -> bool {
    text.len() <= MAX_ID
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A mapping's name within its module: lower-case letters, digits, `_` and dots.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.len() <= MAX_ID && text.split('.').all(|s| segment(s, true))
}

/// Whether the id begins with `<module>.`.
#[must_use]
pub fn is_of(module: &str, id: &str) -> bool {
    id.strip_prefix(module)
        .is_some_and(|rest| rest.starts_with('.'))
}

fn segment(text: &str, underscore: bool) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || (underscore && b == b'_'))
}

#[cfg(test)]
mod tests {
    use super::{is_id, is_module, is_name, is_of, is_template_key, is_variable};

    #[test]
    fn ids_and_keys_have_their_own_grammars() {
        assert!(is_id("uo.champ.boss_up") && !is_template_key("uo.champ.boss_up"));
        assert!(is_template_key("uo.champ.boss-up") && !is_id("uo.champ.boss-up"));
        for bad in ["uo", "uo.", ".uo", "Uo.x", "uo..x", "uo.1x", "uo.é", ""] {
            assert!(!is_id(bad), "{bad:?}");
        }
        assert!(is_module("uo") && !is_module("u_o") && !is_module("1uo"));
        assert!(is_variable("periodsRemaining") && !is_variable("_x") && !is_variable("a.b"));
        assert!(is_name("house_idoc") && !is_name(""));
        assert!(is_of("uo", "uo.x") && !is_of("uo", "uox.y") && !is_of("uo", "uo"));
    }
}
