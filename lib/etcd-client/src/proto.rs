//! `etcdserverpb`, generated from `proto/`.

#![expect(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the .proto file is documented"
)]

tonic::include_proto!("etcdserverpb");
