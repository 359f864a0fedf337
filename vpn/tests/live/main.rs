//! Keelway's device and relay with wireguard-go, `wg` and a bad network. Each test has a host of its own.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a step that fails fails the test"
)]

#[path = "../support/mod.rs"]
mod support;

mod handshakes;
mod load;
mod paths;
mod relay;
mod stack;
mod transfers;
mod wg;

use std::path::Path;
use std::time::Duration;

use support::{End, Namespace, Running};

const SECOND: Duration = Duration::from_secs(1);
/// The limit for the response to a probe on a network without losses. A busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(10);
const MEGABYTE: usize = 1_000_000;

/// Runs a test on a host of its own. `test` is its full name.
fn on_host(test: &str, body: impl FnOnce()) {
    support::on_own_host(&[test, "--exact", "--nocapture"], body);
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_keelway-vpn"))
}

fn ours(namespace: &Namespace, end: &End) -> Running {
    ours_with(namespace, end, &[])
}

fn ours_with(namespace: &Namespace, end: &End, options: &[&str]) -> Running {
    support::ours(namespace, end, program(), options)
}

fn left(more: &str) -> End {
    End::new(1).peer(2, "10.232.0.2/32, fd32::2/128", &format!("Endpoint = 10.231.0.2:51820\n{more}"))
}

fn right(more: &str) -> End {
    End::new(2).peer(1, "10.232.0.1/32, fd32::1/128", more)
}
