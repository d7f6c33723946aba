//! What the demo sets up before the traffic comes: two affiliate networks, five offers, four campaigns, a pixel of two of them, a
//! webhook. Ids are given by the admin API and filled in then.

use rust_decimal::Decimal;

/// An affiliate network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Its id, once made.
    pub id: String,
    /// Its postback secret, once made.
    pub secret: String,
    /// Its name.
    pub name: &'static str,
    /// What it calls things: (plain name, its name).
    pub names: &'static [(&'static str, &'static str)],
    /// Its words for approved, pending and rejected.
    pub words: [&'static str; 3],
    /// Whether it takes back what it approved, and writes `$1,50`.
    pub loose: bool,
}

impl Network {
    /// What it calls a parameter.
    #[must_use]
    pub fn name_of<'a>(&self, plain: &'a str) -> &'a str {
        self.names
            .iter()
            .find(|(name, _)| *name == plain)
            .map_or(plain, |(_, theirs)| theirs)
    }
}

/// An offer.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Its id, once made.
    pub id: String,
    /// Its name.
    pub name: &'static str,
    /// Its network's place in [`Scenery::networks`].
    pub network: usize,
    /// Its default payout, US dollars.
    pub payout: Decimal,
}

/// A campaign: one offer to navigate to, and the sidecar offer.
#[derive(Clone, Debug, Default)]
pub struct Campaign {
    /// Its id: the public slug.
    pub id: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Start of the paths that belong to it; the last campaign takes the rest.
    pub path: &'static str,
    /// Its offer's place in [`Scenery::offers`].
    pub offer: usize,
    /// Whether its conversions are told to Meta.
    pub pixel: bool,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Scenery {
    /// Networks.
    pub networks: Vec<Network>,
    /// Offers; the last one is the sidecar offer of every campaign.
    pub offers: Vec<Offer>,
    /// Campaigns.
    pub campaigns: Vec<Campaign>,
    /// The pixel's id, once made.
    pub pixel: String,
    /// The token of the shard's feed, once made.
    pub feed_token: String,
}

/// The plain network's place.
pub const NORTH: usize = 0;
/// The place of the network with its own words, which also runs the sidecar offer.
pub const SOUTH: usize = 1;
/// What the second network calls the sidecar offer. Its leading zeros matter.
pub const SIDECAR_ID: &str = "0042";

impl Scenery {
    /// As it is before anything was made.
    #[must_use]
    pub fn new() -> Scenery {
        let offer = |name, network, cents| Offer {
            id: String::new(),
            name,
            network,
            payout: Decimal::new(cents, 2),
        };
        let campaign = |id, name, path, offer| Campaign {
            id,
            name,
            path,
            offer,
            pixel: false,
        };
        let with_pixel = |campaign| Campaign {
            pixel: true,
            ..campaign
        };
        Scenery {
            networks: vec![
                Network {
                    name: "Northern Network",
                    words: ["approved", "pending", "rejected"],
                    ..Network::default()
                },
                Network {
                    name: "Southern Network",
                    names: &[
                        ("click_id", "sub2"),
                        ("payout", "amount"),
                        ("txid", "transaction_id"),
                    ],
                    words: ["sale", "hold", "void"],
                    loose: true,
                    ..Network::default()
                },
            ],
            offers: vec![
                offer("Reader's subscription", NORTH, 1_250),
                offer("Tools for the desktop", NORTH, 900),
                offer("Course on operations", SOUTH, 2_400),
                offer("Conference ticket", SOUTH, 3_999),
                offer("Sticker by the way", SOUTH, 175),
            ],
            campaigns: vec![
                with_pixel(campaign("demo-blog", "Readers of the blog", "/blog", 0)),
                campaign("demo-projects", "Users of the tools", "/projects", 1),
                campaign("demo-articles", "Readers of articles", "/articles", 2),
                with_pixel(campaign("demo-site", "Everybody else", "/", 3)),
            ],
            pixel: String::new(),
            feed_token: String::new(),
        }
    }

    /// The place of the sidecar offer.
    #[must_use]
    pub fn sidecar(&self) -> usize {
        self.offers.len().saturating_sub(1)
    }

    /// The place of the campaign that a page belongs to.
    #[must_use]
    pub fn campaign_of(&self, path: &str) -> usize {
        self.campaigns
            .iter()
            .position(|c| path.starts_with(c.path))
            .unwrap_or_default()
    }
}

impl Default for Scenery {
    fn default() -> Scenery {
        Scenery::new()
    }
}
