//! Joins a machine as a worker. Each step can be repeated: an interrupted join continues where it stopped.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use futures::{
    future::{Either, select},
    try_join,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use keelway_api::{
    release,
    worker::{NodeNameFault, check_node_name},
};
use keelway_base::error_chain::ErrorChain;
use keelway_cri::CriRuntime;
use keelway_http_proxy::{HttpProxies, InvalidHttpProxy};
use keelway_pki::{AuthorityHash, JoinToken};
use keelway_vpn::netlink::NetlinkError;
use kube::{Api, Client};
use rustix::process::geteuid;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::{Instant, sleep, timeout},
};

use crate::{
    api::{self, AGAIN, ApiCredentials, ApiError, CONTROLLER, WaitCondition},
    authority::{self, CheckedEndpoints, EndpointError, TrustedEndpoint},
    certificate::{self, KubeletCertificateError},
    changes::{Changes, MachineBaseline},
    checks::{self, CheckFault, CheckOptions, KernelNeeds, NamedRanges},
    cni,
    facts::{self, OwnNetworks},
    files::{self, NodeFileError, StagedFile},
    firewall::{self, FirewallError},
    foreign_drops,
    forwarders::Forwarders,
    forwarding::ForwardingError,
    image::{self, ImageError},
    information::{InformationError, TrustedInformation},
    ingress_names::MachineResolver,
    kubelet, mounts,
    network_condition::{
        FIREWALL_DROPS_PACKETS, NETWORK_UNAVAILABLE, NO_GATEWAY_RESPONDS, POD_NETWORK_CONFLICT, PODS_CANNOT_CONNECT,
    },
    peer::{self, PeerError},
    process,
    program::ProgramInstallation,
    registration,
    registry_config::{RegistryConfig, RegistryConfigError},
    sandbox_image::SandboxImageCheck,
    service::{self, ServiceError},
    settings::{DaemonMode, Layout, NodeOptions, OptionChange},
    sysctl,
    undo::forget,
};

/// The message of a kubelet that lacks only a CNI configuration (`pkg/kubelet/kubelet.go`). If it lacks more, the message starts with a bracket.
const NO_NETWORK: &str = "container runtime network not ready";

/// The reasons for which the network stays unavailable until the machine's owner changes something.
const UNAVAILABLE: [&str; 4] = [NO_GATEWAY_RESPONDS, FIREWALL_DROPS_PACKETS, PODS_CANNOT_CONNECT, POD_NETWORK_CONFLICT];

/// How long a join that fails waits for what the cluster does not accept.
const SOON: Duration = Duration::from_secs(5);

/// How long the registry of the image of sandboxes may take to send it, and how long if the join fails in any case.
const IMAGE: Duration = Duration::from_secs(60);
const IMAGE_SOON: Duration = Duration::from_secs(2);

/// How long a new cluster may take until it admits workers.
const YOUNG: Duration = Duration::from_secs(30);

/// Options of `join`.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The options of the worker.
    pub node: NodeOptions,
    /// The location of the worker's files.
    pub layout: Layout,
    /// The running program. Its copy in `install_dir` runs as the daemon, unless it is in that directory or in one of the system.
    pub program: PathBuf,
    /// The directory in which the program is installed. Not used with [`DaemonMode::None`].
    pub install_dir: PathBuf,
    /// How long the Node may take to be ready.
    pub timeout: Duration,
    /// Credentials of registries. `None` keeps those of an earlier join.
    pub registry_config: Option<RegistryConfig>,
}

impl JoinOptions {
    /// Returns the installation of the program, if `join` starts the daemon.
    fn installation(&self) -> Option<ProgramInstallation> {
        let starts = self.node.service != DaemonMode::None;
        starts.then(|| ProgramInstallation::of(&self.program, &self.install_dir))
    }
}

/// The current step of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinStep {
    /// Checks the machine.
    Check,
    /// Verifies the endpoints.
    Trust,
    /// Waits for a cluster that is too new to admit workers.
    Young,
    /// Requests the kubelet's certificate and an address of the VPN.
    Certificate,
    /// Meanwhile, installs the programs of this image.
    Programs(String),
    /// Starts the daemon.
    Start(DaemonMode),
    /// Waits for the Node with this name.
    Wait(String),
}

/// The machine is not a worker, or its join is not complete.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The machine has faults. Nothing was changed.
    #[error("this machine cannot join:{}", list(.0))]
    Faults(Vec<CheckFault>),
    /// The environment names a proxy that cannot be used.
    #[error(transparent)]
    Proxy(#[from] InvalidHttpProxy),
    /// No endpoint can be trusted. No secret was sent.
    #[error("no endpoint of the token can be trusted; the token was not sent:{}", endpoints(.0))]
    Endpoints(Vec<(String, EndpointError)>),
    /// The machine is a worker of another cluster.
    #[error("this machine is a worker of another cluster; run `keelway node leave` or `keelway node forget` first")]
    Elsewhere,
    /// The machine is a worker under another name.
    #[error(
        "this machine has joined, or started to join, as the worker {0}; use that name, or run `keelway node leave` or `keelway node forget` first"
    )]
    Named(String),
    /// The machine is a worker with other options.
    #[error("this machine has joined, or started to join, with other options:{}", differences(.0))]
    Differs(Vec<OptionChange>),
    /// A worker cannot have this name.
    #[error("{name:?} is not a valid name of a worker: {fault}; set another one with --node-name")]
    Name {
        /// The invalid name.
        name: String,
        /// Why the name is invalid.
        fault: NodeNameFault,
    },
    /// The API server rejected the token.
    #[error(
        "the cluster rejected the token: it has expired or was revoked; create a new one with `keelway join-token create`"
    )]
    Token(#[source] InformationError),
    /// The API server accepts the token, but the cluster did not let it read the information in time.
    #[error("the cluster did not allow workers to join within {} s; {CONTROLLER}", YOUNG.as_secs())]
    Young(#[source] InformationError),
    /// The cluster's information cannot be read.
    #[error(transparent)]
    Information(#[from] InformationError),
    /// The cluster runs a release that this program does not know.
    #[error(
        "the cluster runs Kubernetes {0}, which this program does not support; use the Keelway release that manages the cluster"
    )]
    Release(String),
    /// A request to the API failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The kubelet's certificate could not be obtained.
    #[error(transparent)]
    Certificate(#[from] KubeletCertificateError),
    /// The addresses in the VPN could not be obtained.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The runtime failed.
    #[error("cannot use containerd")]
    Runtime(#[source] keelway_cri::CriError),
    /// The programs could not be installed.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The credentials for registries cannot be read or stored.
    #[error(transparent)]
    Registries(#[from] RegistryConfigError),
    /// containerd does not return a list of its images.
    #[error("cannot list the images in containerd")]
    Images(#[source] Box<tonic::Status>),
    /// The kernel does not list its routes, so that clashes with the cluster's ranges cannot be found.
    #[error("cannot list the routes of this machine")]
    Routes(#[source] NetlinkError),
    /// The firewall cannot be read.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// A kernel setting cannot be changed.
    #[error(transparent)]
    Forwarding(#[from] ForwardingError),
    /// The daemon does not start.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The kubelet may be ready, but no gateway responds.
    #[error("{found}; the worker continues to try, and takes no pods until then; see {log}")]
    NoNetwork {
        /// What the daemon found, and what to do.
        found: String,
        /// Where the logs are.
        log: String,
    },
    /// The Node did not become ready in time.
    #[error("the worker has started, but its Node is not ready yet; see `keelway node status` and {log}")]
    NotReady {
        /// The location of the daemon's log.
        log: String,
        /// The error of the wait.
        #[source]
        source: ApiError,
    },
}

fn differences(all: &[OptionChange]) -> String {
    all.iter().fold(String::new(), |text, OptionChange { option, before, now }| {
        text + &format!("\n- {option} was {before} and is now {now}")
    })
}

fn list(faults: &[CheckFault]) -> String {
    faults.iter().fold(String::new(), |text, fault| text + "\n- " + &fault.to_string())
}

fn endpoints(errors: &[(String, EndpointError)]) -> String {
    errors.iter().fold(String::new(), |text, (endpoint, error)| text + &format!("\n- {endpoint} {}", ErrorChain(error)))
}

/// Joins the cluster. Returns the Node's name once it is ready or, with [`DaemonMode::None`], once the caller can start the daemon. It changes the
/// umask of this process.
pub async fn join(
    options: &JoinOptions,
    token: &JoinToken,
    on_step: impl FnMut(&JoinStep),
) -> Result<String, JoinError> {
    process::set_umask();
    let mut options = options.clone();
    // Only root can read what an earlier join stored. `check_machine` reports a missing privilege with all other faults.
    if geteuid().is_root() {
        options.node.keep_proxy(&options.layout)?;
    }
    let mut aside = JoinSet::new();
    let outcome = join_with(&options, token, on_step, &mut aside).await;
    while aside.join_next().await.is_some() {}
    outcome
}

/// Runs all steps. Tasks that no step waits for run in `aside`.
async fn join_with(
    options: &JoinOptions,
    token: &JoinToken,
    mut on_step: impl FnMut(&JoinStep),
    aside: &mut JoinSet<()>,
) -> Result<String, JoinError> {
    let node = &options.node;
    // The cluster's own domain is not known yet.
    check_name(&node.name, "")?;
    check_earlier(options, token)?;
    let proxies = node.proxies()?;
    on_step(&JoinStep::Check);
    let mut trusting = pin!(trust(token, &proxies));
    let mut checking = pin!(check_machine(options));
    // Both run concurrently, but faults of the machine are reported first.
    let (faults, checked) = match select(&mut checking, &mut trusting).await {
        Either::Left((faults, _)) => (faults?, None),
        Either::Right((trusted, _)) => (checking.await?, Some(trusted)),
    };
    let trusting = async {
        match checked {
            Some(trusted) => trusted,
            None => trusting.await,
        }
    };
    if !faults.is_empty() {
        return Err(all_faults(options, (token, &proxies), faults, trusting).await);
    }
    on_step(&JoinStep::Trust);
    let trusted = trusting.await?;
    let bearer = bearer(token, &trusted, &proxies)?;
    let runtime = facts::client(&node.containerd_socket).map_err(JoinError::Runtime)?;
    let (known, seen) = try_join!(fetch_information(bearer.clone(), &mut on_step), take_baseline(options, &runtime))?;
    check_name(&node.name, &known.cluster.dns_domain)?;
    let mut faults = check_cluster(options, &runtime, &known).await?;
    let of_cluster = fetch_registry_config(&bearer, &known).await?;
    let sandbox_image = check_sandbox_image(options, &runtime, of_cluster.as_ref(), IMAGE).await?;
    faults.extend(sandbox_image.fault().cloned());
    if !faults.is_empty() {
        sandbox_image.undo(&runtime).await;
        return Err(JoinError::Faults(faults));
    }
    let release = release::find(&known.cluster.version);
    let release = release.ok_or_else(|| JoinError::Release(known.cluster.version.clone()))?;
    let image = node.image.clone().unwrap_or_else(|| known.cluster.node_image(&release));

    let before = options.layout.read_options()?;
    // From here on, the machine is changed.
    prepare(options, &known, seen.as_ref())?;
    store_registry_config(options, of_cluster.as_ref())?;
    on_step(&JoinStep::Programs(image.clone()));
    on_step(&JoinStep::Certificate);
    // Both run concurrently. If one fails, the other one still completes.
    let (client, programs) = tokio::join!(
        be_known(options, bearer, &trusted, &known, &proxies),
        have_programs(options, &runtime, &image, aside)
    );
    let client = match client {
        Err(JoinError::Certificate(error @ KubeletCertificateError::Denied { .. }))
            if !options.layout.identity().exists() =>
        {
            return Err(undone(options, error).await);
        }
        client => client?,
    };
    programs?;
    // The daemon repeats this. Here, a failure is reported.
    sysctl::set(&options.layout, known.has_ipv6())?;
    on_step(&JoinStep::Start(node.service));
    // A detached daemon that runs would keep its options.
    if let Some(before) = before.filter(|before| *before != *node) {
        service::stop(before.service, &options.layout).await?;
    }
    let installation = options.installation();
    let program = installation.as_ref().map_or(options.program.as_path(), ProgramInstallation::target);
    let daemon = service::start(node.service, program, &options.layout)?;
    if node.service != DaemonMode::None {
        on_step(&JoinStep::Wait(node.name.clone()));
        tokio::select! {
            ready = wait(options, client, known.cluster.cni.enabled) => ready?,
            how = daemon.ended() => {
                let log = log(node.service, options.layout.root());
                return Err(ServiceError::Ended { how, log }.into());
            }
        }
    }
    Ok(node.name.clone())
}

fn check_name(name: &str, dns_domain: &str) -> Result<(), JoinError> {
    check_node_name(name, dns_domain, []).map_err(|fault| JoinError::Name { name: name.to_owned(), fault })
}

/// Checks that an earlier join was for the same cluster and name, and had the same options, except for those that can change.
fn check_earlier(options: &JoinOptions, token: &JoinToken) -> Result<(), JoinError> {
    // Only root can read the files. `check_machine` reports a missing privilege with all other faults.
    if !geteuid().is_root() {
        return Ok(());
    }
    let Some(before) = options.layout.read_options()? else { return Ok(()) };
    if before.name != options.node.name {
        return Err(JoinError::Named(before.name));
    }
    let differences = before.differences(&options.node);
    if !differences.is_empty() {
        return Err(JoinError::Differs(differences));
    }
    let Some(authorities) = files::read(&options.layout.authorities())? else { return Ok(()) };
    let mut known = CertificateDer::pem_slice_iter(authorities.as_bytes()).flatten();
    let is_same =
        known.any(|authority| AuthorityHash::of_der(&authority).is_ok_and(|hash| token.authorities.contains(&hash)));
    if is_same { Ok(()) } else { Err(JoinError::Elsewhere) }
}

/// Adds to the faults of the machine what the cluster does not accept, so that a person can correct everything at once. A cluster that does not respond
/// soon adds nothing.
async fn all_faults(
    options: &JoinOptions,
    (token, proxies): (&JoinToken, &HttpProxies),
    mut faults: Vec<CheckFault>,
    trusting: impl Future<Output = Result<TrustedEndpoint, JoinError>>,
) -> JoinError {
    let checking = async {
        let runtime = facts::client(&options.node.containerd_socket).map_err(JoinError::Runtime)?;
        let bearer = bearer(token, &trusting.await?, proxies)?;
        let known = fetch_information(bearer.clone(), &mut |_: &JoinStep| {}).await?;
        let mut more = check_cluster(options, &runtime, &known).await?;
        more.extend(unobtainable_sandbox_image(options, &runtime, bearer, &known).await);
        Ok::<_, JoinError>(more)
    };
    if let Ok(Ok(more) | Err(JoinError::Faults(more))) = timeout(SOON, checking).await {
        faults.extend(more);
    }
    JoinError::Faults(faults)
}

/// Returns a fault if the image of sandboxes cannot be pulled. What cannot be decided soon is no fault here: the next join decides it.
async fn unobtainable_sandbox_image(
    options: &JoinOptions,
    runtime: &CriRuntime,
    bearer: Client,
    known: &TrustedInformation,
) -> Option<CheckFault> {
    let of_cluster = fetch_registry_config(&bearer, known).await.ok()?;
    let found = check_sandbox_image(options, runtime, of_cluster.as_ref(), IMAGE_SOON).await.ok()?;
    let fault = match &found {
        SandboxImageCheck::Failed(fault) => Some(fault.clone()),
        SandboxImageCheck::Present | SandboxImageCheck::Pulled(_) | SandboxImageCheck::Slow(_) => None,
    };
    found.undo(runtime).await;
    fault
}

/// Pulls the image of sandboxes with the worker's credentials, if containerd does not have it.
async fn check_sandbox_image(
    options: &JoinOptions,
    runtime: &CriRuntime,
    of_cluster: Option<&RegistryConfig>,
    limit: Duration,
) -> Result<SandboxImageCheck, JoinError> {
    let settings = image::settings(runtime).await.completed(&options.node.containerd_socket).await;
    let Some(image) = settings.sandbox_image() else { return Ok(SandboxImageCheck::Present) };
    let credentials = RegistryConfig::of_join(&options.layout, options.registry_config.as_ref(), of_cluster)?;
    let login = credentials.as_ref().and_then(|credentials| credentials.login(image));
    Ok(SandboxImageCheck::of(runtime, image, login, limit).await)
}

async fn check_machine(options: &JoinOptions) -> Result<Vec<CheckFault>, JoinError> {
    let own = kubelet::find(&options.layout)?.map(|kubelet| kubelet.id.pid);
    // The kubelet's directory of an earlier attempt belongs to this worker.
    let is_again = geteuid().is_root() && options.layout.read_options()?.is_some();
    let mut seen = facts::observe(&options.node, &options.layout, own).await;
    seen.has_kubelet_state &= !is_again;
    let mut found = checks::faults(&seen, CheckOptions { allow_cgroup_v1: options.node.allow_cgroup_v1 });
    if geteuid().is_root() && !is_again {
        let there = mounts::names(options.layout.root())?;
        found.extend(checks::state_directory(options.layout.root(), &there, &options.layout.first_names()));
    }
    if let Some(installation) = options.installation().filter(|_| geteuid().is_root()) {
        found.extend(installation.check(&options.layout)?);
    }
    Ok(found)
}

/// Returns an endpoint whose chain contains an authority of the token, before the token is sent to any endpoint. An ingress closes connections while
/// no API server is ready, so as long as none is trusted and one does that, all are checked again.
async fn trust(token: &JoinToken, proxies: &HttpProxies) -> Result<TrustedEndpoint, JoinError> {
    let end = Instant::now() + YOUNG;
    let CheckedEndpoints { trusted, refused } = loop {
        let checked = authority::check_endpoints(token, proxies, &MachineResolver).await;
        let has_closed = checked.refused.iter().any(|(_, error)| error.is_closed());
        if !(checked.trusted.is_empty() && has_closed) || Instant::now() >= end {
            break checked;
        }
        sleep(AGAIN).await;
    };
    for (endpoint, error) in &refused {
        tracing::warn!(endpoint, "{}", ErrorChain(error));
    }
    let Some(first) = trusted.into_iter().next() else { return Err(JoinError::Endpoints(refused)) };
    match checks::clock(Timestamp::now(), first.date) {
        Some(fault) => Err(JoinError::Faults(vec![fault])),
        None => Ok(first),
    }
}

/// Returns a client of the API with the token.
fn bearer(token: &JoinToken, trusted: &TrustedEndpoint, proxies: &HttpProxies) -> Result<Client, ApiError> {
    let bearer = token.bootstrap.expose();
    api::client(trusted.endpoint, vec![trusted.authority.to_vec()], &ApiCredentials::Token(&bearer), proxies)
}

/// Reads the cluster's information with the token. Status 401 means that the token has expired or was revoked. A new cluster may accept the
/// token before the token may read the information (403), or before the information exists (404). While its API server starts, the ingress closes
/// connections for which it has no server.
async fn fetch_information(
    bearer: Client,
    on_step: &mut impl FnMut(&JoinStep),
) -> Result<TrustedInformation, JoinError> {
    let end = Instant::now() + YOUNG;
    loop {
        let error = match TrustedInformation::fetch(bearer.clone()).await {
            Ok(known) => return Ok(known),
            Err(error) => error,
        };
        match error.code() {
            Some(401) => return Err(JoinError::Token(error)),
            Some(403 | 404) if Instant::now() < end => {
                on_step(&JoinStep::Young);
                sleep(AGAIN).await;
            }
            Some(403 | 404) => return Err(JoinError::Young(error)),
            None if error.is_transient() && Instant::now() < end => sleep(AGAIN).await,
            _ => return Err(JoinError::Information(error)),
        }
    }
}

async fn check_cluster(
    options: &JoinOptions,
    runtime: &CriRuntime,
    known: &TrustedInformation,
) -> Result<Vec<CheckFault>, JoinError> {
    // A worker that has addresses already has these networks, and they are its own.
    if options.layout.peer().exists() {
        return Ok(Vec::new());
    }
    let api = &known.cluster.api;
    let api: Vec<SocketAddr> = api.addresses.iter().map(|address| SocketAddr::new(*address, api.port)).collect();
    let ranges = NamedRanges::of(&known.cluster);
    let (networks, routing) =
        facts::routing(&firewall::names()?, &OwnNetworks::default()).map_err(JoinError::Routes)?;
    let mut found = checks::overlaps(&ranges, &networks);
    found.extend(checks::routing_faults(&ranges, &routing));
    found.extend(checks::api_port(&facts::listeners(), &api));
    let needs = KernelNeeds { kube_proxy: known.cluster.kube_proxy.enabled, ipv6: known.has_ipv6() };
    found.extend(checks::kernel_faults(&facts::kernel(), needs));
    found.extend(foreign_drops::check(&known.cluster)?);
    if known.cluster.cni.enabled {
        let directory = image::settings(runtime).await.directories(&options.node).configuration;
        found.extend(checks::pod_network(&facts::pod_network(&directory), &[]));
        // Most pods have none.
        if let Some(fault) = checks::host_ports(&facts::rule_programs()) {
            tracing::warn!("{}; {}", fault.problem, fault.help);
        }
    }
    Ok(found)
}

/// Observes the machine before any change. Returns `None` if an earlier attempt stored that.
async fn take_baseline(options: &JoinOptions, runtime: &CriRuntime) -> Result<Option<Changes>, JoinError> {
    // If either file is missing, nothing was changed yet.
    if options.layout.read_options()?.is_some() && options.layout.changes().exists() {
        return Ok(None);
    }
    let images = image::digests(runtime).await.map_err(|status| JoinError::Images(Box::new(status)))?;
    let before = MachineBaseline { firewall: firewall::names()?, images, forwarders: Forwarders::observe()? };
    Ok(Some(Changes::of(&options.node, before)?))
}

/// Creates the worker's directory and stores the options in it. From here on, `leave` and `forget` know what to remove.
fn prepare(options: &JoinOptions, known: &TrustedInformation, seen: Option<&Changes>) -> Result<(), NodeFileError> {
    let layout = &options.layout;
    files::make_dir(layout.root(), 0o700)?;
    let mut next = vec![StagedFile::json(layout.options(), &options.node)?];
    next.extend(seen.map(|seen| StagedFile::json(layout.changes(), seen)).transpose()?);
    next.extend(known.next(layout)?);
    files::write_all(&next)?;
    files::remove(&layout.leaving())
}

/// Reads the cluster's credentials for the images of workers, if it has some.
async fn fetch_registry_config(
    bearer: &Client,
    known: &TrustedInformation,
) -> Result<Option<RegistryConfig>, RegistryConfigError> {
    if known.cluster.registry_credentials { RegistryConfig::fetch(bearer.clone()).await } else { Ok(None) }
}

fn store_registry_config(
    options: &JoinOptions,
    of_cluster: Option<&RegistryConfig>,
) -> Result<(), RegistryConfigError> {
    if let Some(credentials) = of_cluster {
        credentials.store_of_cluster(&options.layout)?;
    }
    if let Some(credentials) = &options.registry_config {
        credentials.store(&options.layout)?;
    }
    RegistryConfig::write_for_kubelet(&options.layout, &options.node)
}

/// Obtains a certificate with the token, and addresses with the certificate. Returns a client of the API as the node.
async fn be_known(
    options: &JoinOptions,
    bearer: Client,
    trusted: &TrustedEndpoint,
    known: &TrustedInformation,
    proxies: &HttpProxies,
) -> Result<Client, JoinError> {
    let name = &options.node.name;
    let held = certificate::ensure(&options.layout, bearer, name, Timestamp::now()).await?;
    let identity = ApiCredentials::Certificate { certificate: &held.certificate, key: held.key.expose() };
    let client = api::client(trusted.endpoint, api::certificates(&known.authorities)?, &identity, proxies)?;
    let key = peer::key(&options.layout)?;
    let assignment = peer::ensure(client.clone(), name, key.public()).await?;
    files::write_json(&options.layout.peer(), &assignment)?;
    Ok(client)
}

/// Reverts the join after the cluster denied the name, so that the user can join with another name.
async fn undone(options: &JoinOptions, error: KubeletCertificateError) -> JoinError {
    if let Err(left) = forget(&options.layout).await {
        tracing::warn!("cannot revert the join; run `keelway node forget`: {}", ErrorChain(&left));
    }
    JoinError::Certificate(error)
}

async fn have_programs(
    options: &JoinOptions,
    runtime: &CriRuntime,
    image: &str,
    aside: &mut JoinSet<()>,
) -> Result<(), JoinError> {
    let settings = image::settings(runtime).await.completed(&options.node.containerd_socket).await;
    if let Some(view) = image::ensure(&options.layout, runtime, &settings, image).await? {
        aside.spawn(async move { view.remove().await });
    }
    let (layout, directories) = (options.layout.clone(), settings.directories(&options.node));
    let installation = options.installation();
    // Requests to the cluster run concurrently.
    let installed = spawn_blocking(move || {
        installation.map_or(Ok(()), |installation| installation.install(&layout))?;
        cni::install(&layout, &directories.plugins)
    });
    let installed = installed.await;
    let installed = installed.map_err(io::Error::from).map_err(NodeFileError::new("copy", options.layout.plugins()));
    Ok(installed??)
}

async fn wait(options: &JoinOptions, client: Client, has_cni: bool) -> Result<(), JoinError> {
    let nodes: Api<Node> = Api::all(client);
    let name = &options.node.name;
    let what = format!("the Node {name} is ready");
    let wait = WaitCondition { what: &what, help: "the worker continues to start", deadline: options.timeout };
    let made = registration::make(&nodes, &options.node).await;
    let ended = api::wait_for(&nodes, name, wait, made, |node| outcome(&node, has_cni)).await;
    let log = || log(options.node.service, options.layout.root());
    match ended.map_err(|source| JoinError::NotReady { log: log(), source })? {
        Ok(()) => Ok(()),
        Err(found) => Err(JoinError::NoNetwork { found, log: log() }),
    }
}

/// Returns whether the worker has joined: its kubelet is ready and a gateway responds. The error is what the daemon found. `None` until either is
/// clear.
fn outcome(node: &Node, has_cni: bool) -> Option<Result<(), String>> {
    let network = condition_of(node, NETWORK_UNAVAILABLE);
    match network.filter(|condition| condition.status == "True") {
        Some(found) if found.reason.as_deref().is_some_and(|reason| UNAVAILABLE.contains(&reason)) => {
            Some(Err(found.message.clone().unwrap_or_default()))
        }
        Some(_) => None,
        None => (is_ready(node) || !has_cni && lacks_network_only(node)).then_some(Ok(())),
    }
}

fn log(service: DaemonMode, root: &Path) -> String {
    match service {
        DaemonMode::Systemd => format!("`journalctl -u keelway-node` and {}/log", root.display()),
        DaemonMode::Detached | DaemonMode::None => format!("{}/log", root.display()),
    }
}

fn is_ready(node: &Node) -> bool {
    condition_of(node, "Ready").is_some_and(|condition| condition.status == "True")
}

/// Whether the Node lacks only a CNI configuration, which the user installs.
fn lacks_network_only(node: &Node) -> bool {
    let message = condition_of(node, "Ready").and_then(|condition| condition.message.as_deref());
    message.is_some_and(|message| message.starts_with(NO_NETWORK))
}

fn condition_of<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A fake API that responds with `answers` in order, and then with a cluster's information. It closes the connection for the answer 0.
    fn cluster(answers: &[u16]) -> Client {
        let left = Arc::new(Mutex::new(answers.iter().rev().copied().collect::<Vec<_>>()));
        let tells = json!({ "data": { "cluster.json": serde_json::to_string(&crate::samples::cluster()).unwrap(), "ca.crt": "" } });
        let service = tower::service_fn(move |_: Request<Body>| {
            let code = left.lock().unwrap().pop().unwrap_or(200);
            let body = if code == 200 { tells.clone() } else { refusal(code) };
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            let closed = io::Error::from(io::ErrorKind::UnexpectedEof);
            async move { if code == 0 { Err(closed) } else { Ok(Response::builder().status(code).body(body).unwrap()) } }
        });
        Client::new(service, "default")
    }

    fn refusal(code: u16) -> Value {
        json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "" })
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_cluster_is_queried_again() {
        let mut steps = Vec::new();
        let outcome = fetch_information(cluster(&[403, 404]), &mut |step| steps.push(step.clone())).await;
        outcome.unwrap();
        assert_eq!(steps, [JoinStep::Young, JoinStep::Young]);
        let never = fetch_information(cluster(&[403; 100]), &mut |_| {}).await.unwrap_err();
        assert!(matches!(never, JoinError::Young(_)), "{never}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_the_ingress_closes_is_opened_again() {
        fetch_information(cluster(&[0, 0]), &mut |_| {}).await.unwrap();
        let never = fetch_information(cluster(&[0; 100]), &mut |_| {}).await.unwrap_err();
        assert!(matches!(never, JoinError::Information(_)), "{never}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_token_is_reported_at_once() {
        let ended = fetch_information(cluster(&[401]), &mut |_| {}).await.unwrap_err();
        assert!(matches!(ended, JoinError::Token(_)), "{ended}");
        let broken = fetch_information(cluster(&[500]), &mut |_| {}).await.unwrap_err();
        assert!(matches!(broken, JoinError::Information(_)), "{broken}");
    }

    fn node(status: &str, message: &str) -> Node {
        let ready = json!({ "type": "Ready", "status": status, "message": message });
        serde_json::from_value(
            json!({ "status": { "conditions": [{ "type": "DiskPressure", "status": "True" }, ready] } }),
        )
        .unwrap()
    }

    #[test]
    fn a_node_that_lacks_only_its_network_is_recognized() {
        let table = [
            ("True", "kubelet is posting ready status", (true, false)),
            (
                "False",
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady",
                (false, true),
            ),
            (
                "False",
                "[container runtime is down, container runtime network not ready: NetworkReady=false]",
                (false, false),
            ),
            ("Unknown", "Kubelet stopped posting node status.", (false, false)),
        ];
        for (status, message, expected) in table {
            let node = node(status, message);
            assert_eq!((is_ready(&node), lacks_network_only(&node)), expected, "{message}");
        }
        assert!(!is_ready(&Node::default()) && !lacks_network_only(&Node::default()));
    }
}
