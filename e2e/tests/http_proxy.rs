//! Programs that read a kubeconfig connect to its API server through the HTTP proxy of their environment, unless `NO_PROXY` has the server.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use keelway_api::jiff::{SignedDuration, Timestamp};
use keelway_e2e::{
    FinishedCommand,
    command::{RunningCommand, run},
    deadline,
    http_proxy::TestHttpProxy,
    program_directory,
};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

const CREDENTIALS: &str = "manager:p@ss-hidden";
/// The same in a URL.
const ENCODED: &str = "manager:p%40ss-hidden";
/// What the API server responds to each request.
const MESSAGE: &str = "this API server allows nothing";

/// An API server that refuses every request.
struct RefusingApiServer {
    /// An address of this machine that is not one of loopback, to which connections are always direct.
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    kubeconfig: PathBuf,
    directory: tempfile::TempDir,
}

impl RefusingApiServer {
    fn start() -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let now = Timestamp::now();
        let validity = Validity::starting(now, SignedDuration::from_hours(1)).unwrap();
        let authority = Authority::mint("kubernetes", validity, &mut random).unwrap();
        let request = LeafRequest {
            common_name: "kube-apiserver".to_owned(),
            organizations: vec![],
            dns_names: vec!["kubernetes".to_owned()],
            ip_addresses: vec![],
            usages: vec![CertificateUsage::ServerAuth],
            validity,
        };
        let issued = authority.issue(&request, &mut random).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.expose().as_bytes()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(builder.with_single_cert(chain, key).unwrap());
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, counted) = (Arc::clone(&config), Arc::clone(&counted));
                thread::spawn(move || {
                    let connection = ServerConnection::new(config).unwrap();
                    refuse(StreamOwned::new(connection, stream.unwrap()), &counted);
                });
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let authority_file = directory.path().join("ca.crt");
        fs::write(&authority_file, authority.certificate().pem()).unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: a, contexts: [{{name: a, context: {{cluster: c, user: u}}}}], \
             users: [{{name: u, user: {{token: t}}}}], clusters: [{{name: c, cluster: {{server: 'https://{address}', \
             tls-server-name: kubernetes, certificate-authority: '{}'}}}}]}}",
            authority_file.display()
        );
        fs::write(&kubeconfig, text).unwrap();
        Self { address, requests, kubeconfig, directory }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns a command with these variables of proxies, and no other ones.
    fn command(&self, program: &str, variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(PathBuf::from(program_directory()).join(program));
        let known = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"];
        for name in known {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied()).current_dir(self.directory.path());
        command
    }

    /// Runs `keelway pivot`, which reads all documents of this API server.
    fn pivot(&self, variables: &[(&str, &str)]) -> FinishedCommand {
        let from = format!("kubernetes:{}", self.kubeconfig.display());
        run(self.command("keelway", variables).args(["pivot", "--from", &from]), &[], deadline::READ)
    }
}

fn refuse(mut stream: StreamOwned<ServerConnection, std::net::TcpStream>, counted: &AtomicUsize) {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        request.extend(byte);
    }
    counted.fetch_add(1, Ordering::Relaxed);
    let body = format!(
        "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"message\":\"{MESSAGE}\",\"reason\":\"Forbidden\",\"code\":403}}"
    );
    let head = format!(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all((head + &body).as_bytes());
    let _ = stream.flush();
}

fn proxy() -> TestHttpProxy {
    TestHttpProxy::start("127.0.0.1:0".parse().unwrap(), Some(CREDENTIALS))
}

#[test]
fn pivot_uses_the_proxy_unless_no_proxy_has_the_api_server() {
    let (server, proxy) = (RefusingApiServer::start(), proxy());
    let url = format!("http://{ENCODED}@{}", proxy.address());
    let reached = |variables: &[(&str, &str)]| {
        let (before, ended) = (server.requests(), server.pivot(variables));
        assert!(ended.code() != 0 && ended.stderr.contains(MESSAGE), "{variables:?}: {}", ended.stderr);
        assert!(server.requests() > before && !ended.stderr.contains("hidden"), "{}", ended.stderr);
    };
    reached(&[]);
    reached(&[("HTTPS_PROXY", &url), ("NO_PROXY", "10.0.0.0/8,0.0.0.0/8")]);
    reached(&[("HTTP_PROXY", &url)]);
    assert_eq!(proxy.targets(), BTreeSet::new(), "direct");
    let itself = proxy.address().ip().to_string();
    reached(&[("https_proxy", &url), ("no_proxy", &itself)]);
    assert_eq!(proxy.targets(), [server.address.to_string()].into(), "through the proxy");
}

#[test]
fn pivot_names_a_proxy_that_refuses() {
    let (server, proxy) = (RefusingApiServer::start(), proxy());
    let address = proxy.address();
    let wrong = server.pivot(&[("HTTPS_PROXY", &format!("http://manager:wrong-hidden@{address}"))]);
    assert!(
        wrong.stderr.contains(&format!("the HTTP proxy http://{address} requires credentials")),
        "{}",
        wrong.stderr
    );
    drop(proxy);
    let gone = server.pivot(&[("HTTPS_PROXY", &format!("http://{ENCODED}@{address}"))]);
    assert!(gone.stderr.contains(&format!("cannot connect to the HTTP proxy http://{address}")), "{}", gone.stderr);
    let invalid = server.pivot(&[("HTTPS_PROXY", "socks5://manager:hidden@127.0.0.1:1080")]);
    assert!(
        invalid.stderr.contains("HTTPS_PROXY names a proxy that is not reached over plain HTTP"),
        "{}",
        invalid.stderr
    );
    for ended in [wrong, gone, invalid] {
        assert!(ended.code() != 0 && !ended.stderr.contains("hidden"), "{}", ended.stderr);
    }
    assert_eq!(server.requests(), 0);
}

#[test]
fn the_manager_uses_the_proxy_unless_no_proxy_has_the_api_server() {
    let server = RefusingApiServer::start();
    for (no_proxy, is_proxied) in [("0.0.0.0", false), ("127.0.0.1", true)] {
        let (proxy, before) = (proxy(), server.requests());
        let url = format!("http://{ENCODED}@{}", proxy.address());
        let mut command = server.command("keelway-manager", &[("HTTPS_PROXY", &url), ("NO_PROXY", no_proxy)]);
        command.args(["run", "--store=kubernetes", "--metrics-listen=off", "--kubeconfig"]).arg(&server.kubeconfig);
        let manager = RunningCommand::start(&mut command, &[]);
        deadline::until("the manager reads its store", deadline::READ, || server.requests() > before);
        drop(manager);
        assert_eq!(!proxy.targets().is_empty(), is_proxied, "NO_PROXY={no_proxy}");
    }
}
