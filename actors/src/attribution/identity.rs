//! The identity of a conversion under (workspace, network): encoded keys in which absent ≠ empty, as 16-byte digests.

use millrace_schemas::ids;
use smallvec::SmallVec;
use uuid::Uuid;

/// Encodes an optional field: absent is told from empty.
fn field(value: Option<&str>) -> SmallVec<[u8; 64]> {
    let mut out = SmallVec::new();
    match value {
        None => out.push(0),
        Some(text) => {
            out.push(1);
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

/// What a postback brings to identify its conversion.
#[derive(Debug, Clone, Copy)]
pub struct Brought<'a> {
    /// The workspace.
    pub workspace: i32,
    /// The network.
    pub network: &'a str,
    /// The click id as sent.
    pub click_id: &'a str,
    /// The credited offer.
    pub offer: &'a str,
    /// `external_conversion_id`.
    pub external_id: Option<&'a str>,
    /// `txid`.
    pub txid: Option<&'a str>,
    /// `event`.
    pub event: Option<&'a str>,
    /// The provider's event type.
    pub provider_event: Option<&'a str>,
}

/// The keys of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keys {
    /// By the provider's conversion id.
    pub external: Option<Uuid>,
    /// By transaction, credited offer and provider event type.
    pub txid: Option<Uuid>,
    /// By click, credited offer, event and provider event type: only where neither of the others was brought.
    pub click: Option<Uuid>,
}

impl Keys {
    /// The keys of what was brought.
    #[must_use]
    pub fn of(b: &Brought<'_>) -> Keys {
        let workspace = b.workspace.to_be_bytes();
        let scope = [workspace.as_slice(), b.network.as_bytes()];
        let provider = field(b.provider_event);
        let txid = b.txid.map(|txid| {
            let parts = [
                scope[0],
                scope[1],
                txid.as_bytes(),
                b.offer.as_bytes(),
                &provider,
            ];
            ids::digest("conversion-txid", &parts)
        });
        let external = b
            .external_id
            .map(|id| external_key(b.workspace, b.network, id));
        let click = (txid.is_none() && external.is_none()).then(|| {
            let event = field(b.event);
            let parts = [
                scope[0],
                scope[1],
                b.click_id.as_bytes(),
                b.offer.as_bytes(),
                &event,
                &provider,
            ];
            ids::digest("conversion-click", &parts)
        });
        Keys {
            external,
            txid,
            click,
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Uuid> + use<> {
        [self.external, self.txid, self.click].into_iter().flatten()
    }
}

/// The key of a provider's conversion id alone: it needs no journey.
#[must_use]
pub fn external_key(workspace: i32, network: &str, external_id: &str) -> Uuid {
    ids::digest(
        "conversion-external",
        &[
            &workspace.to_be_bytes(),
            network.as_bytes(),
            external_id.as_bytes(),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Brought<'_> = Brought {
        workspace: 1,
        network: "nw_1",
        click_id: "c",
        offer: "of_1",
        external_id: None,
        txid: None,
        event: None,
        provider_event: None,
    };

    #[test]
    fn absent_is_not_empty_and_nothing_runs_together() {
        let a = Keys::of(&BASE);
        assert_ne!(
            a,
            Keys::of(&Brought {
                event: Some(""),
                ..BASE
            })
        );
        assert_ne!(
            Keys::of(&Brought {
                event: Some("ab"),
                provider_event: None,
                ..BASE
            }),
            Keys::of(&Brought {
                event: Some("a"),
                provider_event: Some("b"),
                ..BASE
            })
        );
        assert_ne!(
            Keys::of(&Brought {
                txid: Some("1"),
                offer: "23",
                ..BASE
            }),
            Keys::of(&Brought {
                txid: Some("12"),
                offer: "3",
                ..BASE
            })
        );
    }

    #[test]
    fn tenants_and_networks_never_meet() {
        let t = Brought {
            txid: Some("t"),
            ..BASE
        };
        assert_ne!(Keys::of(&t), Keys::of(&Brought { workspace: 2, ..t }));
        assert_ne!(
            Keys::of(&t),
            Keys::of(&Brought {
                network: "nw_2",
                ..t
            })
        );
    }

    #[test]
    fn the_click_key_is_for_those_who_bring_nothing_else() {
        assert!(Keys::of(&BASE).click.is_some());
        assert!(
            Keys::of(&Brought {
                txid: Some("t"),
                ..BASE
            })
            .click
            .is_none()
        );
        assert!(
            Keys::of(&Brought {
                external_id: Some("e"),
                ..BASE
            })
            .click
            .is_none()
        );
        let both = Keys::of(&Brought {
            txid: Some("t"),
            external_id: Some("e"),
            ..BASE
        });
        assert_eq!(both.iter().count(), 2);
    }
}
