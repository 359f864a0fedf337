//! A client of etcd's own gRPC API: members, status, alarms, maintenance and snapshots of one member. It decides nothing, and reads no keys of users.

mod alarm;
mod client;
mod connect;
mod error;
mod proto;
mod snapshot;

pub use alarm::EtcdAlarm;
pub use client::EtcdClient;
pub use connect::MemberTls;
pub use error::EtcdError;
pub use proto::{HashKvResponse, Member, MemberListResponse, ResponseHeader, SnapshotResponse, StatusResponse};
pub use snapshot::SnapshotStream;
