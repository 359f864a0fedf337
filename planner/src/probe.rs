//! Health checks: what to ask each component.

use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::net::{IpAddr, SocketAddr};

use keelway_api::{
    Component, Documents, Shared,
    component::ComponentStage,
    documents::SecretName,
    fault::Faults,
    name::{HypervisorName, PodName},
    role::{API, CLIENT, HEALTH, Role, SECURE},
    validated::ValidatedHypervisor,
};

use crate::{
    certificates::{self, API_SERVER_NAME, DRIVER_SECRET},
    pod::server_name,
    world::ValidatedDocuments,
};

/// One `GET`, dialled from the machine's own network: over verified TLS, but for loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The component that it asks.
    pub component: PodName,
    /// The machine from which it dials.
    pub machine: HypervisorName,
    /// Where it dials.
    pub address: SocketAddr,
    /// The path; 200 means healthy.
    pub path: &'static str,
    /// How both sides know each other. `None`: a program of Keelway's own on loopback, which tells its health to everybody there.
    pub tls: Option<ProbeTls>,
    /// Who has asked the same a moment ago, so that nobody else need.
    pub witness: HealthWitness,
}

/// Who asks a component again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthWitness {
    /// Nobody asks the same.
    None,
    /// The agent of its machine: the liveness check is the same.
    Agent,
    /// Its agent, and as it is a haproxy also itself: it tells which servers it has found ready, and passes requests on to them.
    Servers,
    /// Its agent, and every haproxy of the cluster, which knows it by this name.
    Ingresses {
        /// haproxy's name of it.
        server: String,
        /// The ingresses, with their machines.
        ingresses: Vec<(PodName, HypervisorName)>,
    },
}

/// How who asks and who answers know each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTls {
    /// The name that the server's certificate must hold.
    pub server_name: String,
    /// The Secret whose `bundle.crt` the server's certificate is verified with.
    pub authority: SecretName,
    /// The client certificate to show, where one is asked for.
    pub identity: Option<CertificateReference>,
}

/// A certificate and key in one of our Secrets: `NAME.crt` and `NAME.key`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateReference {
    /// The Secret.
    pub secret: SecretName,
    /// The name within it.
    pub name: &'static str,
}

/// The health check of every component whose keys are there, and that is not being ended.
///
/// # Errors
/// A document does not mean anything; documents that were read by [`Documents::read`] always do.
pub fn probes(documents: &Documents) -> Result<Vec<Probe>, Faults> {
    let world = ValidatedDocuments::of(documents)?;
    let probe = |(pod, component): (&PodName, &Shared<Component>)| {
        let machine = world.machines.get(&component.spec.hypervisor)?;
        let mut probe = of(pod, component, machine)?;
        if component.spec.role == Role::KubeApiserver {
            probe.witness = ingresses(documents, pod);
        }
        probe.tls.as_ref().is_none_or(|tls| documents.secrets.contains_key(&tls.authority)).then_some(probe)
    };
    Ok(documents.components.iter().filter(|(_, component)| !component.is_stopping()).filter_map(probe).collect())
}

/// The path at which Kubernetes' controllers tell that they are well; kube-controller-manager has no other one.
pub(crate) fn controller_liveness(role: Role) -> &'static str {
    if role == Role::KubeControllerManager { "/healthz" } else { "/livez" }
}

/// The path at which programs of Keelway's own tell that they live.
pub(crate) const OWN_LIVENESS: &str = "/healthz";

/// haproxy asks each API server for its readiness every second, over TLS that it verifies.
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
        Role::Etcd => (private, CLIENT, "/readyz", Some((pod.component.to_string(), certificates::ETCD))),
        Role::KubeApiserver => {
            (private, SECURE, "/readyz", Some((API_SERVER_NAME.to_string(), certificates::KUBERNETES)))
        }
        Role::KubeControllerManager | Role::KubeScheduler => {
            (loopback, SECURE, controller_liveness(role), Some((role.to_string(), certificates::INFRASTRUCTURE)))
        }
        Role::Ingress => {
            let known = (API_SERVER_NAME.to_string(), certificates::KUBERNETES);
            (*machine.public.first()?, API, "/readyz", Some(known))
        }
        // One that served goes on to: what it lacks, such as an API to ask, is nothing that another one would have.
        Role::ClusterController | Role::Gateway if serves => (loopback, HEALTH, OWN_LIVENESS, None),
        Role::ClusterController | Role::Gateway => (loopback, HEALTH, "/readyz", None),
    };
    let vouchers = match role {
        Role::KubeControllerManager | Role::KubeScheduler => HealthWitness::Agent,
        Role::ClusterController | Role::Gateway if serves => HealthWitness::Agent,
        Role::Ingress => HealthWitness::Servers,
        Role::ClusterController | Role::Gateway | Role::Etcd | Role::KubeApiserver => HealthWitness::None,
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
        witness: vouchers,
    })
}
