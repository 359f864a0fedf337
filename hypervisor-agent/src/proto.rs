//! `keelway.agent.v1` as generated from `proto/`. Not for use outside: [`crate::wire`] gives the meaning.

#![expect(
    unreachable_pub,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the .proto file is documented"
)]

tonic::include_proto!("keelway.agent.v1");
