//! Health checks of components.

use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::net::{IpAddr, SocketAddr};

use keelway_api::{
    Cluster, Component, Documents, Shared,
    component::ComponentStage,
    documents::SecretName,
    fault::Faults,
    name::{HypervisorName, PodName},
    role::{API, CLIENT, HEALTH, Role, SECURE},
    sleep::SleepPhase,
    validated::ValidatedHypervisor,
};

use crate::{
    haproxy_name::server_name,
    secret_names::{self, API_SERVER_NAME, DRIVER_SECRET},
    world::ValidatedDocuments,
};

/// One `GET`, dialed from the machine's own network, over verified TLS except on loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The component that is checked.
    pub component: PodName,
    /// The machine from which to dial.
    pub machine: HypervisorName,
    /// The address to dial.
    pub address: SocketAddr,
    /// The path. The status 200 means healthy.
    pub path: &'static str,
    /// How both sides authenticate. None: a program of Keelway on loopback, which reports its health to every client there.
    pub tls: Option<ProbeTls>,
    /// The programs that repeat the same check. If they observed a result recently, the probe is not needed.
    pub witness: HealthWitness,
}

/// The programs that check a component repeatedly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthWitness {
    /// No program does the same check.
    None,
    /// The agent of the component's machine, whose liveness check is the same.
    Agent,
    /// The agent, and the component itself, a haproxy: it reports which servers it found ready, and passes requests to them.
    Servers,
    /// The agent, and every haproxy of the cluster. They know the component by this name.
    Ingresses {
        /// haproxy's name for the component.
        server: String,
        /// The ingresses, with their machines.
        ingresses: Vec<(PodName, HypervisorName)>,
    },
}

/// How the client and the server of a probe authenticate each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTls {
    /// The name that the server's certificate must hold.
    pub server_name: String,
    /// The Secret whose `bundle.crt` verifies the server's certificate.
    pub authority: SecretName,
    /// The client certificate to present. None: the server requires none.
    pub identity: Option<CertificateReference>,
}

/// A certificate and key in one of our Secrets: `NAME.crt` and `NAME.key`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateReference {
    /// The Secret.
    pub secret: SecretName,
    /// The name within the Secret.
    pub name: &'static str,
}

/// Returns the health check of every component that has its keys and is not stopping.
///
/// # Errors
/// A document is invalid. Documents that [`Documents::read`] returned are valid.
pub fn probes(documents: &Documents) -> Result<Vec<Probe>, Faults> {
    let world = ValidatedDocuments::of(documents)?;
    let probe = |(pod, component): (&PodName, &Shared<Component>)| {
        let machine = world.machines.get(&component.spec.hypervisor)?;
        let cluster = documents.clusters.get(&component.spec.cluster);
        let role = component.spec.role;
        if cluster.is_some_and(|cluster| cluster.stops_in_sleep(role)) {
            return None;
        }
        let mut probe = of(pod, component, machine)?;
        let answers =
            |cluster: &Shared<Cluster>| cluster.sleep_phase().is_some_and(SleepPhase::is_answered_by_ingresses);
        if role == Role::Ingress && cluster.is_some_and(answers) {
            (probe.path, probe.witness) = (ASLEEP_PATH, HealthWitness::None);
        }
        if component.spec.role == Role::KubeApiserver {
            probe.witness = ingresses(documents, pod);
        }
        probe.tls.as_ref().is_none_or(|tls| documents.secrets.contains_key(&tls.authority)).then_some(probe)
    };
    Ok(documents.components.iter().filter(|(_, component)| !component.is_stopping()).filter_map(probe).collect())
}

/// The path at which Kubernetes' controllers report that they are healthy. kube-controller-manager has no other path.
pub(crate) fn controller_liveness(role: Role) -> &'static str {
    if role == Role::KubeControllerManager { "/healthz" } else { "/livez" }
}

/// The liveness path of Keelway's own programs.
pub(crate) const OWN_LIVENESS: &str = "/healthz";

/// The path at which an ingress reports that it answers for a cluster that sleeps. No API server has it.
pub(crate) const ASLEEP_PATH: &str = "/keelway-asleep";

/// haproxy checks the readiness of each API server every second, over TLS that it verifies.
fn ingresses(documents: &Documents, server: &PodName) -> HealthWitness {
    let components = documents.components_of(&server.cluster);
    let ingresses =
        components.filter(|(_, component)| component.spec.role == Role::Ingress && !component.is_stopping());
    HealthWitness::Ingresses {
        server: server_name(server),
        ingresses: ingresses.map(|(pod, component)| (pod.clone(), component.spec.hypervisor.clone())).collect(),
    }
}

fn of(pod: &PodName, component: &Component, machine: &ValidatedHypervisor) -> Option<Probe> {
    let private = *machine.private.first()?;
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let role = component.spec.role;
    let serves = component.stage() == ComponentStage::Serving;
    let (address, port, path, known) = match role {
        Role::Etcd => (private, CLIENT, "/readyz", Some((pod.component.to_string(), secret_names::ETCD))),
        Role::KubeApiserver => {
            (private, SECURE, "/readyz", Some((API_SERVER_NAME.to_string(), secret_names::KUBERNETES)))
        }
        Role::KubeControllerManager | Role::KubeScheduler => {
            (loopback, SECURE, controller_liveness(role), Some((role.to_string(), secret_names::INFRASTRUCTURE)))
        }
        Role::Ingress => {
            let known = (API_SERVER_NAME.to_string(), secret_names::KUBERNETES);
            (*machine.bind.first()?, API, "/readyz", Some(known))
        }
        // A component that served before is asked for its liveness: what it lacks, such as an API server, another component would lack too.
        Role::ClusterController | Role::FleetController | Role::Gateway if serves => {
            (loopback, HEALTH, OWN_LIVENESS, None)
        }
        Role::ClusterController | Role::FleetController | Role::Gateway => (loopback, HEALTH, "/readyz", None),
    };
    let witness = match role {
        Role::KubeControllerManager | Role::KubeScheduler => HealthWitness::Agent,
        Role::ClusterController | Role::FleetController | Role::Gateway if serves => HealthWitness::Agent,
        Role::Ingress => HealthWitness::Servers,
        Role::ClusterController | Role::FleetController | Role::Gateway | Role::Etcd | Role::KubeApiserver => {
            HealthWitness::None
        }
    };
    let id = &pod.cluster;
    let identity = (role == Role::Etcd)
        .then(|| CertificateReference { secret: SecretName::of(id, DRIVER_SECRET), name: "etcd-client" });
    Some(Probe {
        component: pod.clone(),
        machine: machine.name.clone(),
        address: SocketAddr::new(address, component.spec.port(port)),
        path,
        tls: known.map(|(server_name, authority)| ProbeTls {
            server_name,
            authority: SecretName::of(id, authority),
            identity,
        }),
        witness,
    })
}
