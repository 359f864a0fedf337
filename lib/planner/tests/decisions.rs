//! The decisions of a pass, in one program: each file here is a module of it.
#![expect(clippy::unwrap_used, clippy::panic, reason = "this is all test")]

#[cfg(feature = "testing")]
mod authority_rotation;
mod classes;
mod fleets;
mod ingress_file;
mod ingress_port;
mod installation;
mod machines;
#[cfg(feature = "testing")]
mod membership;
mod model;
mod parts;
mod progress;
#[cfg(feature = "testing")]
mod rebuild;
mod recover;
#[cfg(feature = "testing")]
mod rotation;
mod scaling;
mod sleep;
mod snapshots;
mod waves;
#[cfg(feature = "testing")]
#[path = "membership/world.rs"]
mod world;
