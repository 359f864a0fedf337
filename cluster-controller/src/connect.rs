//! CONNECT over HTTP/1.1, by which connections of API servers reach workers.

mod client;
mod idle;
mod refusal;
mod server;
mod stall;
mod target;
mod tunnels;

pub(crate) use self::client::{AskError, GatewayConnection, ask, probe};
pub(crate) use self::refusal::{ConnectRefusal, RefusalReason};
pub(crate) use self::server::{OpenedTunnel, TunnelOpener, serve};
pub(crate) use self::target::TunnelTarget;
pub(crate) use self::tunnels::{TunnelGuard, TunnelRegistry};
