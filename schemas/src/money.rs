//! Payouts: decimal text in, `Decimal` out; nothing guessed.

use rust_decimal::Decimal;

/// What a network's payouts may look like beyond plain decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayoutRules {
    /// `1,50` and `1.234,50` are read; a currency sign before or after is dropped.
    pub comma_decimals: bool,
    /// A leading or trailing `$`, `€`, `£`, `¥` or three-letter code is dropped.
    pub currency_signs: bool,
}

/// Parses a non-blank payout.
///
/// Plain decimal text with an optional sign: digits, at most one point, at most 18 digits in all. Exponents, `NaN`,
/// infinities, grouping and signs of currency are refused, the last two unless the network's rules allow them.
///
/// # Errors
/// `()`: the value is no payout ([`crate::outcome::reason::PAYOUT_MALFORMED`]).
#[expect(
    clippy::result_unit_err,
    reason = "there is one way to be malformed and its reason code is named"
)]
pub fn parse_payout(text: &str, rules: PayoutRules) -> Result<Decimal, ()> {
    let mut text = text.trim();
    if rules.currency_signs {
        text = strip_currency(text);
    }
    let normalised;
    if rules.comma_decimals && text.contains(',') {
        let (head, tail) = text.rsplit_once(',').ok_or(())?;
        let groups: Vec<&str> = head.split('.').collect();
        let grouped = groups.len() > 1;
        if head.contains(',') || (grouped && groups.iter().skip(1).any(|g| g.len() != 3)) {
            return Err(());
        }
        normalised = format!("{}.{tail}", groups.concat());
        text = &normalised;
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let count = digits.bytes().filter(u8::is_ascii_digit).count();
    let points = digits.bytes().filter(|b| *b == b'.').count();
    if count == 0
        || count > 18
        || points > 1
        || count + points != digits.len()
        || digits.ends_with('.')
    {
        return Err(());
    }
    let padded;
    let digits = if digits.starts_with('.') {
        padded = format!("0{digits}");
        padded.as_str()
    } else {
        digits
    };
    let mut value = Decimal::from_str_exact(digits).map_err(|_| ())?;
    if negative && !value.is_zero() {
        value.set_sign_negative(true);
    }
    Ok(value)
}

fn strip_currency(text: &str) -> &str {
    let signs: &[char] = &['$', '€', '£', '¥'];
    let text = text
        .trim_start_matches(signs)
        .trim_end_matches(signs)
        .trim();
    let code = |s: &str| s.len() == 3 && s.bytes().all(|b| b.is_ascii_uppercase());
    if let Some(head) = text.get(..3).filter(|s| code(s)) {
        return text.strip_prefix(head).unwrap_or(text).trim();
    }
    if let Some(tail) = text
        .len()
        .checked_sub(3)
        .and_then(|n| text.get(n..))
        .filter(|s| code(s))
    {
        return text.strip_suffix(tail).unwrap_or(text).trim();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: PayoutRules = PayoutRules {
        comma_decimals: false,
        currency_signs: false,
    };
    const LOOSE: PayoutRules = PayoutRules {
        comma_decimals: true,
        currency_signs: true,
    };

    fn ok(text: &str, rules: PayoutRules, want: &str) {
        assert_eq!(
            parse_payout(text, rules).map(|d| d.to_string()),
            Ok(want.to_owned()),
            "{text}"
        );
    }

    #[test]
    fn plain_decimals() {
        ok("1", PLAIN, "1");
        ok(" 12.50 ", PLAIN, "12.50");
        ok("0", PLAIN, "0");
        ok("-3.2", PLAIN, "-3.2");
        ok("+3", PLAIN, "3");
        ok(".5", PLAIN, "0.5");
        ok("123456789012345678", PLAIN, "123456789012345678");
    }

    #[test]
    fn malformed() {
        for t in [
            "NaN",
            "inf",
            "-Infinity",
            "1e3",
            "1E-2",
            "1,50",
            "$1",
            "1.2.3",
            "--1",
            "1.",
            "-",
            ".",
            "0x10",
            "1 000",
            "1234567890123456789",
            "１２",
            "1_000",
        ] {
            assert_eq!(parse_payout(t, PLAIN), Err(()), "{t}");
        }
        for t in ["1,2,3", "1.23,5", "1e3", "NaN", "", "$"] {
            assert_eq!(parse_payout(t, LOOSE), Err(()), "{t}");
        }
    }

    #[test]
    fn allowed_forms() {
        ok("1,50", LOOSE, "1.50");
        ok("1.234,50", LOOSE, "1234.50");
        ok("$ 12.50", LOOSE, "12.50");
        ok("12,5 EUR", LOOSE, "12.5");
        ok("USD 7", LOOSE, "7");
    }
}
