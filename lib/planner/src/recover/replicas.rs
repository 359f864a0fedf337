//! Keeps the components of clusters whose specs are older than the machines.

use alloc::vec::Vec;

use keelway_api::{
    Documents,
    cluster::ClusterSpec,
    name::{ClusterId, ClusterRef},
    role::Role,
};

use super::{DifferenceKind, Recovery, RecoveryDifference};

/// Raises the replicas of each cluster of a backup to the number of its components. The specs of a backup are older than the machines: with them, the
/// next pass would remove components that a user requested after the backup.
pub fn keep_replicas(recovery: &mut Recovery, is_of_backup: impl Fn(&ClusterRef) -> bool) {
    let clusters: Vec<(ClusterRef, ClusterId)> = recovery
        .documents
        .clusters
        .iter()
        .filter(|(name, cluster)| is_of_backup(name) && !cluster.deleted())
        .filter_map(|(name, cluster)| Some((name.clone(), cluster.id()?.clone())))
        .collect();
    for (name, id) in clusters {
        for role in Role::ALL {
            let runs = kept(&recovery.documents, &id, role);
            let Some(wanted) = recovery.documents.clusters.get(&name).map(|cluster| cluster.spec.replicas(role)) else {
                continue;
            };
            // The number of etcd members is odd. One more is a change in progress.
            let runs = if role == Role::Etcd && runs.is_multiple_of(2) { runs.saturating_sub(1) } else { runs };
            if runs <= wanted {
                continue;
            }
            let Some(cluster) = recovery.documents.clusters.get_mut(&name) else { continue };
            if raise(&mut cluster.spec, role, runs) {
                let kind = DifferenceKind::MoreReplicas { role, wanted, runs };
                recovery.differences.push(RecoveryDifference::of(&name, kind));
            }
        }
    }
}

fn kept(documents: &Documents, id: &ClusterId, role: Role) -> u32 {
    let components = documents.components_of(id);
    let kept = components.filter(|(_, component)| component.spec.role == role && !component.is_leaving());
    u32::try_from(kept.count()).unwrap_or(u32::MAX)
}

/// Returns whether the role has replicas of its own.
fn raise(spec: &mut ClusterSpec, role: Role, replicas: u32) -> bool {
    let plane = &mut spec.control_plane;
    match role {
        Role::Etcd => spec.etcd.replicas = replicas,
        Role::KubeApiserver => plane.kube_api_server.replicas = Some(replicas),
        Role::KubeControllerManager => plane.kube_controller_manager.replicas = Some(replicas),
        Role::KubeScheduler => plane.kube_scheduler.replicas = Some(replicas),
        Role::ClusterController => plane.cluster_controller.replicas = Some(replicas),
        Role::Ingress => spec.ingress.replicas = replicas,
        Role::FleetController | Role::Gateway => return false,
    }
    true
}
