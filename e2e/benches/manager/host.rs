//! The directory of the files that this benchmark writes.

/// The directory is on the benchmark's own host, and is removed with it.
pub(crate) const WORK: &str = "/run/keelway-e2e";
