//! Requests to API servers, and their errors.

use std::future::Future;

use kube::{
    ResourceExt,
    api::{DeleteParams, Preconditions},
};

/// A request to an API server failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct KubeRequestError {
    /// The requested operation.
    pub what: &'static str,
    /// The error of the client.
    #[source]
    pub source: Box<kube::Error>,
}

/// Adds the operation to the error of a call.
pub async fn call<T>(what: &'static str, call: impl Future<Output = kube::Result<T>>) -> Result<T, KubeRequestError> {
    call.await.map_err(|source| KubeRequestError { what, source: Box::new(source) })
}

/// The same for writing or deleting an observed object. Returns `None` if the object is deleted or has another version by now. A watch
/// reports that change.
pub async fn ignore_conflict<T>(
    what: &'static str,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<Option<T>, KubeRequestError> {
    match call.await {
        Err(error) if has_code(&error, 404) || has_code(&error, 409) => Ok(None),
        Err(source) => Err(KubeRequestError { what, source: Box::new(source) }),
        Ok(written) => Ok(Some(written)),
    }
}

/// Limits a deletion to this object, so that another object of the same name is not deleted.
#[must_use]
pub fn only(this: &impl ResourceExt) -> DeleteParams {
    let preconditions = Some(Preconditions { uid: this.uid(), resource_version: None });
    DeleteParams { preconditions, ..DeleteParams::default() }
}

/// Limits a deletion to the observed version of this object.
#[must_use]
pub fn delete_precondition(this: &impl ResourceExt) -> DeleteParams {
    let preconditions = Some(Preconditions { uid: this.uid(), resource_version: this.resource_version() });
    DeleteParams { preconditions, ..DeleteParams::default() }
}

/// Whether the API server responded with this status code.
#[must_use]
pub fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
