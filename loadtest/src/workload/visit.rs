//! A visit by its number: everything about it follows.

use super::{CAMPAIGNS, WORKSPACES};
use uuid::Uuid;

/// A visit as its number tells it.
#[derive(Clone, Copy, Debug)]
pub struct VisitFacts {
    /// Its number.
    pub number: u32,
    /// When its click id was minted, in milliseconds.
    pub millis: u64,
}

impl VisitFacts {
    /// The visit behind a click id that [`Workload`](super::Workload) minted.
    #[must_use]
    pub fn of_click_key(key: Uuid) -> VisitFacts {
        let bits = key.as_u128();
        VisitFacts {
            number: low32(bits) ^ low32(bits >> 32) & 0x3fff_ffff,
            millis: low64(bits >> 80),
        }
    }

    /// The click id's 16 bytes: a UUIDv7 whose random part carries the number, scrambled so that ids of one millisecond
    /// do not come in order.
    #[must_use]
    pub fn click_key(&self) -> Uuid {
        let noise = mix(u64::from(self.number) ^ 0x00c1_1c5e_ed00);
        let high = low32(u128::from(noise)) & 0x3fff_ffff;
        let bits = (u128::from(self.millis) << 80)
            | (0x7_u128 << 76)
            | (u128::from(noise >> 52) << 64)
            | (0b10_u128 << 62)
            | (u128::from(high) << 32)
            | u128::from(self.number ^ high);
        Uuid::from_u128(bits)
    }

    /// The visit's own id.
    #[must_use]
    pub fn visit_id(&self) -> Uuid {
        let noise = mix(u64::from(self.number) ^ 0x7151_7000);
        let bits = (u128::from(self.millis) << 80)
            | (0x7_u128 << 76)
            | (0b10_u128 << 62)
            | u128::from(noise >> 2);
        Uuid::from_u128(bits)
    }

    /// Its workspace.
    #[must_use]
    pub fn workspace(&self) -> i32 {
        i32::try_from(self.number % WORKSPACES + 1).unwrap_or(1)
    }

    /// Its campaign's number.
    #[must_use]
    pub fn campaign(&self) -> u32 {
        low32(u128::from(mix(u64::from(self.number) ^ 0xca3b))) % CAMPAIGNS
    }

    /// The campaign's id.
    #[must_use]
    pub fn campaign_id(&self) -> String {
        format!("spring-{:02}", self.campaign())
    }

    /// The id of the offer served for navigation.
    #[must_use]
    pub fn offer_id(&self) -> String {
        format!("of_nav{:04}", self.campaign())
    }

    /// The id of the sidecar offer on the page.
    #[must_use]
    pub fn sidecar_id(&self) -> String {
        format!("of_side{:04}", self.campaign())
    }

    /// The id of the network of both offers.
    #[must_use]
    pub fn network_id(&self) -> String {
        format!("nw_{:04}", self.campaign() % 7)
    }

    /// The default payout in cents.
    #[must_use]
    pub fn default_cents(&self) -> u32 {
        100 + self.campaign() * 5
    }
}

fn low32(v: u128) -> u32 {
    u32::try_from(v & 0xffff_ffff).unwrap_or(0)
}

fn low64(v: u128) -> u64 {
    u64::try_from(v & u128::from(u64::MAX)).unwrap_or(0)
}

/// SplitMix64's finisher: numbers that look unrelated.
pub(super) fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
