//! Phone, names, gender, birthday.

use super::omitted;
use super::place::is_punctuation;
use unicode_normalization::UnicodeNormalization;

/// Digits alone, no leading zeros. With a calling code, a number that was written without one (no `+`, no `00`) gets it; one
/// that begins with it already and is longer than ten digits is taken as it is.
pub(super) fn phone(value: &str, calling_code: Option<&str>) -> String {
    let digits: String = value.chars().filter(char::is_ascii_digit).collect();
    let significant = digits.trim_start_matches('0');
    let code: String = calling_code
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    let complete = value.trim_start().starts_with('+')
        || digits.starts_with("00")
        || (significant.starts_with(&code) && significant.len() > 10);
    if significant.is_empty() || code.is_empty() || complete {
        significant.to_owned()
    } else {
        format!("{code}{significant}")
    }
}

/// Lower case, composed, without punctuation. Blanks inside stay, one each.
pub(super) fn name(value: &str) -> String {
    let kept = only(value, |c| !is_punctuation(c));
    let mut words = kept.split_whitespace();
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| all + " " + word)
}

/// Lower case in composed form: folding may take apart what was composed, so that it is composed at the end.
pub(super) fn lower(value: &str) -> String {
    if value.is_ascii() {
        return value.to_ascii_lowercase();
    }
    value
        .nfc()
        .collect::<String>()
        .to_lowercase()
        .nfc()
        .collect()
}

/// Lower case and composed, with the characters alone that are to stay.
pub(super) fn only(value: &str, stays: impl Fn(char) -> bool) -> String {
    let lower = lower(value);
    let kept = lower.chars().filter(|c| stays(*c));
    if lower.is_ascii() {
        kept.collect()
    } else {
        // What stood between a letter and its accent may be gone now.
        kept.nfc().collect()
    }
}

/// `f` or `m`.
pub(super) fn gender(value: &str) -> Result<String, &'static str> {
    match lower(value).as_str() {
        "f" | "female" | "woman" | "girl" | "she" | "her" => Ok("f".to_owned()),
        "m" | "male" | "man" | "boy" | "he" | "him" => Ok("m".to_owned()),
        _ => Err(omitted::NOT_F_OR_M),
    }
}

/// `YYYYMMDD`, from that, `MMDDYYYY`, year first with any separator, `M/D/YYYY` and `M-D-YYYY` as in Meta's own example (days
/// first only where it can be nothing else), and `D.M.YYYY`.
pub(super) fn birthday(value: &str) -> Result<String, &'static str> {
    let day = value.split(['T', 't']).next().unwrap_or_default().trim();
    let parts: Vec<&str> = day
        .split(|c: char| !c.is_ascii_digit())
        .filter(|p| !p.is_empty())
        .collect();
    let only = |allowed: &[char]| {
        day.chars()
            .all(|c| c.is_ascii_digit() || allowed.contains(&c))
    };
    let read = match parts.as_slice() {
        [all] if all.len() == 8 && only(&[]) => {
            let at = |from: usize, to: usize| all.get(from..to).unwrap_or_default();
            date(at(0, 4), at(4, 6), at(6, 8)).or_else(|| date(at(4, 8), at(0, 2), at(2, 4)))
        }
        [y, m, d] if y.len() == 4 && only(&['-', '/', '.', ' ']) => date(y, m, d),
        [m, d, y] if y.len() == 4 && only(&['-', '/']) => date(y, m, d).or_else(|| date(y, d, m)),
        [d, m, y] if y.len() == 4 && only(&['.', ' ']) => date(y, m, d),
        _ => None,
    };
    read.ok_or(omitted::NOT_A_DATE)
}

fn date(year: &str, month: &str, day: &str) -> Option<String> {
    let year: i16 = year.parse().ok().filter(|y| (1900..=2100).contains(y))?;
    let date = jiff::civil::Date::new(year, month.parse().ok()?, day.parse().ok()?).ok()?;
    Some(format!(
        "{:04}{:02}{:02}",
        date.year(),
        date.month(),
        date.day()
    ))
}
