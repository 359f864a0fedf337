//! Which clients can reach which endpoints.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
};

use keelway_api::{
    jiff::{SignedDuration, Timestamp},
    role::{EGRESS, HEALTH, PEER, Role},
};
use keelway_e2e::{
    TestControlPlane, TestMachine, deadline,
    https::{ALERT, HANDSHAKE, HttpsClient, PROTOCOL_VERSION, TLS_1_1, TLS_1_2, client_hello_response, plain},
    listening,
};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, PrivateKeyPem, Validity};
use keelway_planner::{Probe, probes};
use rand::{SeedableRng, rngs::ChaCha8Rng};

/// From the network of clients, only the ingress accepts connections, on any address and port of the machines.
pub(crate) fn only_the_ingress(plane: &TestControlPlane<'_>) {
    let heard: BTreeSet<SocketAddr> = plane.machines.iter().flat_map(|machine| listening::tcp(machine.pid())).collect();
    let ports: BTreeSet<u16> = heard.iter().map(SocketAddr::port).collect();
    assert!(ports.len() >= plane.components().len(), "{heard:?}");
    let mut answered = BTreeSet::new();
    for machine in &plane.machines {
        for address in machine.addresses() {
            let private = machine.document.spec.addresses.private.contains(&address.to_string());
            for port in &ports {
                let address = SocketAddr::new(address, *port);
                match TcpStream::connect_timeout(&address, deadline::ANSWER) {
                    Ok(_) => assert!(answered.insert(address)),
                    Err(error) => {
                        let no_route =
                            matches!(error.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable);
                        assert!(no_route || !private, "{address}: {error}");
                    }
                }
            }
        }
        let datagrams: BTreeSet<u16> = listening::udp(machine.pid()).iter().map(SocketAddr::port).collect();
        let expected = machine.is_public().then(|| plane.ingress().port()).into_iter().collect();
        assert_eq!(datagrams, expected, "{}: WireGuard has the number of the ingress", machine.name());
    }
    assert_eq!(answered, BTreeSet::from([plane.ingress()]));
    // From the private machine itself, these endpoints accept connections.
    for probe in private_probes(plane) {
        assert!(plane.private().connect(probe.address).is_ok(), "{}", probe.address);
    }
}

/// On the private machine itself, a client without a certificate learns only the health of components.
pub(crate) fn only_health(plane: &TestControlPlane<'_>) {
    let machine = plane.private();
    let runtime = runtime_sockets(machine);
    let own = own_health(plane, machine);
    for address in &own {
        for (path, expected) in [("/healthz", 200), ("/metrics", 404), ("/", 404), ("/debug/pprof/", 404)] {
            let answer = plain(machine.connect(*address).unwrap(), path).unwrap();
            assert_eq!(answer.status, expected, "{address}{path}");
        }
    }
    for address in listening::tcp(machine.pid()).difference(&runtime).filter(|address| !own.contains(address)) {
        for path in ["/", "/metrics", "/debug/pprof/", "/healthz", "/version", "/health"] {
            let stream = machine.connect(*address).unwrap();
            // The request fails if the connection ends without a response.
            let status = plain(stream, path).map(|answer| answer.status);
            assert!(matches!(status, Ok(400) | Err(_)), "{address}{path}: {status:?}");
        }
        versions(machine, *address);
    }
    for probe in private_probes(plane) {
        strangers(plane, &probe);
    }
}

/// Without a certificate, etcd rejects the TLS handshake, and the other components respond only to health checks.
fn strangers(plane: &TestControlPlane<'_>, probe: &Probe) {
    let machine = plane.private();
    let Some(tls) = &probe.tls else { return };
    let bundle = plane.secret(&tls.authority.name, "bundle.crt");
    let get = |https: &HttpsClient, path: &str| https.get(machine.connect(probe.address).unwrap(), path);
    let stranger = HttpsClient::new(&bundle, &tls.server_name, None);
    if let Some(identity) = &tls.identity {
        let refused = get(&stranger, probe.path).unwrap_err().to_string();
        assert!(refused.contains("CertificateRequired"), "{}: {refused}", probe.address);
        let value = |suffix: &str| plane.secret(&identity.secret.name, &format!("{}.{suffix}", identity.name));
        let (certificate, key) = (value("crt"), value("key"));
        let known = HttpsClient::new(&bundle, &tls.server_name, Some((&certificate, &key)));
        assert_eq!(get(&known, probe.path).unwrap().status, 200);
        tenants(plane, probe.address, &tls.server_name);
    } else {
        assert_eq!(get(&stranger, probe.path).unwrap().status, 200, "{}", probe.address);
        for path in ["/metrics", "/configz", "/debug/pprof/", "/"] {
            let status = get(&stranger, path).unwrap().status;
            assert!(matches!(status, 401 | 403), "{}{path}: {status}", probe.address);
        }
    }
}

/// etcd rejects a client certificate that the cluster's own authority signed, whatever its subject is, because etcd has another authority.
fn tenants(plane: &TestControlPlane<'_>, address: SocketAddr, server: &str) {
    let signed_by = |authority: &str| {
        let value = |key: &str| String::from_utf8(plane.secret(authority, key)).unwrap();
        let authority = Authority::from_pem(&value("active.crt"), &PrivateKeyPem::new(value("active.key"))).unwrap();
        let request = LeafRequest {
            common_name: "kube-apiserver-etcd-client".to_owned(),
            organizations: vec!["system:masters".to_owned()],
            dns_names: vec![],
            ip_addresses: vec![],
            usages: vec![CertificateUsage::ClientAuth],
            validity: Validity::starting(Timestamp::now(), SignedDuration::from_mins(10)).unwrap(),
        };
        authority.issue(&request, &mut ChaCha8Rng::from_rng(&mut rand::rng())).unwrap()
    };
    let bundle = plane.secret("etcd-ca", "bundle.crt");
    let get = |authority: &str| {
        let signed = signed_by(authority);
        let identity = (signed.certificate_pem.as_bytes(), signed.key_pem.expose().as_bytes());
        HttpsClient::new(&bundle, server, Some(identity)).get(plane.private().connect(address).unwrap(), "/version")
    };
    let refused = get("kubernetes-ca").unwrap_err().to_string();
    assert!(["UnknownCA", "BadCertificate"].iter().any(|alert| refused.contains(alert)), "{address}: {refused}");
    assert_eq!(get("etcd-ca").unwrap().status, 200, "{address}");
}

/// The peer port of etcd rejects clients without a certificate of a member.
pub(crate) fn peers_only(plane: &TestControlPlane<'_>) {
    let components = plane.components();
    let etcd = components.values().find(|component| component.spec.role == Role::Etcd).unwrap();
    let address = SocketAddr::new(plane.private().addresses()[0], etcd.spec.port(PEER));
    let stranger = HttpsClient::new(&plane.secret("etcd-ca", "bundle.crt"), "etcd-0", None);
    let refused = stranger.get(plane.private().connect(address).unwrap(), "/members").unwrap_err().to_string();
    assert!(refused.contains("CertificateRequired"), "{refused}");
}

/// Endpoints that accept TLS 1.2 reject TLS 1.1.
fn versions(machine: &TestMachine, address: SocketAddr) {
    let answer = |version| client_hello_response(machine.connect(address).unwrap(), version).unwrap();
    assert_eq!(answer(TLS_1_2).0, HANDSHAKE, "{address}");
    assert_eq!(answer(TLS_1_1), (ALERT, PROTOCOL_VERSION), "{address}");
}

fn private_probes(plane: &TestControlPlane<'_>) -> Vec<Probe> {
    let all = probes(&plane.documents).unwrap();
    all.into_iter().filter(|probe| probe.machine.as_str() == plane.private().name()).collect()
}

/// Returns the addresses on which Keelway's own programs respond to health checks without a certificate.
fn own_health(plane: &TestControlPlane<'_>, machine: &TestMachine) -> BTreeSet<SocketAddr> {
    let components = plane.components();
    let here = components.values().filter(|component| component.spec.hypervisor.as_str() == machine.name());
    let ports = here.flat_map(|component| [HEALTH, EGRESS].map(|port| component.spec.ports.get(port).copied()));
    ports.flatten().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
}

/// Returns the endpoints outside the machine's port range: containerd's streaming server, whose URLs are secret.
fn runtime_sockets(machine: &TestMachine) -> BTreeSet<SocketAddr> {
    let range = machine.document.spec.port_range;
    let outside = |address: &SocketAddr| !(range.from..=range.to).contains(&address.port());
    listening::tcp(machine.pid()).into_iter().filter(outside).collect()
}
