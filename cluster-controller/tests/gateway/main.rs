//! Gateway and egress as they run, with real devices as workers. Each test has a host of its own.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a step that fails fails the test"
)]

#[path = "../../../vpn/tests/support/mod.rs"]
mod support;

mod api_server;
mod bounds;
mod certificates;
mod client;
mod control_plane;
mod conversions;
mod daemon;
mod issuers;
mod lan;
mod losses;
mod others;
mod peers;
mod places;
mod ports;
mod refusals;
mod stalled;
mod tenant;
mod tunnels;
mod unguarded;
mod users;
mod worker;

use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The limit for steps that take a moment. A busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(30);
/// Every CONNECT is answered within this time.
const ANSWER: Duration = Duration::from_secs(5);

/// Runs a test on a host of its own. `test` is its full name.
fn on_host(test: &str, body: impl FnOnce()) {
    support::on_own_host(&[test, "--exact", "--nocapture"], body);
}
