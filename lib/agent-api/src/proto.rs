//! `keelway.agent.v1`, generated from `proto/`. [`crate::wire`] converts the messages.

#![expect(
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the .proto file is documented"
)]

tonic::include_proto!("keelway.agent.v1");
