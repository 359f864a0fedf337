//! Random identifiers.

use rand_core::CryptoRng;

use crate::facts::hex;

/// Returns `bytes` random bytes as lowercase hexadecimal text of twice that length.
pub fn random_id<R: CryptoRng + ?Sized>(rng: &mut R, bytes: usize) -> String {
    let mut random = vec![0; bytes];
    rng.fill_bytes(&mut random);
    hex(&random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;

    #[test]
    fn ids_are_hex_of_the_wanted_length_and_differ() {
        let mut rng = seeded(1);
        let (one, two) = (random_id(&mut rng, 8), random_id(&mut rng, 8));
        assert_eq!(one.len(), 16);
        assert!(one.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c)));
        assert_ne!(one, two);
        assert_eq!(one, random_id(&mut seeded(1), 8));
        assert_eq!(random_id(&mut rng, 0), "");
    }
}
