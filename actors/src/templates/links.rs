//! Links out of payloads: whole ones over HTTP, or paths of the site, and nothing else.

use url::Url;

/// A path of the site: it begins with one slash, and a browser reads it as nothing but a path.
#[must_use]
pub fn site_relative(raw: &str) -> Option<String> {
    let raw = raw.trim();
    let hostile = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    let path = raw.starts_with('/') && !raw.starts_with("//") && !raw.chars().any(hostile);
    path.then(|| raw.to_owned())
}

/// A link as a mail can carry it: whole, over HTTP. A path of the site is led there; without a site, or of another scheme, there
/// is none.
#[must_use]
pub fn absolute(raw: &str, site: Option<&Url>) -> Option<String> {
    let raw = raw.trim();
    if raw.starts_with('/') {
        let path = site_relative(raw)?;
        return site?.join(&path).ok().map(String::from);
    }
    let url = Url::parse(raw).ok()?;
    let whole = matches!(url.scheme(), "https" | "http")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none();
    whole.then(|| url.into())
}
