//! Ids as the product writes them, made again from their description: a UUIDv7 in 26 characters of Crockford's base 32.

use super::Rng;

/// A UUIDv7 of a millisecond.
#[must_use]
pub fn uuid_v7(rng: &mut Rng, millis: i64) -> u128 {
    let time = u128::from(millis.max(0).cast_unsigned()) << 80;
    let random = u128::from(rng.any_u64()) << 64 | u128::from(rng.any_u64());
    let free = !(0xffff_ffff_ffff_u128 << 80 | 0xf << 76 | 0x3 << 62);
    time | 7 << 76 | 2 << 62 | (random & free)
}

/// The text of 16 bytes.
#[must_use]
pub fn base32(value: u128) -> String {
    (0..26)
        .rev()
        .map(|i| {
            char::from(b"0123456789abcdefghjkmnpqrstvwxyz"[((value >> (5 * i)) & 31) as usize])
        })
        .collect()
}

/// A minted click id of a millisecond.
#[must_use]
pub fn minted(rng: &mut Rng, millis: i64) -> String {
    base32(uuid_v7(rng, millis))
}
