//! The text parts.

use super::{Brand, ITEMS_AT_MOST, links, one_line};
use millrace_schemas::notification::GenericBody;
use url::Url;

/// A mail's text part.
pub(super) fn mail(body: &GenericBody, brand: &Brand, unsubscribe: Option<&str>) -> String {
    let mut parts = vec![one_line(&body.title)];
    parts.extend(rest(body, brand.site.as_ref()));
    if let Some(action) = &body.action
        && let Some(url) = links::absolute(&action.url, brand.site.as_ref())
    {
        parts.push(format!("{}:\n{url}", one_line(&action.label)));
    }
    let mut foot = format!("-- \n{}", one_line(&brand.name));
    if let Some(url) = unsubscribe {
        foot.push_str("\nUnsubscribe: ");
        foot.push_str(url);
    }
    parts.push(foot);
    joined(parts)
}

/// An inbox item's text: all but heading and button.
pub(super) fn inbox(body: &GenericBody) -> String {
    joined(rest(body, None))
}

fn rest(body: &GenericBody, site: Option<&Url>) -> Vec<String> {
    let items = body.items.iter().take(ITEMS_AT_MOST).map(|item| {
        let text = one_line(&item.text);
        let url = item.url.as_deref();
        match url.and_then(|url| links::absolute(url, site)) {
            Some(url) => format!("- {text}\n  {url}"),
            None => format!("- {text}"),
        }
    });
    vec![
        super::lines(&body.intro),
        items.collect::<Vec<_>>().join("\n"),
    ]
}

fn joined(parts: Vec<String>) -> String {
    let some: Vec<String> = parts.into_iter().filter(|p| !p.is_empty()).collect();
    some.join("\n\n")
}
