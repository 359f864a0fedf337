//! The generated code of `keelway.manager.v1`.
#![expect(
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the .proto file is documented"
)]

tonic::include_proto!("keelway.manager.v1");
