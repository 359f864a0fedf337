//! The daemon of a worker: tunnels, balancer, kubelet, and the watches on its cluster.

use std::{
    collections::BTreeMap,
    env, fs, io,
    net::SocketAddr,
    os::fd::IntoRawFd,
    panic::resume_unwind,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use keelway_api::worker::{INFORMATION, REGISTRIES, WireGuardPeer};
use keelway_base::error_chain::ErrorChain;
use keelway_cri::CriRuntime;
use keelway_http_proxy::{HttpProxies, InvalidHttpProxy};
use keelway_tls::component::AgentTlsError;
use kube::{Api, Client};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Resource, getrlimit, setrlimit},
};
use tokio::{
    select,
    sync::{oneshot, watch},
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout},
};

use crate::{
    api::{self, ApiCredentials, ApiError},
    balancer::{self, Balancer},
    certificate, checks, cni,
    deleted_node::{NodeKeeper, ObservedNode},
    direct_paths::{DirectPathInputs, DirectPathStatus, DirectPaths},
    facts,
    files::{self, NodeFileError},
    findings::{log_once, replace_findings},
    firewall::{FirewallConfig, FirewallError, FirewallKeeper},
    foreign_drops::{self, ForeignDrop},
    former_ranges::{self, PodRanges},
    forwarding::ForwardingError,
    image,
    information::{InformationError, NAMESPACE, TrustedInformation},
    ingress_names::{IngressNames, MachineResolver},
    kubelet::{self, KUBELET_LOG, Kubelet, KubeletStatus},
    logs,
    network_condition::{self, NetworkCheck, NetworkState},
    node_event::{self, NodeEventText},
    ordered_upgrade::OrderedWorker,
    peer::{self, PeerAssignment, PeerError},
    pod_probe::{self, PodProbeFacts},
    process::{self, ProcessId},
    range_clashes,
    reachable::{self, PodPorts},
    registry_config::RegistryConfig,
    reissue::{ReissuePauses, ReissuingWorker},
    renewal::renew,
    service::NODE_LOG,
    settings::{Layout, NodeOptions},
    status::{self, CertificateStatus, WorkerStatus},
    sysctl,
    trust_report::TrustReport,
    tunnels::{self, GatewayLink, TunnelStatus, WorkerTunnels},
    worker_problem::{self, WorkerProblem},
};

/// The interval at which tunnels, firewall and settings are reconciled. The kernel does not report every change of them.
const REPAIR_EVERY: Duration = Duration::from_secs(10);
/// How long another daemon may take to end.
const LOCK: Duration = Duration::from_secs(10);

/// The daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The machine is not a worker, or its join is not complete.
    #[error("this machine is not a worker yet ({0} does not exist); run `keelway node join --token-file token`")]
    NotJoined(String),
    /// Another daemon runs.
    #[error("another daemon is already running for {0}")]
    Running(String),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The WireGuard key is invalid.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The runtime's socket cannot be used.
    #[error("cannot use containerd's socket")]
    Runtime(#[source] keelway_cri::CriError),
    /// The HTTP proxy in the settings cannot be used.
    #[error(transparent)]
    Proxy(#[from] InvalidHttpProxy),
    /// The authorities cannot be used.
    #[error("cannot use the cluster's authorities")]
    Authorities(#[source] AgentTlsError),
    /// The daemon cannot listen on the reserved address.
    #[error("cannot listen on {address} for the API")]
    Listen {
        /// The reserved address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The daemon cannot listen on its sockets.
    #[error("cannot listen on the socket of status or metrics")]
    Socket(#[source] io::Error),
}

/// The state that the daemon has read so far. Tasks watch each part of it.
struct DaemonState {
    known: watch::Sender<TrustedInformation>,
    assignment: watch::Sender<PeerAssignment>,
    templates: watch::Sender<Option<BTreeMap<String, String>>>,
    tunnels: watch::Sender<Vec<TunnelStatus>>,
    gateways: watch::Sender<Vec<GatewayLink>>,
    direct_paths: watch::Sender<Vec<DirectPathStatus>>,
    kubelet: watch::Sender<KubeletStatus>,
    /// Kernel settings that the kernel does not have.
    absent: watch::Sender<Vec<String>>,
    /// What keeps pods from getting the cluster's network.
    conflicts: watch::Sender<Vec<String>>,
    pod_ports: watch::Sender<PodPorts>,
    foreign_drops: watch::Sender<Vec<ForeignDrop>>,
    /// The worker's Node.
    node: watch::Sender<ObservedNode>,
    range_clashes: watch::Sender<Vec<String>>,
    /// What pods cannot connect to.
    pod_probe_failures: watch::Sender<Vec<String>>,
}

impl DaemonState {
    fn pod_probe_facts(&self) -> PodProbeFacts<'_> {
        PodProbeFacts { known: &self.known, assignment: &self.assignment, tunnels: &self.tunnels }
    }
}

struct Daemon {
    layout: Layout,
    options: NodeOptions,
    facts: DaemonState,
    balancer: Arc<Balancer>,
    proxies: HttpProxies,
    /// The last client, with the certificate and the authorities from which it was built.
    client: Mutex<Option<([String; 2], Client)>>,
}

/// Runs the worker until `stop`. Kubelet and pods continue to run afterwards. It changes the umask and the working directory of this process.
pub async fn run(layout: Layout, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
    process::set_umask();
    env::set_current_dir("/").map_err(NodeFileError::new("change the working directory to", "/"))?;
    let not_joined = |path: &std::path::Path| DaemonError::NotJoined(path.display().to_string());
    let options = layout.read_options()?.ok_or_else(|| not_joined(&layout.options()))?;
    lock(&layout).await?;
    let known = TrustedInformation::load(&layout)?.ok_or_else(|| not_joined(&layout.information()))?;
    let assignment = files::read_json::<PeerAssignment>(&layout.peer())?.ok_or_else(|| not_joined(&layout.peer()))?;
    let key = peer::load_key(&layout)?.ok_or_else(|| not_joined(&layout.wireguard_key()))?;
    let proxies = options.proxies()?;
    let runtime = facts::client(&options.containerd_socket).map_err(DaemonError::Runtime)?;

    raise_files();
    let direct_paths = DirectPaths::new(key.clone(), Instant::now());
    let mut tunnels = WorkerTunnels::new(key, proxies.clone());
    tunnels.set_desired(&known, &assignment);
    let balancer = Balancer::new(&known.authorities, proxies.clone()).map_err(DaemonError::Authorities)?;
    let listeners = listen(&known)?;
    balancer.set(&ingresses(&known), &known.authorities).map_err(DaemonError::Authorities)?;
    let questions = status::listen(&layout.socket()).map_err(DaemonError::Socket)?;
    let scrapes = status::listen(&layout.metrics_socket()).map_err(DaemonError::Socket)?;
    for listener in listeners {
        tokio::spawn(Arc::clone(&balancer).serve(listener));
    }
    // The kubelet starts first, because its start takes the longest. It needs the addresses and the API only later.
    let kubelet = Kubelet { layout: layout.clone(), options: options.clone(), runtime: runtime.clone() };
    let first = kubelet.begin(&known, &assignment).await;
    tracing::info!(node = options.name, "up");

    let facts = DaemonState {
        known: watch::Sender::new(known),
        assignment: watch::Sender::new(assignment),
        templates: watch::Sender::new(None),
        tunnels: watch::Sender::default(),
        gateways: watch::Sender::default(),
        direct_paths: watch::Sender::default(),
        kubelet: watch::Sender::default(),
        absent: watch::Sender::default(),
        conflicts: watch::Sender::default(),
        pod_ports: watch::Sender::default(),
        foreign_drops: watch::Sender::default(),
        node: watch::Sender::default(),
        range_clashes: watch::Sender::default(),
        pod_probe_failures: watch::Sender::default(),
    };
    let daemon = Daemon { layout, options, facts, balancer, proxies, client: Mutex::default() };
    let (known, assignment) = (daemon.facts.known.subscribe(), daemon.facts.assignment.subscribe());
    select! {
        () = daemon.keep_tunnels(tunnels) => {}
        () = direct_paths.keep(|| daemon.direct_path_inputs(), &daemon.facts.direct_paths) => {}
        () = daemon.report_network() => {}
        () = daemon.report_problems() => {}
        () = daemon.report_trust() => {}
        () = daemon.keep_settings() => {}
        () = daemon.keep_logs() => {}
        () = daemon.keep_balancer() => {}
        () = daemon.keep_firewall() => {}
        () = reachable::follow_pod_ports(&daemon.facts.pod_ports) => {}
        () = foreign_drops::follow(&daemon.facts.known, &daemon.facts.assignment, &daemon.facts.foreign_drops) => {}
        () = pod_probe::follow(daemon.facts.pod_probe_facts(), &daemon.facts.pod_probe_failures) => {}
        () = range_clashes::follow(&daemon.facts.known, &daemon.facts.assignment, &daemon.facts.range_clashes) => {}
        () = daemon.keep_given() => {}
        () = daemon.keep_cni(&runtime) => {}
        () = daemon.check_pod_network(&runtime) => {}
        () = daemon.read_cluster() => {}
        () = daemon.keep_identity() => {}
        () = daemon.follow_orders() => {}
        () = kubelet.supervise(first, known, assignment, daemon.facts.kubelet.clone()) => {}
        () = status::serve(questions, || daemon.status()) => {}
        () = status::serve_metrics(scrapes, || daemon.status()) => {}
        () = stop => {}
    }
    files::remove(&daemon.layout.socket())?;
    files::remove(&daemon.layout.metrics_socket())?;
    Ok(())
}

/// Ensures that one daemon runs at a time. The process holds the lock until it ends, because it listens on its addresses until then. A
/// daemon that was killed holds the lock for a moment longer.
async fn lock(layout: &Layout) -> Result<(), DaemonError> {
    let path = layout.daemon_process();
    let file = fs::File::options().create(true).append(true).open(path.with_extension("lock"));
    let file = file.map_err(NodeFileError::new("open", &path))?;
    let (sender, locked) = oneshot::channel();
    // A thread of its own, because a daemon that gives up must not wait for it.
    std::thread::spawn(move || sender.send(flock(&file, FlockOperation::LockExclusive).map(|()| file)));
    let Ok(Ok(Ok(held))) = timeout(LOCK, locked).await else {
        return Err(DaemonError::Running(layout.root().display().to_string()));
    };
    let _until_the_end = held.into_raw_fd();
    if let Some(own) = ProcessId::of(std::process::id()) {
        files::write_json_volatile(&path, &own)?;
    }
    Ok(())
}

fn listen(known: &TrustedInformation) -> Result<Vec<tokio::net::TcpListener>, DaemonError> {
    let api = &known.cluster.api;
    let addresses = api.addresses.iter().map(|address| SocketAddr::new(*address, api.port));
    addresses
        .map(|address| balancer::listen(address).map_err(|source| DaemonError::Listen { address, source }))
        .collect()
}

fn every(period: Duration) -> Interval {
    let mut turns = interval(period);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    turns
}

/// Raises the limit of open files. The balancer needs two of them for each connection.
fn raise_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

fn ingresses(known: &TrustedInformation) -> Vec<SocketAddr> {
    known.cluster.endpoints.iter().map(|endpoint| endpoint.address).collect()
}

/// Reports to systemd that the worker is up. Without systemd this does nothing.
fn notify_systemd() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::debug!(%error, "cannot notify systemd that the worker is up");
    }
}

impl Daemon {
    /// Creates tunnels, checks gateways, and follows changes of both in the cluster.
    async fn keep_tunnels(&self, mut tunnels: WorkerTunnels) {
        let (mut known, mut assignment) = (self.facts.known.subscribe(), self.facts.assignment.subscribe());
        // The kernel takes a while to create an interface, and the kubelet may already need the API.
        let made = tokio::task::spawn_blocking(move || {
            WorkerTunnels::clear_left();
            tunnels.converge();
            tunnels
        });
        tunnels = made.await.unwrap_or_else(|error| resume_unwind(error.into_panic()));
        self.publish_tunnels(&mut tunnels);
        notify_systemd();
        let (mut turns, mut repairs) = (every(tunnels::ASK_EVERY), every(REPAIR_EVERY));
        repairs.reset();
        loop {
            select! {
                asked = turns.tick() => {
                    if tunnels.ask().await {
                        turns.reset_at(asked + tunnels::ANSWER);
                    }
                }
                _ = repairs.tick() => tunnels.converge(),
                Ok(()) = known.changed() => self.set_tunnels(&mut tunnels),
                Ok(()) = assignment.changed() => self.set_tunnels(&mut tunnels),
            }
            self.publish_tunnels(&mut tunnels);
        }
    }

    fn publish_tunnels(&self, tunnels: &mut WorkerTunnels) {
        self.facts.tunnels.send_replace(tunnels.status());
        self.facts.gateways.send_replace(tunnels.links());
    }

    fn direct_path_inputs(&self) -> DirectPathInputs {
        DirectPathInputs {
            cluster: self.facts.known.borrow().cluster.clone(),
            assignment: self.facts.assignment.borrow().clone(),
            gateways: self.facts.gateways.borrow().clone(),
        }
    }

    /// Reports on the Node whether a gateway responds, each time that changes. A report that fails is repeated.
    async fn report_network(&self) {
        let (mut tunnels, mut drops) = (self.facts.tunnels.subscribe(), self.facts.foreign_drops.subscribe());
        let (mut node, mut probes) = (self.facts.node.subscribe(), self.facts.pod_probe_failures.subscribe());
        let mut conflicts = self.facts.conflicts.subscribe();
        let mut repeats = every(REPAIR_EVERY);
        let (mut check, mut reported, mut last) = (NetworkCheck::new(Instant::now()), None, None);
        let mut registrations = 0;
        loop {
            select! {
                _ = repeats.tick() => {}
                Ok(()) = tunnels.changed() => {}
                Ok(()) = conflicts.changed() => {}
                Ok(()) = drops.changed() => {}
                Ok(()) = probes.changed() => {}
                Ok(()) = node.changed() => {}
            }
            // A Node that was created again does not have the condition.
            let registered = node.borrow_and_update().registrations;
            if std::mem::replace(&mut registrations, registered) != registered {
                reported = None;
            }
            let has_gateways = self.facts.known.borrow().cluster.endpoints.iter().any(|found| found.gateway.is_some());
            let state = check.state(has_gateways, &tunnels.borrow_and_update(), Instant::now());
            let cut_off = foreign_drops::cut_off(&drops.borrow_and_update());
            let failures = probes.borrow_and_update().clone();
            let conflicts = conflicts.borrow_and_update().clone();
            let state =
                state.map(|state| state.with_conflicts(conflicts).with_drops(cut_off).with_probe_failures(failures));
            let Some(state) = state.filter(|state| reported.as_ref() != Some(state)) else { continue };
            let outcome = match self.client() {
                Ok(client) => network_condition::report(client, &self.options.name, &state).await,
                Err(error) => Err(error),
            };
            if outcome.is_ok() {
                match &state {
                    NetworkState::Available => tracing::info!("{}", state.message()),
                    NetworkState::Unavailable(_)
                    | NetworkState::OtherPodNetwork(_)
                    | NetworkState::CutOff(_)
                    | NetworkState::PodsCutOff(_) => tracing::error!("{}", state.message()),
                }
                reported = Some(state);
            }
            log_once(&mut last, "cannot report the network of the Node", outcome);
        }
    }

    /// Records an Event on the Node for each problem of the machine that no condition reports.
    async fn report_problems(&self) {
        let (mut repeats, mut last, mut recorded) = (every(REPAIR_EVERY), None, Vec::new());
        loop {
            repeats.tick().await;
            let found = worker_problem::of_machine(&self.facts.absent.borrow(), &self.facts.range_clashes.borrow());
            recorded.retain(|problem| found.contains(problem));
            let new: Vec<WorkerProblem> = found.into_iter().filter(|problem| !recorded.contains(problem)).collect();
            for problem in new {
                let event = NodeEventText { is_warning: true, reason: problem.reason, message: &problem.message };
                let outcome = match self.client() {
                    Ok(client) => node_event::record(client, &self.options.name, event).await,
                    Err(error) => Err(error),
                };
                if outcome.is_ok() {
                    recorded.push(problem);
                }
                log_once(&mut last, "cannot record an Event on the Node", outcome);
            }
        }
    }

    /// Reports on the Node which authorities the worker trusts, each time that the Node differs. A report that fails is repeated.
    async fn report_trust(&self) {
        let (mut repeats, mut last) = (every(REPAIR_EVERY), None);
        loop {
            repeats.tick().await;
            let Some(before) = self.facts.node.borrow().trust.clone() else { continue };
            let kubelet = self.facts.kubelet.borrow().pid.and_then(ProcessId::of);
            let authorities = self.facts.known.borrow().authorities.clone();
            let outcome = match TrustReport::read(&self.layout, kubelet, &authorities) {
                Ok(report) if !report.differs(&before) => Ok(()),
                Ok(report) => match self.client() {
                    Ok(client) => report.write(client, &self.options.name, &before).await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(ApiError::File(error)),
            };
            log_once(&mut last, "cannot report the trust of the worker", outcome);
        }
    }

    fn set_tunnels(&self, tunnels: &mut WorkerTunnels) {
        let (known, assignment) = (self.facts.known.borrow().clone(), self.facts.assignment.borrow().clone());
        tunnels.set(&known, &assignment);
    }

    /// Keeps the kernel's settings as a worker needs them, also after another program changed them.
    async fn keep_settings(&self) {
        let mut repairs = every(REPAIR_EVERY);
        let (mut last, mut has_lost_route) = (None, false);
        loop {
            repairs.tick().await;
            let has_ipv6 = self.facts.known.borrow().has_ipv6();
            let set = sysctl::set(&self.layout, has_ipv6 && !has_lost_route);
            // A further attempt could remove the route again.
            has_lost_route |= matches!(set, Err(ForwardingError::RouteLost(_)));
            log_once(&mut last, "cannot apply kernel settings", set);
            let absent = sysctl::missing_settings(has_ipv6);
            self.facts.absent.send_if_modified(|before| {
                let is_new = *before != absent;
                if is_new && !absent.is_empty() {
                    let help = checks::BRIDGE_HELP;
                    tracing::error!(?absent, "the kernel lacks settings that Services need; {help}");
                }
                before.clone_from(&absent);
                is_new
            });
        }
    }

    /// Rotates log files that have grown too large.
    async fn keep_logs(&self) {
        let mut turns = every(REPAIR_EVERY);
        loop {
            turns.tick().await;
            for log in [KUBELET_LOG, NODE_LOG] {
                let path = self.layout.logs().join(log);
                // This may take a while. It must not delay packets and status queries.
                let trimmed = tokio::task::spawn_blocking(move || logs::truncate(&path)).await;
                if let Ok(Err(error)) = trimmed {
                    tracing::warn!("cannot rotate a log: {}", ErrorChain(&error));
                }
            }
        }
    }

    async fn keep_balancer(&self) {
        let mut known = self.facts.known.subscribe();
        let mut names = IngressNames::new(MachineResolver);
        loop {
            let cluster = known.borrow().cluster.clone();
            select! {
                changed = known.changed() => match changed {
                    Ok(()) => names.forget(),
                    Err(_) => return,
                },
                () = names.changed(&cluster, || self.balancer.status()) => {}
            }
            let now = known.borrow_and_update().clone();
            if let Err(error) = self.balancer.set(&names.ingresses(&now.cluster), &now.authorities) {
                tracing::error!("cannot update the balancer; it keeps its ingresses: {}", ErrorChain(&error));
            }
        }
    }

    async fn keep_firewall(&self) {
        let (mut known, mut assignment) = (self.facts.known.subscribe(), self.facts.assignment.subscribe());
        let mut ports = self.facts.pod_ports.subscribe();
        let mut repairs = every(REPAIR_EVERY);
        repairs.reset();
        let (mut last, mut keeper) = (None, FirewallKeeper::default());
        loop {
            let wanted = self.firewall();
            // The kernel first waits for readers of the old rules.
            let kept = tokio::task::spawn_blocking(move || (keeper.keep(wanted), keeper)).await;
            let set;
            (set, keeper) =
                kept.unwrap_or_else(|error| (Err(FirewallError::Socket(error.into())), FirewallKeeper::default()));
            log_once(&mut last, "cannot apply the firewall", set);
            select! {
                _ = repairs.tick() => {}
                Ok(()) = ports.changed() => {}
                Ok(()) = known.changed() => {}
                Ok(()) = assignment.changed() => {}
                else => return,
            }
        }
    }

    fn firewall(&self) -> FirewallConfig {
        let (cluster, assignment) = (self.facts.known.borrow().cluster.clone(), self.facts.assignment.borrow().clone());
        let pod_ports = self.facts.pod_ports.borrow();
        reachable::desired_firewall(cluster, assignment, &self.options.open_ports, &pod_ports, facts::uplinks)
    }

    /// Stores the worker's addresses and ranges for the next start, in the background.
    async fn keep_given(&self) {
        let mut assignment = self.facts.assignment.subscribe();
        while assignment.changed().await.is_ok() {
            let (path, now) = (self.layout.peer(), assignment.borrow_and_update().clone());
            let kept = tokio::task::spawn_blocking(move || files::write_json(&path, &now)).await;
            if let Ok(Err(error)) = kept {
                tracing::error!("cannot store the worker's addresses: {}", ErrorChain(&error));
            }
        }
    }

    async fn keep_cni(&self, runtime: &CriRuntime) {
        let directory = image::settings(runtime).await.directories(&self.options).configuration;
        let (mut templates, mut assignment) = (self.facts.templates.subscribe(), self.facts.assignment.subscribe());
        let mut known = self.facts.known.subscribe();
        loop {
            let is_wanted = known.borrow_and_update().cluster.cni.enabled;
            let now = templates.borrow_and_update().clone();
            let now = if is_wanted { now } else { Some(BTreeMap::new()) };
            let ranges = assignment.borrow_and_update().pod_cidrs.clone();
            if let Some(now) = now
                && let Err(error) = cni::apply(&self.layout, &directory, &now, &ranges)
            {
                tracing::error!("cannot update the CNI configuration: {}", ErrorChain(&error));
            }
            select! {
                Ok(()) = known.changed() => {}
                Ok(()) = templates.changed() => {}
                Ok(()) = assignment.changed() => {}
                else => return,
            }
        }
    }

    /// Checks repeatedly whether pods get the cluster's network, because another program may be installed at any time. It logs each conflict once.
    async fn check_pod_network(&self, runtime: &CriRuntime) {
        let directory = image::settings(runtime).await.directories(&self.options).configuration;
        let (mut turns, mut last) = (every(REPAIR_EVERY), None);
        loop {
            turns.tick().await;
            let is_wanted = self.facts.known.borrow().cluster.cni.enabled;
            let seen = is_wanted.then(|| facts::pod_network(&directory));
            if let Some(seen) = &seen {
                let left = former_ranges::leave(runtime, &self.pod_ranges(), &seen.bridge).await;
                log_once(&mut last, "pods keep addresses of a former range", left);
            }
            let found = seen.map(|seen| checks::pod_network(&seen, &self.facts.assignment.borrow().pod_cidrs));
            let found: Vec<String> =
                found.into_iter().flatten().map(|fault| format!("{}; {}", fault.problem, fault.help)).collect();
            replace_findings(&self.facts.conflicts, found, |conflict| {
                tracing::error!("pods do not get the cluster's network: {conflict}");
            });
        }
    }

    fn pod_ranges(&self) -> PodRanges {
        let of_cluster = self.facts.known.borrow().cluster.pod_cidrs.clone();
        PodRanges { of_cluster, own: self.facts.assignment.borrow().pod_cidrs.clone() }
    }

    /// Watches the objects that the cluster has for this worker.
    async fn read_cluster(&self) {
        let name = self.options.name.as_str();
        let information = self.read("the cluster information", async |client: Client| {
            let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
            api::follow(&maps, INFORMATION, |map| self.take_information(map)).await
        });
        let registries = async {
            // Clusters without own credentials, and of earlier releases, have no such Secret.
            let has_credentials = |known: &TrustedInformation| known.cluster.registry_credentials;
            if self.facts.known.subscribe().wait_for(has_credentials).await.is_err() {
                return;
            }
            let (namespace, name) = REGISTRIES;
            let follow = async |client: Client| {
                let secrets: Api<Secret> = Api::namespaced(client, namespace);
                api::follow(&secrets, name, |secret| self.take_registries(secret)).await
            };
            self.read("the registry credentials", follow).await;
        };
        let templates = self.read("the CNI configuration", async |client: Client| {
            let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
            api::follow(&maps, cni::CONFIG_MAP, |map| self.take_templates(map)).await
        });
        let peer = self.read("the WireGuardPeer", async |client: Client| {
            let peers: Api<WireGuardPeer> = Api::all(client);
            api::follow(&peers, name, |peer| self.take_peer(peer)).await
        });
        let keeper = NodeKeeper { layout: &self.layout, options: &self.options, state: &self.facts.node };
        let node = self.read("the Node", async |client: Client| keeper.follow(client).await);
        tokio::join!(information, registries, templates, peer, node);
    }

    /// Renews the certificate if it expired while this worker was away. A kubelet renews only one that is valid, and then has to be restarted. Then
    /// follows the authorities of the cluster. Workers do so at different times, so that not all kubelets restart in the same moment.
    async fn keep_identity(&self) {
        let mut turns = every(REPAIR_EVERY);
        let (mut last, mut last_reissue, mut pauses) = (None, None, ReissuePauses::default());
        let worker = ReissuingWorker {
            layout: &self.layout,
            name: &self.options.name,
            known: &self.facts.known,
            kubelet: &self.facts.kubelet,
        };
        loop {
            turns.tick().await;
            let known = self.facts.known.borrow().clone();
            let renewed = renew(&self.layout, &self.options.name, &known, &self.proxies, Timestamp::now()).await;
            if matches!(renewed, Ok(true)) {
                tracing::info!("renewed the certificate, which had expired; restarting the kubelet");
                let stopped = kubelet::stop(&self.layout).await;
                log_once(&mut None, "cannot restart the kubelet", stopped);
            }
            log_once(&mut last, "cannot renew the certificate, which has expired", renewed.map(drop));
            let followed = worker.step(&mut pauses, || self.client()).await;
            log_once(&mut last_reissue, "the kubelet does not follow the cluster's authorities yet", followed);
        }
    }

    /// Upgrades the kubelet when the control plane orders it.
    async fn follow_orders(&self) {
        let DaemonState { node, known, .. } = &self.facts;
        let worker = OrderedWorker { layout: &self.layout, name: &self.options.name, node, known };
        worker.follow(|| self.client()).await;
    }

    /// Watches one object, with the current certificate. It logs an interruption once, and the expiry of the certificate once, too.
    async fn read(&self, what: &str, follow: impl AsyncFn(Client) -> Result<Option<()>, ApiError>) {
        let mut logged = None;
        loop {
            let began = Instant::now();
            let ended = match self.client() {
                Ok(client) => follow(client).await.map(drop),
                Err(error) => Err(error),
            };
            match ended {
                Ok(()) => logged = None,
                Err(error) => {
                    let has_ended = matches!(error, ApiError::NoIdentity);
                    if logged.replace(has_ended) != Some(has_ended) {
                        tracing::warn!(what, "cannot read from the cluster: {}", ErrorChain(&error));
                    }
                }
            }
            // This also delays the retry of a watch that ended without an error at once.
            sleep_until(began + api::AGAIN).await;
        }
    }

    /// Returns a client of the API through the balancer, as this node. It builds a new one only if the certificate or the authorities changed.
    fn client(&self) -> Result<Client, ApiError> {
        let known = self.facts.known.borrow().clone();
        let api = &known.cluster.api;
        let address = api.addresses.first().map(|address| SocketAddr::new(*address, api.port));
        let held = certificate::load_valid(&self.layout, Timestamp::now()).map_err(ApiError::File)?;
        let (Some(address), Some(held)) = (address, held) else { return Err(ApiError::NoIdentity) };
        let mut last = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let made_of = [held.certificate.clone(), known.authorities.clone()];
        if let Some((same, client)) = last.as_ref()
            && *same == made_of
        {
            return Ok(client.clone());
        }
        let identity = ApiCredentials::Certificate { certificate: &held.certificate, key: held.key.expose() };
        // The balancer is on this machine.
        let direct = HttpProxies::default();
        let client = api::client(address, api::certificates(&known.authorities)?, &identity, &direct)?;
        *last = Some((made_of, client.clone()));
        Ok(client)
    }

    fn take_information(&self, map: Option<ConfigMap>) -> Option<()> {
        let known = match TrustedInformation::of(&map?) {
            Ok(known) => known,
            Err(error) => {
                let error: &InformationError = &error;
                tracing::error!("the cluster information is invalid; keeping the previous one: {}", ErrorChain(error));
                return None;
            }
        };
        if *self.facts.known.borrow() == known {
            return None;
        }
        if let Err(error) = known.store(&self.layout) {
            tracing::error!("cannot store the cluster information: {}", ErrorChain(&error));
        }
        tracing::info!(endpoints = known.cluster.endpoints.len(), "the cluster information changed");
        self.facts.known.send_replace(known);
        None
    }

    /// Stores the cluster's credentials for registries. An absent Secret changes nothing: the registry decides which credentials are valid.
    fn take_registries(&self, secret: Option<Secret>) -> Option<()> {
        match RegistryConfig::replace_of_cluster(&secret?, &self.layout, &self.options) {
            Ok(true) => tracing::info!("the cluster's registry credentials changed"),
            Ok(false) => {}
            Err(error) => tracing::error!("cannot store the registry credentials: {}", ErrorChain(&error)),
        }
        None
    }

    /// Stores the CNI templates. An absent ConfigMap changes nothing: it is not created yet, or will be again. `cni.enabled` disables CNI.
    fn take_templates(&self, map: Option<ConfigMap>) -> Option<()> {
        let templates = map?.data.unwrap_or_default();
        self.facts.templates.send_if_modified(|now| {
            let differs = now.as_ref() != Some(&templates);
            *now = Some(templates);
            differs
        });
        None
    }

    fn take_peer(&self, peer: Option<WireGuardPeer>) -> Option<()> {
        let Some(peer) = peer else {
            tracing::error!("the cluster no longer has a WireGuardPeer for this worker: the worker was evicted");
            return None;
        };
        let assignment = PeerAssignment::of(&peer);
        if assignment.addresses.is_empty() || *self.facts.assignment.borrow() == assignment {
            return None;
        }
        self.facts.assignment.send_replace(assignment);
        None
    }

    fn status(&self) -> WorkerStatus {
        let assignment = self.facts.assignment.borrow().clone();
        let dates = [("client", certificate::CLIENT), ("serving", certificate::SERVING)];
        let certificates = dates.into_iter().filter_map(|(name, file)| {
            let validity = certificate::validity(&self.layout, file)?;
            let (not_before, not_after) = (validity.not_before(), validity.not_after());
            Some(CertificateStatus { name: name.to_owned(), not_before, not_after })
        });
        WorkerStatus {
            node: self.options.name.clone(),
            version: self.facts.known.borrow().cluster.version.clone(),
            pid: std::process::id(),
            resident_kib: status::resident_kib(),
            addresses: assignment.addresses.iter().map(ToString::to_string).collect(),
            pod_cidrs: assignment.pod_cidrs.iter().map(ToString::to_string).collect(),
            tunnels: self.facts.tunnels.borrow().clone(),
            direct_paths: self.facts.direct_paths.borrow().clone(),
            ingresses: self.balancer.status(),
            kubelet: KubeletStatus {
                version: self.facts.node.borrow().kubelet_version.clone(),
                ..self.facts.kubelet.borrow().clone()
            },
            certificates: certificates.collect(),
            absent_settings: self.facts.absent.borrow().clone(),
            pod_network_conflicts: self.facts.conflicts.borrow().clone(),
            range_clashes: self.facts.range_clashes.borrow().clone(),
            firewall_drops: foreign_drops::cut_off(&self.facts.foreign_drops.borrow()),
            pod_probe_failures: self.facts.pod_probe_failures.borrow().clone(),
            node_problem: self.facts.node.borrow().problem.clone(),
        }
    }
}
