//! Network namespaces on a host for one test, devices in them, and transfers between them.

#![allow(dead_code, reason = "shared by the live tests and the benchmark, which use different parts")]
#![allow(unused_imports, reason = "the same")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

mod device;
mod end;
mod host;
mod namespace;
mod network;
mod process;
mod swarm;
mod transfer;

pub use device::{Running, dump, handshakes, ours, started, theirs};
pub use end::{ConfigFile, End, private_key, private_text, public_key, v4, v6};
pub use host::on_own_host;
pub use namespace::{Namespace, chain};
pub use network::{Fate, Network};
pub use process::{Process, run, wait_until};
pub use swarm::Swarm;
pub use transfer::{Noise, connect, probe, reach, transfer};
