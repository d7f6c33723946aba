//! What a notice looks like: the generic bodies (title, intro, items, action) as a mail's HTML and text, and as an inbox item.
//!
//! What lives here: rendering, pure. What may not: reading the store, deciding who is told, SMTP. Whatever comes from a payload is
//! text: it is escaped in HTML, and a link is judged where it is put in, not where it came from.

mod html;
mod links;
mod text;

pub use links::{absolute, site_relative};

use millrace_schemas::notification::GenericBody;
use url::Url;

/// How a workspace's mails look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brand {
    /// Its name.
    pub name: String,
    /// Its one accent colour, `#rrggbb`.
    pub accent: String,
    /// Where site-relative links lead; none: they are left out.
    pub site: Option<Url>,
}

/// A rendered mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// One line.
    pub subject: String,
    /// The text part.
    pub text: String,
    /// The HTML part.
    pub html: String,
}

/// A rendered inbox item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxItem {
    /// The heading.
    pub title: String,
    /// The rest, as text.
    pub body: String,
    /// Where it leads, site-relative.
    pub url: Option<String>,
}

/// Characters of a heading at most; what is longer is cut.
pub const TITLE_AT_MOST: usize = 2_000;
/// Items shown at most.
pub const ITEMS_AT_MOST: usize = 200;

/// The generic body as a mail. `unsubscribe`: the link that both parts end with.
#[must_use]
pub fn mail(body: &GenericBody, brand: &Brand, unsubscribe: Option<&str>) -> Mail {
    Mail {
        subject: one_line(&body.title),
        text: text::mail(body, brand, unsubscribe),
        html: html::mail(body, brand, unsubscribe),
    }
}

/// The generic body as an inbox item: the heading is the title, the button the link, all else text.
#[must_use]
pub fn inbox(body: &GenericBody) -> InboxItem {
    InboxItem {
        title: one_line(&body.title),
        body: text::inbox(body),
        url: body
            .action
            .as_ref()
            .and_then(|action| site_relative(&action.url)),
    }
}

/// A text on one line, without control characters, cut to [`TITLE_AT_MOST`].
#[must_use]
pub fn one_line(text: &str) -> String {
    let blank = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let line: String = text
        .chars()
        .map(|c| if blank(c) { ' ' } else { c })
        .take(TITLE_AT_MOST)
        .collect();
    line.trim().to_owned()
}

/// A text of several lines, without control characters but line feeds.
fn lines(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let kept = text.chars().filter(|c| *c == '\n' || !c.is_control());
    kept.collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests;
