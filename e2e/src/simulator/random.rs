//! The source of all randomness of a simulation, seeded with one number.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A generator that returns the same values for the same sequence of calls.
pub(super) struct Random(StdRng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Returns true with a probability of one in `times`.
    pub(super) fn one_in(&mut self, times: u32) -> bool {
        self.0.random_range(0..times) == 0
    }

    /// Returns a number in a range that includes both ends.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0.random_range(least..=most)
    }

    /// Returns a count in a range that includes both ends.
    pub(super) fn count(&mut self, least: u32, most: u32) -> u32 {
        self.0.random_range(least..=most)
    }

    /// Returns a duration in a range that includes both ends.
    pub(super) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    /// Returns one of the values, or `None` if there are none.
    pub(super) fn pick<T: Clone>(&mut self, of: impl IntoIterator<Item = T>) -> Option<T> {
        let of: Vec<T> = of.into_iter().collect();
        (!of.is_empty()).then(|| of[self.0.random_range(0..of.len())].clone())
    }

    /// Returns 16 hexadecimal digits.
    pub(super) fn id(&mut self) -> String {
        format!("{:016x}", self.0.random::<u64>())
    }
}
