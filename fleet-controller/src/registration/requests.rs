//! The loop over certificate signing requests.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::{
    api::certificates::v1::CertificateSigningRequest,
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::machine::sha256_hex;
use keelway_component::{
    approval::write_approval, certificate_request::Request, requests::call, watching::controller_of,
};
use keelway_fleet::WorkloadCluster;
use keelway_pki::CertificateFacts;
use kube::{
    Api,
    runtime::{controller::Action, events::EventType},
};

use super::{
    AgentRecords,
    decision::{AgentRequester, RegistrationDecision, RegistrationFacts, decide, requester},
    location,
};
use crate::{
    cluster_reconciler,
    context::{FleetContext, FleetControllerError, log_outcome, on_error},
};

/// The longest life of a certificate whose request does not limit it. Signers issue shorter ones.
const LONGEST: SignedDuration = SignedDuration::from_hours(24 * 366);

/// Decides about all requests, one at a time: an approval counts for the next request.
pub(crate) async fn run(context: Arc<FleetContext>) {
    controller_of(Api::all(context.client.clone()))
        .with_config(kube::runtime::controller::Config::default().concurrency(1))
        .run(reconcile, on_error, context)
        .for_each(|outcome| log_outcome("requests", outcome))
        .await;
}

async fn reconcile(
    csr: Arc<CertificateSigningRequest>,
    context: Arc<FleetContext>,
) -> Result<Action, FleetControllerError> {
    let request = Request::of(&csr);
    let Some(asker) = requester(&request) else { return Ok(Action::await_change()) };
    let key = request.subject.as_ref().map(|subject| sha256_hex(&subject.key)).unwrap_or_default();
    if request.decided {
        record_issued(&csr, asker.cluster(), &key, &context).await?;
        return Ok(Action::await_change());
    }
    let facts = observe(asker.cluster(), key, &context).await?;
    match decide(&request, &facts) {
        RegistrationDecision::LeaveAlone => {}
        RegistrationDecision::Approve => {
            admit(&csr, &asker, &facts, &context).await?;
            let why = format!("the agent of the workload cluster {}", asker.cluster());
            write_decision(&csr, "Approved", "KeelwayApproved", &why, &context).await?;
        }
        RegistrationDecision::Deny(denial) => {
            write_decision(&csr, "Denied", denial.reason(), &denial.to_string(), &context).await?;
        }
    }
    Ok(Action::await_change())
}

async fn observe(
    cluster: &str,
    key: String,
    context: &FleetContext,
) -> Result<RegistrationFacts, FleetControllerError> {
    let clusters = Api::<WorkloadCluster>::all(context.client.clone());
    let found = call("read the Cluster", clusters.get_opt(cluster)).await?;
    let is_leaving = found.as_ref().is_some_and(|found| found.metadata.deletion_timestamp.is_some());
    let record = AgentRecords::read(&context.client).await?.of(cluster)?;
    Ok(RegistrationFacts { is_member: found.is_some() && !is_leaving, is_leaving, record, key, now: Timestamp::now() })
}

/// Records the certificate, and, for a token, registers its cluster. The approval comes last, so that an agent with a certificate has its rights,
/// and no certificate is unknown.
async fn admit(
    csr: &CertificateSigningRequest,
    asker: &AgentRequester<'_>,
    facts: &RegistrationFacts,
    context: &FleetContext,
) -> Result<(), FleetControllerError> {
    let life = csr.spec.expiration_seconds.map_or(LONGEST, |seconds| SignedDuration::from_secs(seconds.into()));
    let until = facts.now.saturating_add(life).unwrap_or(Timestamp::MAX);
    let token = match asker {
        AgentRequester::Token { id, .. } => Some(*id),
        AgentRequester::Agent(_) => None,
    };
    let records = AgentRecords::read(&context.client).await?;
    let before = records.of(asker.cluster())?.unwrap_or_default();
    records.write(asker.cluster(), &before.approved(token, &facts.key, until)).await?;
    if let Some(token) = token {
        cluster_reconciler::register(asker.cluster(), context).await?;
        location::describe(asker.cluster(), token, context).await?;
    }
    Ok(())
}

/// Records when the issued certificate ends.
async fn record_issued(
    csr: &CertificateSigningRequest,
    cluster: &str,
    key: &str,
    context: &FleetContext,
) -> Result<(), FleetControllerError> {
    let certificate = csr.status.as_ref().and_then(|status| status.certificate.as_ref());
    let text = certificate.and_then(|certificate| std::str::from_utf8(&certificate.0).ok());
    let Some(facts) = text.and_then(|text| CertificateFacts::from_pem(text).ok()) else { return Ok(()) };
    let records = AgentRecords::read(&context.client).await?;
    match records.of(cluster)? {
        Some(record) if record.pending.as_ref().is_some_and(|pending| pending.key == key) => {
            records.write(cluster, &record.issued(key, facts.validity.not_after())).await
        }
        Some(_) | None => Ok(()),
    }
}

async fn write_decision(
    csr: &CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: &str,
    context: &FleetContext,
) -> Result<(), FleetControllerError> {
    context.fence.check()?;
    if !write_approval(&context.client, csr, kind, reason, message).await? {
        return Ok(());
    }
    context.metrics.count_request(kind, reason);
    let severity = if kind == "Denied" { EventType::Warning } else { EventType::Normal };
    context.publish(csr, severity, reason, message).await;
    Ok(())
}
