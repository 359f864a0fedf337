//! `keelway-vpn`: a WireGuard device or relay from a file in wg-quick's format.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use keelway_base::error_chain::ErrorChain;
use keelway_base::signals::TerminationSignals;
use keelway_vpn::conf::{self, FileConfig};
use keelway_vpn::data_path::{self, DataPath};
use keelway_vpn::netlink::interface::Interface;
use keelway_vpn::uapi::{UapiServer, default_socket};
use keelway_vpn::{CoreLimits, Device, DeviceConfig, Relay, RelayConfig};

type VpnMainError = Box<dyn std::error::Error>;

const DEFAULT_MTU: u16 = 1420;

/// Run a WireGuard device or relay in the foreground, until SIGTERM or SIGINT.
#[derive(Parser)]
#[command(version)]
struct VpnArguments {
    #[command(subcommand)]
    command: VpnCommand,
}

#[derive(Subcommand)]
enum VpnCommand {
    /// Run an interface with the addresses and routes of the file. Requires CAP_NET_ADMIN.
    Device(DeviceArgs),
    /// Forward packets between peers inside this process. Requires no privileges.
    Relay(CommonArgs),
}

#[derive(Args)]
struct DeviceArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Process packets in this process, even if the kernel supports WireGuard.
    #[arg(long)]
    userspace: bool,
    /// Disable segmentation offload on the TUN device.
    #[arg(long, hide = true)]
    no_offload: bool,
}

#[derive(Args)]
struct CommonArgs {
    /// Name of the interface or relay.
    name: String,
    /// File with keys and peers. Without it, there are none until `wg setconf` sets them.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Socket for `wg`. The default is the path that `wg` expects, and no socket for a relay.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Number of messages under a key after which a new key is requested.
    #[arg(long, hide = true, default_value_t = CoreLimits::default().rekey_after_messages)]
    rekey_after_messages: u64,
    /// Number of messages under a key after which the key is no longer used.
    #[arg(long, hide = true, default_value_t = CoreLimits::default().reject_after_messages)]
    reject_after_messages: u64,
    /// Number of handshakes per second above which senders must prove their address.
    #[arg(long, value_name = "NUMBER", default_value_t = CoreLimits::default().handshakes_per_second)]
    handshakes_per_second: u64,
}

impl CommonArgs {
    fn limits(&self) -> CoreLimits {
        CoreLimits {
            rekey_after_messages: self.rekey_after_messages,
            reject_after_messages: self.reject_after_messages,
            handshakes_per_second: self.handshakes_per_second,
            ..CoreLimits::default()
        }
    }

    fn file(&self) -> Result<FileConfig, VpnMainError> {
        let Some(path) = &self.config else {
            return Ok(FileConfig::default());
        };
        warn_of_readable_keys(path);
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        conf::parse(&text).map_err(|error| format!("{}: {error}", path.display()).into())
    }
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,boringtun=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let outcome = match VpnArguments::parse().command {
        VpnCommand::Device(args) => run_device(&args),
        VpnCommand::Relay(args) => run_relay(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", ErrorChain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run_device(args: &DeviceArgs) -> Result<(), VpnMainError> {
    let file = args.common.file()?;
    let mtu = file.mtu.unwrap_or(DEFAULT_MTU);
    let config = DeviceConfig {
        name: args.common.name.clone(),
        private_key: file.private_key.clone(),
        listen_port: file.listen_port,
        fwmark: file.fwmark,
        mtu,
        offload: !args.no_offload,
        limits: args.common.limits(),
    };
    let mut signals = BlockingSignals::new()?;
    let (mut path, _server) = open_device(&config, args)?;
    path.set_peers(&file.peers)?;
    let interface = Interface::find(path.name())?;
    interface.bring_up(mtu)?;
    for address in &file.addresses {
        interface.add_address(*address)?;
    }
    if file.routes {
        add_routes(&interface, &file, mtu)?;
    }
    tracing::info!(name = path.name(), data_path = %path.kind(), peers = file.peers.len(), "up");
    signals.wait();
    Ok(())
}

/// Adds a route into the interface for each prefix that a peer may use.
fn add_routes(interface: &Interface, file: &FileConfig, mtu: u16) -> Result<(), VpnMainError> {
    /// RFC 8200, section 5: below it an interface has no IPv6.
    const SMALLEST_IPV6_MTU: u16 = 1280;
    for prefix in file.peers.iter().flat_map(|peer| &peer.allowed_ips) {
        if prefix.addr().is_ipv6() && mtu < SMALLEST_IPV6_MTU {
            tracing::warn!(%prefix, mtu, "ignoring the route: the MTU is too small for IPv6");
        } else {
            interface.add_route(*prefix)?;
        }
    }
    Ok(())
}

/// Opens the device, and the socket for `wg` if the kernel does not serve it.
fn open_device(
    config: &DeviceConfig,
    args: &DeviceArgs,
) -> Result<(Box<dyn DataPath>, Option<UapiServer>), VpnMainError> {
    let socket = args.common.socket.clone().unwrap_or_else(|| default_socket(&config.name));
    if !args.userspace {
        let mut served = None;
        let path = data_path::open(config, |device| {
            served = Some(device.serve(socket));
        })?;
        return Ok((path, served.transpose()?));
    }
    let device = Device::start(config.clone())?;
    let server = device.serve(socket)?;
    Ok((Box::new(device), Some(server)))
}

fn run_relay(args: &CommonArgs) -> Result<(), VpnMainError> {
    let file = args.file()?;
    let mut signals = BlockingSignals::new()?;
    let relay = Relay::start(RelayConfig {
        name: args.name.clone(),
        private_key: file.private_key,
        listen_port: file.listen_port,
        addresses: file.addresses.iter().map(ipnet::IpNet::addr).collect(),
        mtu: file.mtu.unwrap_or(DEFAULT_MTU),
        limits: args.limits(),
    })?;
    relay.set_peers(&file.peers);
    let _server = args.socket.clone().map(|socket| relay.serve(socket)).transpose()?;
    tracing::info!(name = args.name, port = relay.listen_port(), peers = file.peers.len(), "up");
    signals.wait();
    Ok(())
}

/// Catches SIGTERM and SIGINT. It is created before anything that must be removed at the end.
struct BlockingSignals {
    runtime: tokio::runtime::Runtime,
    signals: TerminationSignals,
}

impl BlockingSignals {
    fn new() -> Result<Self, VpnMainError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let signals = {
            let _entered = runtime.enter();
            TerminationSignals::new()?
        };
        Ok(Self { runtime, signals })
    }

    fn wait(&mut self) {
        self.runtime.block_on(self.signals.next());
    }
}

fn warn_of_readable_keys(path: &Path) {
    let is_readable = std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0);
    if is_readable {
        tracing::warn!(file = %path.display(), "other users can read the keys in this file; run chmod 600");
    }
}
