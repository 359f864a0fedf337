//! Connections that ingresses still have to API servers that they no longer use.

use alloc::vec::Vec;

use keelway_api::{
    Documents,
    machine::ServerAdmin,
    name::{ClusterId, PodName},
    role::Role,
};

use crate::{
    ComponentRef, PassObservation, WaitBlocker, haproxy_name::server_name, plan::Plan, world::ValidatedDocuments,
};

/// Waits for the end of connections to API servers that are no longer wanted, and for each running haproxy that does not report its servers.
pub(crate) fn wait_for_connections(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation) {
    for (name, id, _) in world.reconciled_clusters() {
        if plan.documents.clusters.get(name).is_none_or(|cluster| !cluster.is_awake()) {
            continue;
        }
        for (ingress, blocker) in waits(&plan.documents, seen, id) {
            plan.wait_in_progress(ComponentRef::of(name, &ingress), blocker);
        }
    }
}

fn waits(documents: &Documents, seen: &PassObservation, id: &ClusterId) -> Vec<(PodName, WaitBlocker)> {
    let of_role = |role: Role| documents.components_of(id).filter(move |(_, component)| component.spec.role == role);
    let stays = |server: &str| {
        of_role(Role::KubeApiserver).any(|(pod, component)| !component.is_leaving() && server_name(pod) == server)
    };
    let mut found = Vec::new();
    for (ingress, component) in of_role(Role::Ingress) {
        let Some(state) = seen.machine(&component.spec.hypervisor) else { continue };
        let Some(servers) = state.servers.get(ingress) else {
            if state.runs(ingress) {
                found.push((ingress.clone(), WaitBlocker::UnreportedServers));
            }
            continue;
        };
        let drained = servers.iter().filter(|(server, found)| found.admin == ServerAdmin::Drains && !stays(server));
        for (server, state) in drained.filter(|(_, state)| state.sessions > 0) {
            let sessions = usize::try_from(state.sessions).unwrap_or(usize::MAX);
            found.push((ingress.clone(), WaitBlocker::Connections { server: server.clone(), sessions }));
        }
    }
    found
}
