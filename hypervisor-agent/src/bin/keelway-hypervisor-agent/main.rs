//! `keelway-hypervisor-agent`: keeps a machine's control plane components running.

mod in_container;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{ArgAction, Args, Parser, Subcommand};
use jiff::SignedDuration;
use keelway_base::{root_socket::RootSocket, signals::TerminationSignals};
use keelway_hypervisor_agent::{
    agent::{
        AgentLimits, AgentListeners, AgentNetwork, ConnectionLimits, ImageLimits, LogLimits, own_machine,
        run_with_limits,
    },
    enrollment::IdentityFolder,
};
use keelway_machine::layout::AGENT_DIRECTORY;
use keelway_pki::EnrollmentToken;
use keelway_tls::TlsFiles;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use in_container::{CertificateCommand, DirectoriesCommand};

const EXAMPLE: &str = "\
Example:
  keelway-hypervisor-agent run --runtime-endpoint unix:///run/containerd/containerd.sock \\
    --listen unix:///run/keelway/agent.sock";

/// The default socket of the agent.
const SOCKET: &str = "/run/keelway/agent.sock";

/// Keep the control plane components of one machine running.
#[derive(Parser)]
#[command(name = "keelway-hypervisor-agent", version, after_help = EXAMPLE)]
struct AgentArguments {
    /// Write more detailed logs to stderr
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: AgentCommand,
}

#[derive(Subcommand)]
enum AgentCommand {
    /// Run the agent until SIGTERM. Components keep running when the agent exits
    #[command(after_help = EXAMPLE)]
    Run(Box<RunArguments>),
    /// Certificates of an agent that Keelway started in a container
    #[command(subcommand, hide = true)]
    Certificate(CertificateCommand),
    /// Directories of an agent that Keelway starts in a container
    #[command(subcommand, hide = true)]
    Directories(DirectoriesCommand),
}

#[derive(Args)]
struct RunArguments {
    /// The socket of the container runtime
    #[arg(long, default_value = "unix:///run/containerd/containerd.sock", value_name = "ENDPOINT", value_parser = socket)]
    runtime_endpoint: PathBuf,
    /// Listen for keelway or the manager on ENDPOINT: a socket to create (default unix:///run/keelway/agent.sock), or ADDRESS:PORT on
    /// the network. Can be set once for each of the two forms
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    listen: Vec<ListenEndpoint>,
    /// Connect to another machine's agent, which forwards connections to this agent, for example if this machine is behind a NAT. Can be repeated
    #[arg(long, value_name = "ADDRESS:PORT")]
    connect: Vec<SocketAddr>,
    #[command(flatten)]
    identity: Option<AgentTlsArguments>,
    #[command(flatten)]
    enrollment: Enrollment,
    /// Load images from the archives in DIRECTORY if they are there; otherwise pull them from a registry
    #[arg(long, value_name = "DIRECTORY")]
    image_archives: Option<PathBuf>,
    #[command(flatten)]
    logs: LogLimitArguments,
    /// Remove an image that this agent fetched once it has been unused for DURATION, such as 24h: no config names it, and no container
    /// uses it. 0s keeps all images
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration)]
    image_maximum_gc_age: Duration,
}

/// Limits on the logs of containers. The names are those of the kubelet's settings.
#[derive(Args)]
struct LogLimitArguments {
    /// The maximum size of a container's log before it is rotated: bytes, or a number with Ki, Mi or Gi
    #[arg(long, value_name = "SIZE", default_value = "10Mi", value_parser = size)]
    container_log_max_size: u64,
    /// The maximum number of log files of a container, including the current one
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    container_log_max_files: u32,
}

impl From<LogLimitArguments> for LogLimits {
    fn from(logs: LogLimitArguments) -> Self {
        Self { max_size: logs.container_log_max_size, max_files: logs.container_log_max_files, ..Self::default() }
    }
}

/// A duration, as Kubernetes writes it.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<SignedDuration>().ok().and_then(|parsed| Duration::try_from(parsed).ok());
    parsed.ok_or_else(|| "must be a duration, such as 24h".to_owned())
}

/// A quantity of bytes, as Kubernetes writes it.
fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 3] = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, 1 << shift)));
    let (number, unit) = unit.unwrap_or((text, 1_u64));
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "must be a number of bytes, such as 10Mi".to_owned())
}

/// The agent's enrollment, if no other program provides its certificate and key as files.
#[derive(Args)]
struct Enrollment {
    /// Enroll with the token from `keelway hypervisor enroll`, which is valid once. Other users of the machine can see the token while this
    /// program runs
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["enroll_file", "certificate"])]
    enroll: Option<String>,
    /// Read the token from FILE, which hides it from other users; `-` reads stdin
    #[arg(long, value_name = "FILE", conflicts_with = "certificate")]
    enroll_file: Option<PathBuf>,
    /// Wait for the first certificate, which Keelway installs through the container runtime. It starts agents with this flag itself
    #[arg(long, conflicts_with_all = ["enroll", "enroll_file", "certificate"])]
    await_certificate: bool,
    /// Store the agent's certificate and key in DIRECTORY
    #[arg(long, value_name = "DIRECTORY", default_value = AGENT_DIRECTORY)]
    identity_directory: PathBuf,
}

impl Enrollment {
    /// The token, if there is one.
    fn token(&self) -> anyhow::Result<Option<EnrollmentToken>> {
        let text = match (&self.enroll, &self.enroll_file) {
            (Some(text), _) => text.clone(),
            (None, Some(file)) => read(file).with_context(|| format!("cannot read {}", file.display()))?,
            (None, None) => return Ok(None),
        };
        // Parsed here, because an error of the argument parser would contain the text of the token.
        Ok(Some(text.parse()?))
    }
}

/// A file, or stdin.
fn read(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(file) }
}

/// The agent's certificate, and the authority that it trusts. The agent reads the files again when they change.
#[derive(Args)]
struct AgentTlsArguments {
    /// The agent's certificate in PEM. Its organization is the ID of the installation
    #[arg(long = "tls-certificate", value_name = "FILE", required = false, requires_all = ["key", "authority"])]
    certificate: PathBuf,
    /// The agent's private key in PEM
    #[arg(long = "tls-key", value_name = "FILE", required = false, requires = "certificate")]
    key: PathBuf,
    /// The installation's authority in PEM. Clients present a certificate that it signed for `keelway:driver`
    #[arg(long = "tls-authority", value_name = "FILE", required = false, requires = "certificate")]
    authority: PathBuf,
    /// The authority's revocation list in PEM
    #[arg(long = "tls-revoked", value_name = "FILE", requires = "certificate")]
    revoked: Option<PathBuf>,
}

impl From<AgentTlsArguments> for TlsFiles {
    fn from(identity: AgentTlsArguments) -> Self {
        Self {
            certificate_file: identity.certificate,
            key_file: identity.key,
            authority_file: identity.authority,
            revocation_file: identity.revoked,
        }
    }
}

/// The endpoints on which the agent listens.
#[derive(Clone)]
enum ListenEndpoint {
    Socket(PathBuf),
    Port(SocketAddr),
}

/// A socket, or `ADDRESS:PORT`.
fn endpoint(text: &str) -> Result<ListenEndpoint, String> {
    match text.parse() {
        Ok(address) => Ok(ListenEndpoint::Port(address)),
        Err(_) => socket(text).map(ListenEndpoint::Socket).map_err(|what| format!("{what}, or ADDRESS:PORT")),
    }
}

/// `unix:///PATH`, or the path alone.
fn socket(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() { Ok(path) } else { Err("must be unix:// and the absolute path of a socket".to_owned()) }
}

fn main() -> ExitCode {
    let AgentArguments { verbose, command } = AgentArguments::parse();
    // The prefix of all crates of Keelway.
    let level = if verbose == 0 { "warn,keelway=info" } else { "info,keelway=debug" };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(level))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match serve(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn serve(command: AgentCommand) -> anyhow::Result<()> {
    match command {
        AgentCommand::Run(arguments) => run(*arguments).await,
        AgentCommand::Certificate(command) => in_container::certificate(command).await,
        AgentCommand::Directories(command) => in_container::directories(command).await,
    }
}

async fn run(
    RunArguments {
        runtime_endpoint,
        listen,
        connect,
        identity,
        enrollment,
        image_archives,
        logs,
        image_maximum_gc_age,
    }: RunArguments,
) -> anyhow::Result<()> {
    let limits = AgentLimits { logs: logs.into(), images: ImageLimits::of_age(image_maximum_gc_age) };
    let stop = CancellationToken::new();
    let signals = TerminationSignals::new().context("cannot handle signals")?;
    let machine = own_machine(&runtime_endpoint, image_archives)?;
    let entrances = open(listen, connect, identity, &enrollment)?;
    sd_notify::notify(&[sd_notify::NotifyState::Ready]).context("cannot notify systemd that the agent is ready")?;
    signals.cancel(stop.clone());
    Ok(run_with_limits(machine, entrances, limits, stop).await?)
}

/// One socket, at most one port, and any number of agents that forward connections.
fn open(
    listen: Vec<ListenEndpoint>,
    connect: Vec<SocketAddr>,
    identity: Option<AgentTlsArguments>,
    enrollment: &Enrollment,
) -> anyhow::Result<AgentListeners> {
    let (mut socket, mut port) = (None, None);
    for endpoint in listen {
        let again = match endpoint {
            ListenEndpoint::Socket(path) => socket.replace(path).is_some(),
            ListenEndpoint::Port(address) => port.replace(address).is_some(),
        };
        if again {
            bail!("an agent has one socket and one port: set --listen once for each");
        }
    }
    let token = enrollment.token()?;
    if port.is_none() && token.is_some() {
        bail!("an enrollment token requires a port: set --listen ADDRESS:PORT as well");
    }
    let is_on_network = port.is_some() || !connect.is_empty();
    if !is_on_network && identity.is_some() {
        bail!("certificates require a network: set --listen ADDRESS:PORT or --connect as well");
    }
    let own = IdentityFolder::new(enrollment.identity_directory.clone());
    let network = is_on_network.then(|| match identity.map(TlsFiles::from) {
        Some(files) => AgentNetwork::of_files(files, ConnectionLimits::default()),
        None if enrollment.await_certificate => AgentNetwork::awaiting_certificate(own, ConnectionLimits::default()),
        None => AgentNetwork::enrolled(own, token, ConnectionLimits::default()),
    });
    let network = network.transpose()?.map(|network| network.waiting_at(connect));
    let network = match (network, port) {
        (Some(network), Some(address)) => Some(network.listening_on(address)?),
        (network, _) => network,
    };
    let socket = RootSocket::bind(socket.as_deref().unwrap_or(Path::new(SOCKET)))?;
    Ok(AgentListeners { socket, network })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parsed = (Vec<ListenEndpoint>, Vec<SocketAddr>, Option<AgentTlsArguments>, Enrollment);

    fn arguments_of<'a>(all: impl Iterator<Item = &'a str>) -> Result<RunArguments, clap::Error> {
        match AgentArguments::try_parse_from(all)?.command {
            AgentCommand::Run(arguments) => Ok(*arguments),
            AgentCommand::Certificate(_) | AgentCommand::Directories(_) => panic!("not `run`"),
        }
    }

    fn parse(arguments: &str) -> Result<Parsed, clap::Error> {
        let all = ["keelway-hypervisor-agent", "run"].into_iter().chain(arguments.split_whitespace());
        let RunArguments { listen, connect, identity, enrollment, .. } = arguments_of(all)?;
        Ok((listen, connect, identity, enrollment))
    }

    #[test]
    fn an_identity_is_whole_or_there_is_none() {
        let whole = "--tls-certificate a.crt --tls-key a.key --tls-authority ca.crt";
        assert!(parse("").unwrap().2.is_none());
        let files = TlsFiles::from(parse(whole).unwrap().2.unwrap());
        assert_eq!((files.authority_file, files.revocation_file), ("ca.crt".into(), None));
        let files = TlsFiles::from(parse(&format!("{whole} --tls-revoked a.crl")).unwrap().2.unwrap());
        assert_eq!(files.revocation_file, Some("a.crl".into()));
        for part in ["--tls-certificate a.crt", "--tls-key a.key", "--tls-authority ca.crt", "--tls-revoked a.crl"] {
            assert!(parse(part).is_err(), "{part}");
            assert!(parse(&format!("{whole} --enroll-file token")).is_err());
            let without = whole.replace(part, "");
            assert!(without == whole || parse(&without).is_err(), "{without}");
        }
    }

    #[test]
    fn limits_of_logs_have_the_notation_of_kubernetes() {
        let parse = |arguments: &str| {
            let all = ["keelway-hypervisor-agent", "run"].into_iter().chain(arguments.split_whitespace());
            let logs = arguments_of(all).map_err(|error| error.to_string())?.logs;
            let limits = LogLimits::from(logs);
            Ok::<_, String>((limits.max_size, limits.max_files))
        };
        assert_eq!(parse(""), Ok((10 << 20, 5)));
        assert_eq!(parse("--container-log-max-size=1Gi --container-log-max-files=2"), Ok((1 << 30, 2)));
        assert_eq!(parse("--container-log-max-size=4096"), Ok((4096, 5)));
        for bad in ["size=0", "size=ten", "size=1.5Mi", "size=99999999999999Gi", "files=1"] {
            assert!(parse(&format!("--container-log-max-{bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn unused_images_are_kept_for_a_day_by_default() {
        let parse = |arguments: &str| {
            let all = ["keelway-hypervisor-agent", "run"].into_iter().chain(arguments.split_whitespace());
            let age = arguments_of(all).map_err(|error| error.to_string())?.image_maximum_gc_age;
            Ok::<_, String>(ImageLimits::of_age(age).max_age)
        };
        assert_eq!(parse(""), Ok(ImageLimits::default().max_age));
        assert_eq!(parse("--image-maximum-gc-age=1h30m"), Ok(Some(Duration::from_secs(5400))));
        assert_eq!(parse("--image-maximum-gc-age=0s"), Ok(None));
        for bad in ["", "ten", "10", "-1h"] {
            assert!(parse(&format!("--image-maximum-gc-age={bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_endpoint_is_a_socket_or_a_port() {
        let (listen, ..) = parse("--listen unix:///run/a.sock --listen 10.0.0.5:7443 --listen [fd00::1]:7443").unwrap();
        let [ListenEndpoint::Socket(path), ListenEndpoint::Port(v4), ListenEndpoint::Port(v6)] = &listen[..] else {
            panic!("{}", listen.len())
        };
        assert_eq!((path.to_str(), v4.port(), v6.is_ipv6()), (Some("/run/a.sock"), 7443, true));
        for bad in ["run/a.sock", "hv-1:7443", "10.0.0.5"] {
            assert!(parse(&format!("--listen {bad}")).is_err(), "{bad}");
        }
        let wrong = [
            ("--listen 10.0.0.5:7443 --listen 10.0.0.6:7443", "once for each"),
            ("--listen /a --listen /b", "once for each"),
            ("--listen 10.0.0.5:7443 --identity-directory /nowhere", "no identity in /nowhere: set --enroll"),
            ("--connect 10.0.0.5:7443 --identity-directory /nowhere", "no identity in /nowhere: set --enroll"),
            ("--listen 10.0.0.5:7443 --enroll kwe1.e30", "the enrollment token is damaged"),
            ("--listen 10.0.0.5:7443 --enroll-file /nowhere", "cannot read /nowhere"),
            ("--tls-certificate a.crt --tls-key a.key --tls-authority ca.crt", "set --listen"),
        ];
        for (arguments, word) in wrong {
            let (listen, connect, identity, enrollment) = parse(arguments).unwrap();
            assert!(
                open(listen, connect, identity, &enrollment).unwrap_err().to_string().contains(word),
                "{arguments}"
            );
        }
    }
}
