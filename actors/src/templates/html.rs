//! The HTML part: tables and inline styles, as mail clients want them, and one accent colour.

use super::{Brand, ITEMS_AT_MOST, links, one_line};
use millrace_schemas::notification::GenericBody;
use std::fmt::Write;

const FONT: &str = "font-family:-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif";

/// A mail's HTML part.
pub(super) fn mail(body: &GenericBody, brand: &Brand, unsubscribe: Option<&str>) -> String {
    let mut rows = String::new();
    let accent = accent(brand);
    let title = escape(&one_line(&body.title));
    row(
        &mut rows,
        &format!(
            "<h1 style=\"margin:0;font-size:20px;line-height:28px;color:{accent}\">{title}</h1>"
        ),
    );
    let intro = super::lines(&body.intro);
    if !intro.is_empty() {
        let intro = escape(&intro).replace('\n', "<br>\r\n");
        row(&mut rows, &format!("<p style=\"margin:0\">{intro}</p>"));
    }
    if !body.items.is_empty() {
        let mut list = String::from("<ul style=\"margin:0;padding-left:20px\">");
        for item in body.items.iter().take(ITEMS_AT_MOST) {
            let text = escape(&one_line(&item.text));
            let url = item.url.as_deref();
            let url = url.and_then(|url| links::absolute(url, brand.site.as_ref()));
            let _ = match url {
                Some(url) => write!(
                    list,
                    "\r\n<li><a href=\"{}\" style=\"color:{accent}\">{text}</a></li>",
                    escape(&url)
                ),
                None => write!(list, "\r\n<li>{text}</li>"),
            };
        }
        list.push_str("\r\n</ul>");
        row(&mut rows, &list);
    }
    if let Some(action) = &body.action
        && let Some(url) = links::absolute(&action.url, brand.site.as_ref())
    {
        let (url, label) = (escape(&url), escape(&one_line(&action.label)));
        row(
            &mut rows,
            &format!(
                "<a href=\"{url}\" style=\"display:inline-block;padding:10px 18px;background:{accent};color:#ffffff;\
                 text-decoration:none;border-radius:4px\">{label}</a>"
            ),
        );
    }
    let mut foot = escape(&one_line(&brand.name));
    if let Some(url) = unsubscribe {
        let _ = write!(
            foot,
            "<br>\r\n<a href=\"{}\" style=\"color:#666666\">Unsubscribe</a>",
            escape(url)
        );
    }
    row(
        &mut rows,
        &format!("<p style=\"margin:0;font-size:12px;line-height:18px;color:#666666\">{foot}</p>"),
    );
    format!(
        "<!DOCTYPE html>\r\n<html><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title></head>\r\n<body style=\"margin:0;background:#f4f4f4\">\r\n\
         <table role=\"presentation\" width=\"100%\" cellpadding=\"0\" cellspacing=\"0\" style=\"background:#f4f4f4\"><tr><td align=\"center\">\r\n\
         <table role=\"presentation\" width=\"560\" cellpadding=\"0\" cellspacing=\"0\" style=\"max-width:560px;background:#ffffff;\
         color:#222222;font-size:15px;line-height:22px;{FONT}\">\r\n{rows}</table>\r\n</td></tr></table>\r\n</body></html>"
    )
}

fn row(rows: &mut String, cell: &str) {
    let _ = write!(
        rows,
        "<tr><td style=\"padding:14px 24px\">{cell}</td></tr>\r\n"
    );
}

/// The brand's colour; anything but `#rrggbb` would be markup of somebody else's choosing.
fn accent(brand: &Brand) -> &str {
    let good = brand
        .accent
        .strip_prefix('#')
        .is_some_and(|digits| digits.len() == 6 && digits.bytes().all(|b| b.is_ascii_hexdigit()));
    if good { &brand.accent } else { "#333333" }
}

/// Text as it may stand in HTML, in an attribute's quotes too.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}
