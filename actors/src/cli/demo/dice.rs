//! Chance that falls the same in every run: seeded by the line of the log.

use sha2::{Digest, Sha256};

/// A generator for one line (splitmix64, seeded by a digest of the line's number and text).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// For a line.
    #[must_use]
    pub fn of(number: usize, text: &str) -> Dice {
        let mut hash = Sha256::new();
        hash.update(number.to_string());
        hash.update([0]);
        hash.update(text);
        let seed = hash
            .finalize()
            .iter()
            .take(8)
            .fold(0u64, |seed, byte| (seed << 8) | u64::from(*byte));
        Dice(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n` (0 if `n` is 0).
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits().checked_rem(n).unwrap_or_default()
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }
}
