//! The decision about a certificate signing request, as a controller writes it.

use k8s_openapi::{
    api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{Api, Client, ResourceExt, api::PostParams};

use crate::requests::{KubeRequestError, ignore_conflict};

/// Writes the condition `kind`, which is `Approved` or `Denied`. Returns `false` if the request is deleted or was changed meanwhile: the write names the
/// decided version, so that two replicas never decide about the same request.
pub async fn write_approval(
    client: &Client,
    csr: &CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: &str,
) -> Result<bool, KubeRequestError> {
    let mut decided = csr.clone();
    let now = Time(Timestamp::now());
    let condition = CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
    };
    let status = decided.status.get_or_insert_with(CertificateSigningRequestStatus::default);
    status.conditions.get_or_insert_default().push(condition);
    let requests = Api::<CertificateSigningRequest>::all(client.clone());
    let name = csr.name_any();
    let parameters = PostParams::default();
    let written = requests.replace_subresource("approval", &name, &parameters, &decided);
    if ignore_conflict("write the decision about the request", written).await?.is_none() {
        return Ok(false);
    }
    tracing::info!(request = name, kind, reason, message, asker = csr.spec.username, "decided about a request");
    Ok(true)
}
