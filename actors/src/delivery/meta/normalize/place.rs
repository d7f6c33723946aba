//! City, state, zip code, country.

use super::person::only;
use super::{Context, omitted};
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

/// Punctuation of any script, and what ASCII calls so.
pub(super) fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation()
        || (!c.is_ascii() && c.general_category_group() == GeneralCategoryGroup::Punctuation)
}

fn is_dash(c: char) -> bool {
    c == '-' || (!c.is_ascii() && c.general_category() == GeneralCategory::DashPunctuation)
}

/// Lower case without blanks, punctuation and digits, other scripts kept.
pub(super) fn city(value: &str) -> String {
    only(value, |c| {
        !(c.is_whitespace() || c.is_control() || c.is_numeric() || is_punctuation(c))
    })
}

/// As a city; a state of the United States by its two letters, whether they or its name were given.
pub(super) fn state(value: &str, context: &Context<'_>) -> Result<String, &'static str> {
    let letters = city(value);
    if !(context.country.is_none() || context.is_us()) {
        return Ok(letters);
    }
    if let Some((_, code)) = STATES.iter().find(|(name, _)| *name == letters) {
        return Ok((*code).to_owned());
    }
    let two = letters.len() == 2 && letters.is_ascii();
    if context.is_us() && !two && !letters.is_empty() {
        return Err(omitted::NOT_A_STATE);
    }
    Ok(letters)
}

/// Lower case without blanks; what follows a dash is no part of it (`94035-1234`), unless the country is known and another
/// than the United States, where the dash alone goes (`00-950`). In the United States the first five digits.
pub(super) fn zip(value: &str, context: &Context<'_>) -> String {
    let tight = only(value, |c| !c.is_whitespace() && !c.is_control());
    if context.country.is_some() && !context.is_us() {
        return tight.chars().filter(|c| !is_dash(*c)).collect();
    }
    let head = tight.split(is_dash).next().unwrap_or_default();
    if context.is_us() {
        head.chars().take(5).collect()
    } else {
        head.to_owned()
    }
}

/// Two letters, lower case; what else stands around them (`U.S.`, `9gb`) does not count.
pub(super) fn country(value: &str) -> Result<String, &'static str> {
    let letters = city(value);
    if letters.is_empty() || (letters.len() == 2 && letters.bytes().all(|b| b.is_ascii_lowercase()))
    {
        Ok(letters)
    } else {
        Err(omitted::NOT_A_COUNTRY)
    }
}

/// States, the district and territories, by their names as [`city`] leaves them.
const STATES: [(&str, &str); 56] = [
    ("alabama", "al"),
    ("alaska", "ak"),
    ("americansamoa", "as"),
    ("arizona", "az"),
    ("arkansas", "ar"),
    ("california", "ca"),
    ("colorado", "co"),
    ("connecticut", "ct"),
    ("delaware", "de"),
    ("districtofcolumbia", "dc"),
    ("florida", "fl"),
    ("georgia", "ga"),
    ("guam", "gu"),
    ("hawaii", "hi"),
    ("idaho", "id"),
    ("illinois", "il"),
    ("indiana", "in"),
    ("iowa", "ia"),
    ("kansas", "ks"),
    ("kentucky", "ky"),
    ("louisiana", "la"),
    ("maine", "me"),
    ("maryland", "md"),
    ("massachusetts", "ma"),
    ("michigan", "mi"),
    ("minnesota", "mn"),
    ("mississippi", "ms"),
    ("missouri", "mo"),
    ("montana", "mt"),
    ("nebraska", "ne"),
    ("nevada", "nv"),
    ("newhampshire", "nh"),
    ("newjersey", "nj"),
    ("newmexico", "nm"),
    ("newyork", "ny"),
    ("northcarolina", "nc"),
    ("northdakota", "nd"),
    ("northernmarianaislands", "mp"),
    ("ohio", "oh"),
    ("oklahoma", "ok"),
    ("oregon", "or"),
    ("pennsylvania", "pa"),
    ("puertorico", "pr"),
    ("rhodeisland", "ri"),
    ("southcarolina", "sc"),
    ("southdakota", "sd"),
    ("tennessee", "tn"),
    ("texas", "tx"),
    ("utah", "ut"),
    ("vermont", "vt"),
    ("virginia", "va"),
    ("virginislands", "vi"),
    ("washington", "wa"),
    ("westvirginia", "wv"),
    ("wisconsin", "wi"),
    ("wyoming", "wy"),
];
