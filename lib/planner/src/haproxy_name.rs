//! haproxy's names for API servers.

use alloc::{format, string::String};

use keelway_api::name::PodName;

/// The name of haproxy's backend.
pub(crate) const BACKEND: &str = "kube-apiserver";

/// haproxy's name for an API server.
pub(crate) fn server_name(server: &PodName) -> String {
    format!("{BACKEND}/{}", server.component)
}
