//! Addresses: as an envelope takes them, and what of one may be shown. Pure.

use lettre::Address;
use url::Host;

/// What is shown of an address: its first letter and its domain, `d***@example.com`.
#[must_use]
pub fn mask(address: &str) -> String {
    let address = address.trim();
    match address.rsplit_once('@') {
        Some((local, domain)) if !local.is_empty() && !domain.is_empty() => {
            let first = local.chars().next().unwrap_or('*');
            let domain: String = domain.chars().filter(|c| !c.is_control()).collect();
            format!("{first}***@{domain}")
        }
        _ => "***".to_owned(),
    }
}

/// An address as an envelope takes it: its domain in ASCII (IDNA). None: it is no address.
#[must_use]
pub fn parse(text: &str) -> Option<Address> {
    let (local, domain) = text.trim().rsplit_once('@')?;
    let Ok(Host::Domain(domain)) = Host::parse(domain) else {
        return None;
    };
    // Without the dots at its end it may be a number, which is no domain.
    let Ok(Host::Domain(domain)) = Host::parse(domain.trim_end_matches('.')) else {
        return None;
    };
    if local.len() > 64 || local.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return None;
    }
    Address::new(local, domain).ok()
}

/// Whether it needs SMTPUTF8: letters outside of ASCII before the @.
#[must_use]
pub fn needs_utf8(address: &Address) -> bool {
    !address.user().is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_shows_one_letter_and_the_domain() {
        for (address, masked) in [
            ("dora@example.com", "d***@example.com"),
            (" Ünal@bücher.example ", "Ü***@bücher.example"),
            ("\"a@b\"@example.com", "\"***@example.com"),
            ("nobody", "***"),
            ("@example.com", "***"),
            ("", "***"),
        ] {
            assert_eq!(mask(address), masked, "{address}");
        }
    }

    #[test]
    fn domains_become_ascii_and_what_is_no_address_is_none() {
        let parsed = |text| parse(text).map(|a| a.to_string());
        assert_eq!(parsed("a@Example.COM").as_deref(), Some("a@example.com"));
        assert_eq!(
            parsed("a@bücher.example").as_deref(),
            Some("a@xn--bcher-kva.example")
        );
        for bad in [
            "a",
            "a@",
            "@b.example",
            "a b@c.example",
            "a@b.example\r\nRCPT TO:<x@y.example>",
            "a\r\nx@b.example",
            "a@127.0.0.1",
            "a@127.0.0.1..",
            "a@[::1]",
            "<a@b.example>",
        ] {
            assert_eq!(parsed(bad), None, "{bad:?}");
        }
        assert!(needs_utf8(&parse("ünal@example.com").expect("an address")));
        assert!(!needs_utf8(&parse("a@bücher.example").expect("an address")));
    }
}
