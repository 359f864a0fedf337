//! The fields of a Cluster that mean nothing in a fleet. One table, from which the checks of `validate` and of API servers are made.

use super::FaultCollector;
use crate::cluster::{CertificatesSpec, ClusterSpec, NetworkSpec, VpnSpec};
use crate::duration::Span;

/// A field that a fleet does not have.
pub(crate) struct FieldWithoutFleet {
    /// Its path, without `spec.`.
    pub(crate) path: &'static str,
    /// Whether a spec sets it. API servers and `keelway` write defaults into documents, so a default does not count as set.
    is_set: fn(&ClusterSpec) -> bool,
    /// The same for API servers. `self` is the spec.
    pub(crate) is_set_expression: fn() -> String,
    /// Why it means nothing.
    pub(crate) problem: &'static str,
    pub(crate) help: &'static str,
}

const NO_WORKERS: &str = "a fleet has no workers and no VPN";
const NO_SCHEDULER: &str = "a fleet has no kube-scheduler: its fleet-controllers choose clusters";
const NO_CLUSTER_CONTROLLER: &str = "a fleet has no cluster-controllers, because it has no workers";
const REMOVE: &str = "remove the field";
const REMOVE_OR_ZERO: &str = "remove the field, or write 0";

/// Every such field. Those that only disable what a fleet does not have, such as `vpn.enabled`, are allowed.
pub(crate) const FIELDS_WITHOUT_FLEET: [FieldWithoutFleet; 10] = [
    FieldWithoutFleet {
        path: "vpn.cidrs",
        is_set: |spec| spec.vpn.cidrs != VpnSpec::default().cidrs,
        is_set_expression: || differs_from_list("vpn.cidrs", &VpnSpec::default().cidrs),
        problem: NO_WORKERS,
        help: REMOVE,
    },
    FieldWithoutFleet {
        path: "vpn.mtu",
        is_set: |spec| spec.vpn.mtu.is_some(),
        is_set_expression: || "has(self.vpn.mtu)".to_owned(),
        problem: NO_WORKERS,
        help: REMOVE,
    },
    FieldWithoutFleet {
        path: "network.podCIDRs",
        is_set: |spec| spec.network.pod_cidrs != NetworkSpec::default().pod_cidrs,
        is_set_expression: || differs_from_list("network.podCIDRs", &NetworkSpec::default().pod_cidrs),
        problem: "a fleet runs no pods",
        help: REMOVE,
    },
    FieldWithoutFleet {
        path: "controlPlane.kubeScheduler.replicas",
        is_set: |spec| spec.control_plane.kube_scheduler.replicas.is_some_and(|replicas| replicas > 0),
        is_set_expression: || is_above_zero("controlPlane.kubeScheduler.replicas"),
        problem: NO_SCHEDULER,
        help: REMOVE_OR_ZERO,
    },
    FieldWithoutFleet {
        path: "controlPlane.kubeScheduler.extraArgs",
        is_set: |spec| !spec.control_plane.kube_scheduler.extra_args.is_empty(),
        is_set_expression: || {
            let field = "self.controlPlane.kubeScheduler.extraArgs";
            format!("has({field}) && {field}.size() > 0")
        },
        problem: NO_SCHEDULER,
        help: REMOVE,
    },
    FieldWithoutFleet {
        path: "controlPlane.kubeScheduler.resources",
        is_set: |spec| spec.control_plane.kube_scheduler.resources.is_some(),
        is_set_expression: || "has(self.controlPlane.kubeScheduler.resources)".to_owned(),
        problem: NO_SCHEDULER,
        help: REMOVE,
    },
    FieldWithoutFleet {
        path: "controlPlane.clusterController.replicas",
        is_set: |spec| spec.control_plane.cluster_controller.replicas.is_some_and(|replicas| replicas > 0),
        is_set_expression: || is_above_zero("controlPlane.clusterController.replicas"),
        problem: NO_CLUSTER_CONTROLLER,
        help: REMOVE_OR_ZERO,
    },
    FieldWithoutFleet {
        path: "controlPlane.clusterController.resources",
        is_set: |spec| spec.control_plane.cluster_controller.resources.is_some(),
        is_set_expression: || "has(self.controlPlane.clusterController.resources)".to_owned(),
        problem: NO_CLUSTER_CONTROLLER,
        help: REMOVE,
    },
    FieldWithoutFleet {
        path: "certificates.workerGrace",
        is_set: |spec| spec.certificates.worker_grace != CertificatesSpec::default().worker_grace,
        is_set_expression: || differs_from_span("certificates.workerGrace", CertificatesSpec::default().worker_grace),
        problem: NO_WORKERS,
        help: REMOVE,
    },
    FieldWithoutFleet {
        path: "workers.version",
        is_set: |spec| spec.workers.version.is_some(),
        is_set_expression: || "has(self.workers) && has(self.workers.version)".to_owned(),
        problem: NO_WORKERS,
        help: REMOVE,
    },
];

fn differs_from_list(path: &str, default: &[String]) -> String {
    let default = default.iter().map(|text| format!("'{text}'")).collect::<Vec<_>>().join(", ");
    format!("self.{path} != [{default}]")
}

fn differs_from_span(path: &str, default: Span) -> String {
    format!("has(self.{path}) && self.{path} != '{default}'")
}

fn is_above_zero(path: &str) -> String {
    format!("has(self.{path}) && self.{path} > 0")
}

/// Records a fault for each field of a fleet that means nothing there.
pub(super) fn check(spec: &ClusterSpec, faults: &mut FaultCollector) {
    for field in FIELDS_WITHOUT_FLEET.iter().filter(|field| spec.is_fleet() && (field.is_set)(spec)) {
        faults.add(&format!("spec.{}", field.path), field.problem, field.help);
    }
}
