//! Access to managed clusters: API servers, the driver's identity, and whether the first bindings are due.

use alloc::vec::Vec;
use core::net::SocketAddr;

use keelway_api::{
    Component, Documents, condition,
    documents::SecretName,
    machine::ObservedValue,
    name::{ClusterId, HypervisorName},
    role::{Role, SECURE},
};

use crate::{
    CertificateReference, CertificateSubject, PassObservation, WaitBlocker,
    certificate_subject::client,
    first_bindings::FirstBindings,
    plan::Plan,
    secret_names::{API_SERVER_NAME, DRIVER_SECRET, KUBERNETES},
    world::ValidatedDocuments,
};

/// The group of administrators' kubeconfigs. RBAC binds it, so its rights can be removed, unlike those of `system:masters`.
pub const ADMIN_GROUP: &str = "keelway:cluster-admins";
/// The field manager of what a pass applies.
pub const OWNER: &str = "keelway";
/// The annotation of our bindings that contains their digest.
pub const BINDINGS_DIGEST: &str = "keelway.dev/digest";

/// How a pass reaches the API of a managed cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterAccess {
    /// The machine from which to dial.
    pub machine: HypervisorName,
    /// The API server's address.
    pub address: SocketAddr,
    /// The name that its certificate must hold.
    pub server_name: &'static str,
    /// The Secret of the authority: `bundle.crt` verifies the server, and `active.key` can sign a client certificate.
    pub authority: SecretName,
    /// Whether the API server is being removed.
    pub is_leaving: bool,
}

/// Returns the access to every API server of a cluster. Those with the condition `Ready` are first, then by name.
#[must_use]
pub fn access(documents: &Documents, id: &ClusterId) -> Vec<ClusterAccess> {
    let servers = documents.components_of(id).filter(|(_, component)| component.spec.role == Role::KubeApiserver);
    let mut servers: Vec<_> = servers.collect();
    servers.sort_by_key(|(_, component)| !is_ready(component));
    servers
        .into_iter()
        .filter_map(|(_, component)| {
            let machine = documents.hypervisors.get(&component.spec.hypervisor)?;
            let address = machine.spec.addresses.private.first()?.parse().ok()?;
            Some(ClusterAccess {
                machine: component.spec.hypervisor.clone(),
                address: SocketAddr::new(address, component.spec.port(SECURE)),
                server_name: API_SERVER_NAME,
                authority: SecretName::of(id, KUBERNETES),
                is_leaving: component.is_leaving(),
            })
        })
        .collect()
}

fn is_ready(component: &Component) -> bool {
    component.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
}

/// Returns the driver's identity in a cluster.
#[must_use]
pub fn driver_identity(id: &ClusterId) -> CertificateReference {
    CertificateReference { secret: SecretName::of(id, DRIVER_SECRET), name: "client" }
}

/// Whether an API server of the cluster is ready now.
pub(crate) fn serves(documents: &Documents, id: &ClusterId, seen: &PassObservation) -> bool {
    let mut servers = documents.components_of(id).filter(|(_, server)| server.spec.role == Role::KubeApiserver);
    servers.any(|(pod, _)| seen.healthy(pod))
}

/// Requests the first bindings if an API server is ready and reports that they are missing or differ.
pub(crate) fn plan_bindings(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation) {
    let (of_cluster, of_fleet) = (FirstBindings::Cluster.digest(), FirstBindings::Fleet.digest());
    for (name, id, cluster) in world.reconciled_clusters() {
        if plan.documents.clusters.get(name).is_none_or(|cluster| !cluster.is_awake()) {
            continue;
        }
        let wanted = if cluster.is_fleet { &of_fleet } else { &of_cluster };
        match seen.bindings.get(id) {
            _ if !serves(&plan.documents, id, seen) => {}
            Some(ObservedValue::Known(digest)) if digest == wanted => {}
            Some(ObservedValue::Known(_)) => plan.bindings.push(id.clone()),
            Some(ObservedValue::Unreachable { why, .. }) => {
                plan.wait_in_progress(name, WaitBlocker::Bindings(why.clone()));
            }
            None => plan.wait_in_progress(name, WaitBlocker::FirstBindings),
        }
    }
}

/// Returns the subject of an administrator's certificate with this name.
#[must_use]
pub fn administrator(name: &str) -> CertificateSubject {
    client(name, &[ADMIN_GROUP])
}

/// Returns the subject that applies the first bindings, before any other subject has the right to.
#[must_use]
pub fn first_administrator() -> CertificateSubject {
    client("keelway:first-bindings", &["system:masters"])
}
