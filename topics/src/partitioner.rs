//! The partitioner of both backends: Kafka's murmur2 over the key, as `murmur2_random` computes it.

/// Kafka's murmur2 (seed 0x9747b28c), masked to a non-negative number.
#[must_use]
pub fn hash(key: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut h: u32 = 0x9747_b28c ^ u32::try_from(key.len()).unwrap_or(u32::MAX);
    let (chunks, tail) = key.as_chunks::<4>();
    for chunk in chunks {
        let mut k = u32::from_le_bytes(*chunk).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    for (i, byte) in tail.iter().enumerate() {
        h ^= u32::from(*byte) << (8 * i);
    }
    if !tail.is_empty() {
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^= h >> 15;
    (h & 0x7fff_ffff).cast_signed()
}

/// The partition of a key among `partitions`; 0 if there is none.
#[must_use]
pub fn partition(key: &[u8], partitions: i32) -> i32 {
    hash(key).checked_rem(partitions).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Kafka's own `UtilsTest.testMurmur2`, masked.
    #[test]
    fn kafka_s_vectors() {
        for (key, want) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(hash(key.as_bytes()), want & 0x7fff_ffff, "{key}");
        }
    }
}
