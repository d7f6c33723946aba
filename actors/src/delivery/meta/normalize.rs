//! What Meta matches people by: each field brought into its one form, then hashed or passed on. Pure.
//!
//! The rules are those of the specification (Channels § Meta), which follow Meta's public parameter reference; every row of
//! `vectors.tsv` holds. Three of them hold for all hashed fields: what is blank, `null` or `undefined` is omitted, an empty text is
//! never hashed, and 64 hexadecimal digits are a digest already and are passed on in lower case.

mod browser;
mod person;
mod place;

pub use browser::fbc_from_click;

use sha2::{Digest, Sha256};
use std::str::FromStr;

/// The SHA-256 of nothing: what senders that hash a missing value send for a contact.
pub const DIGEST_OF_NOTHING: &str =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A field of `user_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// Email address.
    Em,
    /// Phone number.
    Ph,
    /// First name.
    Fn,
    /// Last name.
    Ln,
    /// The first letter of the first name.
    Fi,
    /// The first five letters of the last name.
    F5Last,
    /// Gender.
    Ge,
    /// Date of birth.
    Db,
    /// City.
    Ct,
    /// State.
    St,
    /// Zip code.
    Zp,
    /// Country.
    Country,
    /// The advertiser's own id of the person.
    ExternalId,
    /// Meta's click id.
    Fbc,
    /// Meta's browser id.
    Fbp,
    /// The client's address.
    ClientIpAddress,
    /// The client's user agent.
    ClientUserAgent,
}

impl Field {
    /// All of them.
    pub const ALL: [Field; 17] = [
        Field::Em,
        Field::Ph,
        Field::Fn,
        Field::Ln,
        Field::Fi,
        Field::F5Last,
        Field::Ge,
        Field::Db,
        Field::Ct,
        Field::St,
        Field::Zp,
        Field::Country,
        Field::ExternalId,
        Field::Fbc,
        Field::Fbp,
        Field::ClientIpAddress,
        Field::ClientUserAgent,
    ];

    /// Its name, as Meta spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Field::Em => "em",
            Field::Ph => "ph",
            Field::Fn => "fn",
            Field::Ln => "ln",
            Field::Fi => "fi",
            Field::F5Last => "f5last",
            Field::Ge => "ge",
            Field::Db => "db",
            Field::Ct => "ct",
            Field::St => "st",
            Field::Zp => "zp",
            Field::Country => "country",
            Field::ExternalId => "external_id",
            Field::Fbc => "fbc",
            Field::Fbp => "fbp",
            Field::ClientIpAddress => "client_ip_address",
            Field::ClientUserAgent => "client_user_agent",
        }
    }

    /// Whether it is sent as a digest; the others are never hashed.
    #[must_use]
    pub const fn is_hashed(self) -> bool {
        !matches!(
            self,
            Field::Fbc | Field::Fbp | Field::ClientIpAddress | Field::ClientUserAgent
        )
    }
}

/// No field has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no field `{0}`; there are: {names}", names = Field::ALL.map(Field::name).join(", "))]
pub struct UnknownField(String);

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(name: &str) -> Result<Field, UnknownField> {
        Field::ALL
            .into_iter()
            .find(|f| f.name() == name)
            .ok_or_else(|| UnknownField(name.to_owned()))
    }
}

/// What is known beside the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context<'a> {
    /// The person's country, ISO alpha-2: how states and zip codes are read.
    pub country: Option<&'a str>,
    /// The country's calling code, digits alone, for phone numbers that were written down without one.
    pub calling_code: Option<&'a str>,
    /// When the click came, in milliseconds since 1970: lets `fbc` be made of a bare fbclid.
    pub clicked_ms: Option<i64>,
}

impl Context<'_> {
    fn is_us(&self) -> bool {
        self.country
            .is_some_and(|c| c.trim().eq_ignore_ascii_case("us"))
    }
}

/// What becomes of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Normalized {
    /// Sent as its digest.
    Hashed {
        /// Its one form; a digest that came as one stands for itself.
        normalised: String,
        /// 64 lower-case hexadecimal digits.
        sha256_hex: String,
    },
    /// Sent as it stands here.
    Plain(String),
    /// The key is left out, for this reason.
    Omitted(&'static str),
}

impl Normalized {
    /// What stands in the event.
    #[must_use]
    pub fn into_sent(self) -> Option<String> {
        match self {
            Normalized::Hashed { sha256_hex, .. } => Some(sha256_hex),
            Normalized::Plain(value) => Some(value),
            Normalized::Omitted(_) => None,
        }
    }
}

/// Why a key is left out.
pub mod omitted {
    /// Nothing was given: blank, `null` or `undefined`.
    pub const BLANK: &str = "blank";
    /// Nothing is left of it once what does not count is taken away.
    pub const NOTHING_LEFT: &str = "nothing_left";
    /// No gender that Meta knows.
    pub const NOT_F_OR_M: &str = "not_f_or_m";
    /// No day of the calendar, or one that can be read in two ways.
    pub const NOT_A_DATE: &str = "not_a_date";
    /// No ISO alpha-2 code.
    pub const NOT_A_COUNTRY: &str = "not_a_country";
    /// No state of the United States.
    pub const NOT_A_STATE: &str = "not_a_us_state";
    /// Not `fb.<digit>.<milliseconds>.<click id>`.
    pub const BAD_FBC: &str = "invalid_fbc";
    /// Not `fb.<digit>.<milliseconds>.<digits>`.
    pub const BAD_FBP: &str = "invalid_fbp";
    /// No IP address.
    pub const BAD_IP: &str = "invalid_ip";
    /// An address that means something inside one network alone.
    pub const PRIVATE_IP: &str = "private_ip";
}

/// Brings a value into the field's one form.
#[must_use]
pub fn normalize(field: Field, value: &str, context: &Context<'_>) -> Normalized {
    let value = bare(value);
    if is_absent(value) {
        return Normalized::Omitted(omitted::BLANK);
    }
    if !field.is_hashed() {
        let plain = match field {
            Field::Fbc => browser::fbc(value, context.clicked_ms),
            Field::Fbp => browser::fbp(value),
            Field::ClientIpAddress => browser::client_ip(value),
            _ => Ok(value.to_owned()),
        };
        return plain.map_or_else(Normalized::Omitted, Normalized::Plain);
    }
    if let Some(digest) = as_digest(value) {
        return Normalized::Hashed {
            normalised: digest.clone(),
            sha256_hex: digest,
        };
    }
    let normalised = match field {
        Field::Em => Ok(person::lower(value)),
        Field::Ph => Ok(person::phone(value, context.calling_code)),
        Field::Fn | Field::Ln => Ok(person::name(value)),
        Field::Fi => Ok(person::name(value).chars().take(1).collect()),
        Field::F5Last => Ok(person::name(value).chars().take(5).collect()),
        Field::Ge => person::gender(value),
        Field::Db => person::birthday(value),
        Field::Ct => Ok(place::city(value)),
        Field::St => place::state(value, context),
        Field::Zp => Ok(place::zip(value, context)),
        Field::Country => place::country(value),
        // An opaque id: its case may be all that tells two apart.
        _ => Ok(value.to_owned()),
    };
    // What was cut off may have ended at a blank (`vand damme` by its first five).
    match normalised.as_deref().map(bare) {
        Ok("") => Normalized::Omitted(omitted::NOTHING_LEFT),
        Ok(text) => Normalized::Hashed {
            sha256_hex: sha256_hex(text),
            normalised: text.to_owned(),
        },
        Err(why) => Normalized::Omitted(why),
    }
}

/// The digest in lower case, if the text is one: 64 hexadecimal digits.
#[must_use]
pub fn as_digest(value: &str) -> Option<String> {
    let value = bare(value);
    let is = value.len() == 64 && value.bytes().all(|b| b.is_ascii_hexdigit());
    is.then(|| value.to_ascii_lowercase())
}

/// Without what nobody sees at its ends.
pub(super) fn bare(value: &str) -> &str {
    value.trim_matches(|c: char| {
        c.is_whitespace() || c.is_control() || matches!(c, '\u{200b}' | '\u{feff}')
    })
}

/// Whether a bare value says that there is none.
fn is_absent(value: &str) -> bool {
    value.is_empty()
        || value.eq_ignore_ascii_case("null")
        || value.eq_ignore_ascii_case("undefined")
}

fn sha256_hex(text: &str) -> String {
    use std::fmt::Write;
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    digest.iter().fold(String::with_capacity(64), |mut hex, b| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{b:02x}");
        hex
    })
}

#[cfg(test)]
mod tests;
