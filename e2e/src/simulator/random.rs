//! All chance of a simulation, from one number.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A source that gives the same to whoever asks the same in the same order.
pub(super) struct Random(StdRng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Whether something happens that does once in so many times.
    pub(super) fn one_in(&mut self, times: u32) -> bool {
        self.0.random_range(0..times) == 0
    }

    /// Both ends included.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0.random_range(least..=most)
    }

    /// A number of things, both ends included.
    pub(super) fn count(&mut self, least: u32, most: u32) -> u32 {
        self.0.random_range(least..=most)
    }

    /// Both ends included.
    pub(super) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    /// One of these, where there is any.
    pub(super) fn pick<T: Clone>(&mut self, of: impl IntoIterator<Item = T>) -> Option<T> {
        let of: Vec<T> = of.into_iter().collect();
        (!of.is_empty()).then(|| of[self.0.random_range(0..of.len())].clone())
    }

    /// 16 hexadecimal digits.
    pub(super) fn id(&mut self) -> String {
        format!("{:016x}", self.0.random::<u64>())
    }
}
