//! Requests to containerd's own API, beside CRI.

use tonic::{Request, metadata::MetadataValue};

/// The containerd namespace that CRI uses.
const NAMESPACE: &str = "k8s.io";

/// Returns a request for objects of CRI.
pub(crate) fn in_namespace<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}
