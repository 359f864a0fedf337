//! Targets that a gateway refuses. If the data that forbids them is changed, it accepts them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use keelway_pki::Authority;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use crate::client::{connect, connect_soon, ping};
use crate::control_plane::echo;
use crate::daemon::{EGRESS_NAME, Egress, GATEWAY_NAME, Gateway, Keys};
use crate::lan::{Lan, address};
use crate::support::{Namespace, wait_until};
use crate::worker::{Worker, object};
use crate::{on_host, unguarded};

const GATEWAY: u8 = 1;
const API_SERVER: u8 = 10;

/// Ranges that are not the cluster's and that the bounds forbid, each with an address in it.
const FOREIGN: [(&str, &str); 2] = [
    // Another cluster's VPN, and the hypervisors' network.
    ("100.81.0.0/24", "100.81.0.5"),
    ("10.231.1.0/24", "10.231.1.5"),
];

#[test]
fn a_gateway_leads_to_its_own_clusters_peers_and_nowhere_else() {
    on_host("refusals::a_gateway_leads_to_its_own_clusters_peers_and_nowhere_else", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        let mut claims = object(7);
        claims["podCIDRs"].as_array_mut().unwrap().extend(FOREIGN.map(|(range, _)| json!(range)));
        gateway.keep(&[claims, object(8)]);
        gateway.start();
        let worker = Worker::new(&lan, 7, &[(GATEWAY, gateway.key())], 1);
        worker.echo(10250);
        for (_, address) in FOREIGN {
            worker.add_address(&format!("{address}/32"));
        }
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &authority, &[GATEWAY]);
        egress.start();
        let socket = egress.cluster();
        ping(&mut connect_soon(&socket, "100.80.0.7:10250"));
        let own = address(GATEWAY);
        let own_server = echo(&gateway.daemon.machine, 7000);
        let targets = [
            // The gateway's machine: the names of its loopback, and its own addresses.
            "127.0.0.1:8080",
            "127.1.2.3:8080",
            "[::1]:8080",
            "[::ffff:127.0.0.1]:8080",
            "0.0.0.0:8080",
            "169.254.169.254:80",
            &format!("{own}:20010"),
            "100.80.255.1:8080",
            // A peer that was removed, an address without a peer, and names.
            "100.80.0.9:10250",
            "10.244.9.1:80",
            "w7:10250",
            "localhost:7000",
        ];
        let foreign = FOREIGN.map(|(_, address)| format!("{address}:10250"));
        for target in targets.into_iter().chain(foreign.iter().map(String::as_str)) {
            let answer = connect(&socket, target);
            assert_eq!(answer.status, 403, "{target}: {}", answer.why);
        }
        assert_eq!(connect(&socket, "100.80.0.8:10250").status, 502, "a peer that was never seen");
        assert_eq!(connect(&socket, "100.80.0.7:9").status, 502, "a port that is closed");
        assert_eq!(connect(&socket, "100.80.0.7").status, 400, "no port");
        let metrics = gateway.daemon.metrics();
        assert!(metrics.contains("keelway_gateway_connects_total{outcome=\"forbidden\"} 14"), "{metrics}");
        let log = gateway.daemon.process().log();
        assert_eq!(log.matches("outside the cluster's pod ranges").count(), 2, "{log}");

        // With other bounds, the same objects lead there.
        gateway.daemon.process().stop();
        let ranges: Vec<&str> = FOREIGN.iter().map(|(range, _)| *range).chain(["10.244.0.0/16"]).collect();
        gateway.config["wireGuard"]["podCIDRs"] = json!(ranges);
        gateway.start();
        for target in &foreign {
            ping(&mut connect_soon(&socket, target));
        }

        // If a gateway resolves names, it connects to its own machine.
        assert_eq!(own_server.load(Ordering::Relaxed), 0, "somebody came to the gateway's machine");
        gateway.daemon.process().kill();
        unguarded::gateway(&gateway);
        ping(&mut connect_soon(&socket, "localhost:7000"));
        assert_eq!(own_server.load(Ordering::Relaxed), 1);
    });
}

/// The gateway's address on the network of the clusters' users.
const PUBLIC: &str = "198.51.100.1";

#[test]
fn only_an_egress_of_the_installation_gets_a_response() {
    on_host("refusals::only_an_egress_of_the_installation_gets_a_response", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let (authority, other) = (keys.authority(), keys.authority());
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        gateway.keep(&[object(8)]);
        gateway.daemon.machine.ip(&["addr", "add", &format!("{PUBLIC}/24"), "dev", "eth0"]);
        gateway.start();
        let machine = lan.machine(API_SERVER);
        machine.ip(&["addr", "add", "198.51.100.10/24", "dev", "eth0"]);
        let is_public = || machine.within(|| TcpStream::connect((PUBLIC, 20010)).is_ok());
        assert!(!is_public(), "it listens on an address that it was not given");
        let ask_of = |signed_by: Option<&Authority>, name: &str, organizations: &[&str]| {
            let identity = signed_by.map(|signed_by| {
                let folder = tempfile::tempdir().unwrap();
                keys.write_of(folder.path(), signed_by, (name, organizations), &[&authority]);
                folder
            });
            answer(&machine, &authority, identity.as_ref().map(tempfile::TempDir::path))
        };
        let ask = |signed_by, name: &str| ask_of(signed_by, name, &[]);
        // `other` stands for the authority of a tenant's cluster. A tenant can have it sign no more than this.
        let of_tenant = |name: &str| ask_of(Some(&other), name, &["system:masters"]);
        wait_until("an egress is answered", crate::PATIENCE, || {
            ask(Some(&authority), EGRESS_NAME).is_some_and(|answer| answer.starts_with("HTTP/1.1 502"))
        });
        assert_eq!(ask(None, ""), None, "no certificate");
        assert_eq!(ask(Some(&other), EGRESS_NAME), None, "another authority");
        for name in [EGRESS_NAME, "kubernetes-admin", "kube-apiserver"] {
            assert_eq!(of_tenant(name), None, "{name} of system:masters, by the cluster's authority");
        }
        assert_eq!(ask(Some(&authority), GATEWAY_NAME), None, "a server's certificate");
        assert_eq!(ask(Some(&authority), "keelway:egress2"), None, "another name");
        // A client without TLS gets no response either.
        let plain = machine.within(|| {
            let mut stream = TcpStream::connect((address(GATEWAY), 20010)).unwrap();
            stream.write_all(b"CONNECT 100.80.0.8:80 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            answer
        });
        assert!(!plain.starts_with(b"HTTP"), "{plain:?}");

        // Only the one trusted authority and the one name keep these clients out.
        keys.write(&gateway.daemon.folder, &authority, GATEWAY_NAME, &[&authority, &other]);
        wait_until("with its authority trusted: the tenant is answered", crate::PATIENCE, || {
            of_tenant(EGRESS_NAME).is_some_and(|answer| answer.starts_with("HTTP/1.1 502"))
        });
        assert_eq!(of_tenant("kubernetes-admin"), None, "another name");
        gateway.daemon.process().stop();
        gateway.config["connect"]["clients"] = json!([EGRESS_NAME, "kubernetes-admin"]);
        gateway.config["connect"]["listen"] = json!(["0.0.0.0:20010"]);
        gateway.start();
        wait_until("with its name listed, too", crate::PATIENCE, || {
            of_tenant("kubernetes-admin").is_some_and(|answer| answer.starts_with("HTTP/1.1 502"))
        });

        assert!(is_public(), "with another address to listen on");
        // Only the demand for a certificate keeps out a client without one.
        assert_eq!(ask(None, ""), None, "still no certificate");
        gateway.daemon.process().stop();
        unguarded::gateway(&gateway);
        assert!(ask(None, "").is_some_and(|answer| answer.starts_with("HTTP/1.1 502")), "nobody was asked for one");
    });
}

/// Returns the gateway's response to a CONNECT of a client with this identity, if there is one.
fn answer(machine: &Namespace, trusts: &Authority, identity: Option<&std::path::Path>) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusts.certificate().pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match identity {
        Some(folder) => {
            let certificate = CertificateDer::from_pem_file(folder.join("tls.crt")).unwrap();
            let key = PrivateKeyDer::from_pem_file(folder.join("tls.key")).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    machine.within(move || {
        let stream = TcpStream::connect((address(GATEWAY), 20010)).unwrap();
        stream.set_read_timeout(Some(crate::PATIENCE)).unwrap();
        let name = ServerName::try_from(GATEWAY_NAME).unwrap();
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream);
        stream.write_all(b"CONNECT 100.80.0.8:80 HTTP/1.1\r\nHost: a\r\n\r\n").ok()?;
        let mut answer = vec![0; 512];
        let length = stream.read(&mut answer).ok().filter(|length| *length > 0)?;
        Some(String::from_utf8_lossy(&answer[..length]).into_owned())
    })
}
