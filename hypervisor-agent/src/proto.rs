//! `keelway.agent.v1`, generated from `proto/`. Not for use outside of this crate: [`crate::wire`] converts the messages.

#![expect(
    unreachable_pub,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the .proto file is documented"
)]

tonic::include_proto!("keelway.agent.v1");
