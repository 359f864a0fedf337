//! Arguments that a cluster may add to those that Keelway passes to its components. They are quantities and durations, and none of them weakens
//! security.
//!
//! Names, types and limits are those of the programs' options and of their checks at startup, in every minor version of [`crate::release`]. No accepted
//! argument makes a program exit.

mod form;

use crate::{release::Release, role::Role};

pub use form::ArgumentType;

/// An argument that a cluster may set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Argument {
    /// The name, without dashes.
    pub name: &'static str,
    /// The type of the value.
    pub form: ArgumentType,
    /// The minor release of Kubernetes that introduced the argument, if an older supported release lacks it.
    pub since: Option<u32>,
}

impl Argument {
    /// Returns whether the programs of a release know the argument.
    #[must_use]
    pub fn is_known_to(&self, release: &Release) -> bool {
        self.since.is_none_or(|since| release.minor() >= since)
    }

    const fn since(self, minor: u32) -> Self {
        Self { since: Some(minor), ..self }
    }
}

const fn of(name: &'static str, form: ArgumentType) -> Argument {
    Argument { name, form, since: None }
}

const fn number(name: &'static str, least: u32, most: u32) -> Argument {
    of(name, ArgumentType::Number { least, most })
}

const fn decimal(name: &'static str, most: u32) -> Argument {
    of(name, ArgumentType::Decimal { most })
}

const fn duration(name: &'static str) -> Argument {
    of(name, ArgumentType::Duration)
}

/// The number of objects of one kind that are processed in parallel. With 0, nothing is processed, and most programs refuse to start.
const fn workers(name: &'static str) -> Argument {
    number(name, 1, 1_000)
}

/// From level 8, logs contain the bodies of requests and responses, and thereby Secrets (`logBody` of client-go's `rest/request.go`).
const VERBOSITY: Argument = number("v", 0, 7);
const LOGGING_FORMAT: Argument = of("logging-format", ArgumentType::Choice(&["json", "text"]));
const DISABLED_METRICS: Argument = of("disabled-metrics", ArgumentType::Metrics);
const API_BURST: Argument = number("kube-api-burst", 1, 10_000);
const API_QPS: Argument = number("kube-api-qps", 1, 10_000);

const KUBE_APISERVER: &[Argument] = &[
    number("default-not-ready-toleration-seconds", 0, 86_400),
    number("default-unreachable-toleration-seconds", 0, 86_400),
    number("delete-collection-workers", 1, 100),
    DISABLED_METRICS,
    duration("event-ttl"),
    LOGGING_FORMAT,
    number("max-mutating-requests-inflight", 1, 100_000),
    number("max-requests-inflight", 1, 100_000),
    number("min-request-timeout", 1, 86_400),
    of("service-node-port-range", ArgumentType::Ports),
    VERBOSITY,
];
const KUBE_CONTROLLER_MANAGER: &[Argument] = &[
    duration("attach-detach-reconcile-sync-period"),
    workers("concurrent-cron-job-syncs"),
    workers("concurrent-daemonset-syncs"),
    workers("concurrent-deployment-syncs"),
    workers("concurrent-device-taint-eviction-syncs").since(35),
    workers("concurrent-disruption-syncs").since(37),
    workers("concurrent-endpoint-syncs"),
    workers("concurrent-ephemeralvolume-syncs"),
    workers("concurrent-gc-syncs"),
    workers("concurrent-horizontal-pod-autoscaler-syncs"),
    workers("concurrent-job-syncs"),
    workers("concurrent-namespace-syncs"),
    workers("concurrent-rc-syncs"),
    workers("concurrent-replicaset-syncs"),
    workers("concurrent-resource-quota-syncs"),
    workers("concurrent-resourceclaim-syncs").since(36),
    number("concurrent-service-endpoint-syncs", 1, 50),
    workers("concurrent-serviceaccount-token-syncs"),
    workers("concurrent-statefulset-syncs"),
    workers("concurrent-ttl-after-finished-syncs"),
    workers("concurrent-validating-admission-policy-status-syncs"),
    DISABLED_METRICS,
    duration("endpoint-updates-batch-period"),
    duration("endpointslice-updates-batch-period"),
    duration("horizontal-pod-autoscaler-cpu-initialization-period"),
    duration("horizontal-pod-autoscaler-downscale-stabilization"),
    duration("horizontal-pod-autoscaler-initial-readiness-delay"),
    duration("horizontal-pod-autoscaler-sync-period"),
    decimal("horizontal-pod-autoscaler-tolerance", 1),
    API_BURST,
    API_QPS,
    number("large-cluster-size-threshold", 0, 100_000),
    LOGGING_FORMAT,
    number("max-endpoints-per-slice", 1, 1_000),
    duration("namespace-sync-period"),
    decimal("node-eviction-rate", 1_000),
    duration("node-monitor-grace-period"),
    duration("node-monitor-period"),
    duration("node-startup-grace-period"),
    duration("pvclaimbinder-sync-period"),
    duration("resource-quota-sync-period"),
    decimal("secondary-node-eviction-rate", 1_000),
    number("terminated-pod-gc-threshold", 0, 1_000_000),
    decimal("unhealthy-zone-threshold", 1),
    VERBOSITY,
];
const KUBE_SCHEDULER: &[Argument] = &[DISABLED_METRICS, API_BURST, API_QPS, LOGGING_FORMAT, VERBOSITY];

/// Prefixes of arguments that a cluster may not set: Keelway sets them, or they weaken security, reveal secrets, or let a component disagree with
/// the others.
const OWN: &[&str] = &[
    "admission-control",
    "advertise-address",
    "allocate-node-cidrs",
    "allow-privileged",
    "anonymous-auth",
    "api-audiences",
    "audit-",
    "authentication-",
    "authorization-",
    "bind-address",
    "cert-dir",
    "cidr-allocator-type",
    "client-ca-file",
    "cloud-",
    "cluster-",
    "config",
    "contention-profiling",
    "controllers",
    "cors-allowed-origins",
    "debug-socket-path",
    "disable-admission-plugins",
    "disable-http2-serving",
    "egress-selector-",
    "emulat",
    "enable-",
    "encryption-provider-",
    "endpoint-reconciler-type",
    "etcd-",
    "external-hostname",
    "feature-gates",
    "goaway-chance",
    "http2-max-streams-per-connection",
    "insecure-",
    "kubeconfig",
    "kubelet-",
    "kubernetes-service-node-port",
    "leader-",
    "master",
    "min-compatibility-version",
    "node-cidr-mask-size",
    "oidc-",
    "peer-",
    "permit-",
    "port",
    "profiling",
    "proxy-client-",
    "requestheader-",
    "root-ca-file",
    "runtime-config",
    "secure-port",
    "service-account-",
    "service-cluster-ip-range",
    "shutdown-",
    "storage-",
    "tls-",
    "token-auth-file",
    "tracing-config-file",
    "use-service-account-credentials",
    "vmodule",
    "write-config-to",
];

/// Returns the arguments that a cluster may set for components of a role.
#[must_use]
pub fn of_role(role: Role) -> &'static [Argument] {
    match role {
        Role::KubeApiserver => KUBE_APISERVER,
        Role::KubeControllerManager => KUBE_CONTROLLER_MANAGER,
        Role::KubeScheduler => KUBE_SCHEDULER,
        Role::Etcd | Role::ClusterController | Role::FleetController | Role::Ingress | Role::Gateway => &[],
    }
}

/// Returns whether Keelway reserves an argument. The programs accept `_` in place of `-` in names.
#[must_use]
pub fn is_own(name: &str) -> bool {
    let name = name.replace('_', "-");
    OWN.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::MINORS;

    #[test]
    fn no_allowed_argument_is_one_that_keelway_sets() {
        for argument in Role::ALL.into_iter().flat_map(of_role) {
            assert!(!is_own(argument.name), "{}", argument.name);
        }
        assert!(is_own("anonymous-auth") && is_own("anonymous_auth"));
    }

    #[test]
    fn names_are_in_order_and_each_is_there_once() {
        for role in Role::ALL {
            assert!(of_role(role).is_sorted_by(|one, next| one.name < next.name), "{role}");
        }
    }

    #[test]
    fn an_argument_is_unknown_to_older_releases() {
        let argument = workers("some-syncs").since(36);
        let is_known = MINORS.each_ref().map(|row| argument.is_known_to(&row.newest_tested()));
        assert_eq!(is_known, [false, false, true, true]);
    }
}
