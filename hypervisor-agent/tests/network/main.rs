//! The agent's port over loopback, with real TLS, the fake runtime, and a temporary directory as the machine's root.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "this is all test")]

mod abuse;
mod bounds;
mod conversations;
mod cuts;
mod enrollment;
mod events;
mod installation;
mod machine;
mod refusals;
mod renewal;
mod streams;
mod through;
mod via;

use std::time::Duration;

use tokio::sync::Mutex;

/// Held by tests that open thousands of descriptors of this process or count them.
static ALONE: Mutex<()> = Mutex::const_new(());

const WITHIN: Duration = Duration::from_secs(60);
