//! `keelway.manager.v1`, the API of a manager without a management cluster, on its Unix socket: its messages and its client.

pub mod client;
pub mod proto;

/// The most bytes of one message. It bounds how many documents can be moved into a store at once.
pub const MAX_MESSAGE: usize = 256 << 20;
