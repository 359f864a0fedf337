//! The generated code of `keelway.manager.v1`.
#![expect(
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the .proto file is documented"
)]

use keelway_api::document::DocumentName as ApiName;

tonic::include_proto!("keelway.manager.v1");

impl From<&ApiName> for DocumentName {
    fn from(name: &ApiName) -> Self {
        Self {
            kind: name.kind().to_owned(),
            namespace: name.namespace().unwrap_or_default(),
            name: name.name().to_owned(),
        }
    }
}
