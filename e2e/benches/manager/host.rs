//! Where this benchmark keeps what it writes.

/// On its own host, with which it goes.
pub(crate) const WORK: &str = "/run/keelway-e2e";
