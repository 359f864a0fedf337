//! CONNECT over HTTP/1.1: how the API servers' connections reach workers.

mod client;
mod refusal;
mod server;
mod target;
mod tunnels;

pub(crate) use self::client::{AskError, Connection, ask, probe};
pub(crate) use self::refusal::{Reason, Refusal};
pub(crate) use self::server::{Opened, Opener, serve};
pub(crate) use self::target::Target;
pub(crate) use self::tunnels::{Tunnel, Tunnels};
