//! The agent's port over loopback, with real TLS, the fake runtime, and a temporary directory as the machine's root.
#![expect(clippy::unwrap_used, reason = "this is all test")]

mod bounds;
mod conversations;
mod cuts;
mod enrollment;
mod installation;
mod events;
mod machine;
mod refusals;
mod renewal;
mod streams;
mod through;
mod via;

use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(60);
