//! `millrace meta normalize`: what would be sent of a value, so that it can be compared with what a browser or another sender
//! makes of it. Needs neither settings nor a database.

use super::{Context, output};
use crate::delivery::meta::normalize::{self, Field, Normalized, omitted};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// The normalised value and its digest, or `omitted` and why.
    #[command(after_help = "Examples:\n  \
        millrace meta normalize em ' John_Smith@gmail.com '\n  \
        millrace meta normalize ph '(650)555-1212' --calling-code 1\n  \
        millrace meta normalize zp 94035-1234 --country us\n  \
        millrace meta normalize fbc IwAR2F4-dbP0 --clicked-ms 1554763741205\n  \
        millrace --json meta normalize country U.S.\n\
        Fields: em ph fn ln fi f5last ge db ct st zp country external_id (hashed), fbc fbp client_ip_address\n\
        client_user_agent (never hashed).")]
    Normalize(Normalize),
}

#[derive(Debug, clap::Args)]
pub(super) struct Normalize {
    /// The field, as Meta names it.
    field: Field,
    /// The value, as it was given.
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// The person's country (ISO alpha-2): how states and zip codes are read.
    #[arg(long)]
    country: Option<String>,
    /// The calling code of phone numbers that were written down without one.
    #[arg(long)]
    calling_code: Option<String>,
    /// When the click came, in milliseconds since 1970: makes `fbc` of a bare fbclid.
    #[arg(long)]
    clicked_ms: Option<i64>,
}

pub(super) fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let Args::Normalize(n) = args;
    let known = normalize::Context {
        country: n.country.as_deref(),
        calling_code: n.calling_code.as_deref(),
        clicked_ms: n.clicked_ms,
    };
    let result = normalize::normalize(n.field, &n.value, &known);
    let text = if context.json() {
        let field = n.field.name();
        match &result {
            Normalized::Hashed {
                normalised,
                sha256_hex,
            } => json!({"field": field, "normalised": normalised, "sha256": sha256_hex}),
            Normalized::Plain(value) => {
                json!({"field": field, "normalised": value, "sha256": null})
            }
            Normalized::Omitted(code) => json!({"field": field, "omitted": code, "why": why(code)}),
        }
        .to_string()
    } else {
        match &result {
            Normalized::Hashed {
                normalised,
                sha256_hex,
            } => format!("normalised  {normalised}\nsha256      {sha256_hex}"),
            Normalized::Plain(value) => {
                format!("normalised  {value}\nsha256      none: it is sent as it is")
            }
            Normalized::Omitted(code) => format!("omitted     {code}: {}", why(code)),
        }
    };
    output::print(&text);
    Ok(ExitCode::SUCCESS)
}

fn why(code: &str) -> &'static str {
    match code {
        omitted::BLANK => "nothing is given; blank, `null` and `undefined` count as nothing",
        omitted::NOTHING_LEFT => "nothing is left once what does not count is taken away",
        omitted::NOT_F_OR_M => "it says neither f nor m",
        omitted::NOT_A_DATE => "it is no date, or one that can be read in two ways; write YYYYMMDD",
        omitted::NOT_A_COUNTRY => "it is no ISO alpha-2 code",
        omitted::NOT_A_STATE => {
            "it is no state of the United States, by its two letters or its name"
        }
        omitted::BAD_FBC => {
            "it is not fb.<digit>.<milliseconds>.<click id>; Meta refuses the whole event for that"
        }
        omitted::BAD_FBP => {
            "it is not fb.<digit>.<milliseconds>.<digits>; Meta refuses the whole event for that"
        }
        omitted::BAD_IP => "it is no IP address",
        omitted::PRIVATE_IP => "the address means something inside one network alone",
        _ => "its rule leaves it out",
    }
}
