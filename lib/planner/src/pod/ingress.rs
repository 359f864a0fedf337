//! haproxy in front of the API servers.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::net::SocketAddr;

use keelway_api::{
    component::ComponentStage,
    machine::{ContainerCheck, HaproxyServers, OnChange, PodFile, STATS_SOCKET},
    release,
    role::{API, Role, SECURE},
    sleep::SleepPhase,
};

use super::{MissingKey, PodInputs, PodTemplate, STARTUP_SECONDS, at, text};
use crate::{
    haproxy_name::{BACKEND, server_name},
    secret_names::{self, API_SERVER_NAME},
};

/// The memory of a connection: two buffers of 16 KiB while data waits. An idle connection was measured to use 9 KiB, with its sockets.
const CONNECTION_BYTES: u64 = 32 << 10;
/// The most concurrent connections from one source: an IPv4 address, or an IPv6 network of 64 bits. Several hundred workers may share the address of
/// a NAT, and a worker has about 20.
const CONNECTIONS_OF_A_SOURCE: u32 = 8192;
/// The most new connections from one source within ten seconds. After an outage, all workers behind a NAT connect again at once.
const NEW_CONNECTIONS_OF_A_SOURCE: u32 = 20_000;

/// How long a connection may be silent after one end has closed it. A connection that its client closed just before the API server's machine was
/// lost survives `on-marked-down shutdown-sessions` (seen in haproxy 2.6), and the removal of the server would wait for it for up to 24 hours.
const HALF_CLOSED_SECONDS: u64 = 10;

/// The largest segment of TCP in both directions. It passes every network over which IPv6 works (1280 bytes, of which headers use 60), also if that network
/// drops the messages by which routers report a smaller MTU.
const SEGMENT: u32 = 1220;

/// The most file descriptors of an ingress with this memory limit, two for each connection.
pub(super) fn descriptors(memory_limit_bytes: u64) -> u64 {
    memory_limit_bytes / CONNECTION_BYTES * 2
}

impl PodInputs<'_> {
    pub(super) fn ingress(&self) -> Result<PodTemplate, MissingKey> {
        if self.tenant.document.sleep_phase().is_some_and(SleepPhase::is_answered_by_ingresses) {
            return self.asleep_ingress();
        }
        let authority = self.shared("ca.crt", secret_names::KUBERNETES, "bundle.crt", OnChange::Restart)?;
        let servers = self.servers();
        // A running haproxy already has these servers: it reads the file when it starts.
        let list = text("servers.cfg", list(&servers), OnChange::PickedUp);
        let files = vec![authority, text("haproxy.cfg", self.haproxy()?, OnChange::Restart), list];
        Ok(self.haproxy_template(files, &["haproxy.cfg", "servers.cfg"], Some(servers)))
    }

    /// The ingress of a cluster that sleeps. It has no servers.
    fn asleep_ingress(&self) -> Result<PodTemplate, MissingKey> {
        let mut files = vec![text("haproxy.cfg", self.asleep_haproxy(), OnChange::Restart)];
        files.extend(self.asleep_files()?);
        Ok(self.haproxy_template(files, &["haproxy.cfg"], None))
    }

    fn haproxy_template(&self, files: Vec<PodFile>, read: &[&str], servers: Option<HaproxyServers>) -> PodTemplate {
        // haproxy runs with a master process, which handles signals also as the first process of its container.
        let command = ["haproxy", "-W", "-db"].map(ToString::to_string).into_iter();
        let read = read.iter().flat_map(|file| ["-f".to_string(), at(file)]);
        PodTemplate {
            files,
            data: vec![("run", "/run/haproxy")],
            image: release::haproxy_image(self.cluster.registry.as_deref()),
            command: command.chain(read).collect(),
            servers,
            check: ContainerCheck::Socket {
                path: STATS_SOCKET.to_string(),
                request: "show info".to_string(),
                answer: "Name: HAProxy".to_string(),
            },
            startup_seconds: Some(STARTUP_SECONDS),
            beside: vec![],
        }
    }

    /// The API servers that were ready before and stay. haproxy itself checks whether they are ready now.
    fn servers(&self) -> HaproxyServers {
        let addresses = self
            .siblings_that(Role::KubeApiserver, |component| component.stage() == ComponentStage::Serving)
            .filter_map(|(pod, spec, machine)| {
                Some((server_name(pod), SocketAddr::new(*machine.private.first()?, spec.port(SECURE))))
            });
        HaproxyServers { options: options(), addresses: addresses.collect::<BTreeMap<_, _>>() }
    }

    /// Unknown clients must not fill the log: connections that end normally are not logged, and of the others one in a hundred is. Each change of
    /// a server's state is logged.
    ///
    /// haproxy works on TCP alone: clients and API servers verify each other, and haproxy has neither keys nor requests.
    ///
    /// A watch can be silent for hours, so a connection lives as long as both ends. Keepalive detects ends that are gone. An API server that
    /// stops, or that cannot reach etcd, keeps its connections and gets no new ones after the first such check. An API server that does not respond
    /// at all loses its connections, so that clients connect to another one at once. Any other reason for which `/readyz` fails counts only when
    /// it repeats: `informer-sync` fails for milliseconds whenever an API server begins to watch a resource, for example that of the parameters of
    /// an admission policy.
    ///
    /// haproxy derives the number of connections from the number of file descriptors: its limit here, or that of the container runtime if it is lower.
    /// With `maxconn`, haproxy would not start under a lower limit.
    fn haproxy(&self) -> Result<String, MissingKey> {
        let port = self.spec.port(API);
        let binds: Vec<String> =
            self.machine.bind.iter().map(|address| SocketAddr::new(*address, port)).map(bind).collect();
        Ok(format!(
            "\
global
    log stdout format raw local0 notice
    log stdout format raw sample 1:100 local0 info
    stats socket /run/haproxy/admin.sock mode 600 level admin
    fd-hard-limit {descriptors}
    hard-stop-after 25s
    ssl-default-server-options ssl-min-ver TLSv1.2

defaults
    mode tcp
    log global
    option dontlognull
    option clitcpka
    clitcpka-idle 30s
    clitcpka-intvl 10s
    clitcpka-cnt 3
    timeout client 1h
    timeout tunnel 24h
    timeout client-fin {HALF_CLOSED_SECONDS}s
    timeout server-fin {HALF_CLOSED_SECONDS}s

frontend api
{binds}{limits}    option tcplog
    option dontlog-normal
{stream_rules}    default_backend {BACKEND}
{stream_backend}
frontend metrics
    mode http
    bind unix@/run/haproxy/metrics.sock mode 600
    timeout client 10s
    option dontlog-normal
    http-request use-service prometheus-exporter if {{ path /metrics }}
    http-request return status 404

defaults {BACKEND}
    mode tcp
    log global
    balance leastconn
    option redispatch 1
    option srvtcpka
    srvtcpka-idle 30s
    srvtcpka-intvl 10s
    srvtcpka-cnt 3
    retries 3
    timeout connect 2s
    timeout server 1h
    timeout tunnel 24h
    timeout client-fin {HALF_CLOSED_SECONDS}s
    timeout server-fin {HALF_CLOSED_SECONDS}s
    timeout check 2s
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host {API_SERVER_NAME}
    http-check expect error-status L7OKC ! string \"[-]shutdown\"
    http-check expect error-status L7OKC ! string \"[-]etcd\"
    http-check expect status 200
    default-server {options}
",
            binds = binds.concat(),
            limits = source_limits(),
            stream_rules = self.stream_rules(),
            stream_backend = self.stream_backend()?,
            descriptors = descriptors(self.cluster.bounds.resources(self.spec.role).memory_limit_bytes),
            options = options(),
        ))
    }
}

pub(super) fn bind(address: SocketAddr) -> String {
    format!("    bind {address} mss {SEGMENT}\n")
}

/// The limits of connections from one source.
pub(super) fn source_limits() -> String {
    format!(
        "    stick-table type ipv6 size 64k expire 30s store conn_cur,conn_rate(10s)
    tcp-request connection track-sc0 src,ipmask(32,64)
    tcp-request connection reject if {{ sc0_conn_cur gt {CONNECTIONS_OF_A_SOURCE} }}
    tcp-request connection reject if {{ sc0_conn_rate gt {NEW_CONNECTIONS_OF_A_SOURCE} }}
"
    )
}

/// The checks of a server, for those that haproxy starts with and for those that are added later.
///
/// An API server that was killed can listen again before the second check has failed, and then it answers requests with 403 until it knows the roles
/// of the cluster. A connection that it refuses before therefore counts as the first failed check, and the second one follows at once.
fn options() -> String {
    format!(
        "inter 1s fastinter 500ms downinter 500ms rise 1 fall 2 on-marked-down shutdown-sessions \
observe layer4 error-limit 1 on-error sudden-death check check-ssl \
verify required ca-file {ca} verifyhost {API_SERVER_NAME} check-sni {API_SERVER_NAME}",
        ca = at("ca.crt"),
    )
}

/// The backend is a file of its own, because only its servers change.
fn list(servers: &HaproxyServers) -> String {
    let line = |(name, address): (&String, &SocketAddr)| {
        let server = name.split_once('/').map_or(name.as_str(), |(_, server)| server);
        format!("    server {server} {address}\n")
    };
    let lines: Vec<String> = servers.addresses.iter().map(line).collect();
    format!("backend {BACKEND} from {BACKEND}\n{}", lines.concat())
}
