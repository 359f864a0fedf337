//! Certificates of components that are renewed under load.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
};

use keelway_api::{
    Component, Documents,
    documents::SecretName,
    role::{CLIENT, CONNECT, PEER, Role, SECURE},
};
use keelway_e2e::{Plane, deadline, https::HttpsClient, load::Load};
use rustls::pki_types::{CertificateDer, pem::PemObject};

/// A certificate that a component shows to its clients.
struct ServedCertificate {
    /// Its name in the Secret of the component.
    name: &'static str,
    port: &'static str,
    /// The Secret of its authority.
    authority: &'static str,
    /// A name in it.
    server_name: String,
}

/// All certificates of all components are missing, so they are issued again, as after two thirds of their lifetime. Components show the new ones, and
/// none of them restarts.
pub(crate) fn of_every_component(plane: &mut Plane<'_>) {
    let (before, earlier) = (plane.pids(), plane.documents.clone());
    let load = Load::start(&plane.kubectl);
    load.wait_for_requests(100);
    let text = without_certificates(plane);
    plane.apply(&text);
    let mut shown = BTreeMap::new();
    for component in plane.components() {
        for served in served(component) {
            let wanted = certificate(&plane.documents, component, served.name);
            assert_ne!(wanted, certificate(&earlier, component, served.name), "it was not issued again");
            let what = format!("{} shows its new certificate {}", component.spec.name().unwrap(), served.name);
            deadline::until(&what, deadline::KUBERNETES, || shows(plane, component, &served, &wanted));
            *shown.entry(component.spec.role).or_insert(0) += 1;
        }
    }
    load.wait_for_requests(100);
    load.end().assert_good();
    assert_eq!(plane.pids(), before, "a component was restarted");
    let expected = [
        (Role::Etcd, 6),
        (Role::KubeApiserver, 2),
        (Role::KubeControllerManager, 2),
        (Role::KubeScheduler, 2),
        (Role::Gateway, 2),
    ];
    assert_eq!(shown, expected.into());
}

/// Returns the documents without the key pairs of the components. WireGuard's keys have no certificate.
fn without_certificates(plane: &Plane<'_>) -> Vec<u8> {
    let mut documents = Documents::read(&plane.text).unwrap();
    for component in plane.components() {
        let name = secret_of(plane, component);
        let Some(secret) = documents.secrets.get_mut(&name) else { continue };
        let data = secret.data.as_mut().unwrap();
        let names: BTreeSet<String> =
            data.keys().filter_map(|key| key.strip_suffix(".crt")).map(ToOwned::to_owned).collect();
        let is_kept = |key: &str| key.rsplit_once('.').is_none_or(|(name, _)| !names.contains(name));
        *data = data.iter().filter(|(key, _)| is_kept(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
        // A Secret of ours is never empty.
        if data.is_empty() {
            documents.secrets.remove(&name);
        }
    }
    documents.write().into_bytes()
}

fn secret_of(plane: &Plane<'_>, component: &Component) -> SecretName {
    SecretName::of(plane.cluster().id().unwrap(), component.spec.name().unwrap().as_str())
}

fn certificate(documents: &Documents, component: &Component, name: &str) -> CertificateDer<'static> {
    let secret = SecretName::of(&component.spec.cluster_id, component.spec.name().unwrap().as_str());
    let pem = &documents.secrets[&secret].data.as_ref().unwrap()[&format!("{name}.crt")].0;
    CertificateDer::from_pem_slice(pem).unwrap()
}

fn served(component: &Component) -> Vec<ServedCertificate> {
    let of = |name, port, authority, server_name: &str| ServedCertificate {
        name,
        port,
        authority,
        server_name: server_name.to_owned(),
    };
    let member = component.spec.name().unwrap().to_string();
    let role = component.spec.role;
    match role {
        Role::Etcd => {
            vec![of("server", CLIENT, "etcd-ca", &member), of("peer", PEER, "etcd-ca", &member)]
        }
        Role::KubeApiserver => vec![of("server", SECURE, "kubernetes-ca", "kubernetes")],
        Role::KubeControllerManager | Role::KubeScheduler => {
            vec![of("server", SECURE, "infrastructure-ca", role.row().name)]
        }
        Role::Gateway => vec![of("server", CONNECT, "infrastructure-ca", "gateway.keelway")],
        Role::ClusterController | Role::FleetController | Role::Ingress => Vec::new(),
    }
}

/// Whether a new connection gets this certificate.
fn shows(plane: &Plane<'_>, component: &Component, served: &ServedCertificate, wanted: &CertificateDer<'_>) -> bool {
    let authority = SecretName::of(plane.cluster().id().unwrap(), served.authority);
    let bundle = &plane.documents.secrets[&authority].data.as_ref().unwrap()["bundle.crt"].0;
    let client = HttpsClient::new(bundle, &served.server_name, None);
    let machine = plane.machine(component);
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    machine.addresses().into_iter().chain([loopback]).any(|address| {
        let address = SocketAddr::new(address, component.spec.port(served.port));
        let shown = machine.within(|| client.server_certificate(TcpStream::connect(address)?));
        shown.is_ok_and(|shown| shown == *wanted)
    })
}
