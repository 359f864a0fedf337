//! Real fleets. Each test has its own host: a network, a mount table, a process table and empty `/run`, `/var/lib` and `/var/log`. Needs
//! root, `runc`, `ip`, and containerd in Keelway's cache.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod found;
mod host;
mod networks;
mod owned_fleet;
mod reach;
mod whole_life;
mod workers;
