//! `keelway hypervisor inject`.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use keelway_api::{
    Documents, Hypervisor, Newer, ObjectMeta,
    fault::Faults,
    hypervisor::{
        Addresses, AgentEndpoint, CriEndpoint, HypervisorEndpoint, HypervisorRole, HypervisorSpec, PortRange,
        RUNTIME_SOCKET, SecretReference,
    },
    name::HypervisorName,
    validated::{ValidatedHypervisor, ZONE_LABEL},
};

use super::print_documents;
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
#[command(group(ArgGroup::new("way").required(true)))]
pub(crate) struct HypervisorInjectArguments {
    /// The hypervisor's name
    #[arg(long)]
    pub(crate) name: HypervisorName,
    /// The role: public hypervisors run ingresses and gateways, private ones etcd and Kubernetes components
    #[arg(long, value_enum)]
    pub(crate) role: RoleArgument,
    /// The socket of the container runtime, on this host
    #[arg(long, value_name = "PATH", group = "way")]
    pub(crate) socket: Option<PathBuf>,
    /// The socket of keelway-hypervisor-agent, on this host
    #[arg(long, value_name = "PATH", group = "way")]
    pub(crate) agent_socket: Option<PathBuf>,
    /// The network address of keelway-hypervisor-agent
    #[arg(long, value_name = "HOST:PORT", group = "way")]
    pub(crate) agent_address: Option<String>,
    /// The address of a proxy with mutual TLS in front of the container runtime's socket; Keelway starts the agent there
    #[arg(long, value_name = "HOST:PORT", group = "way", requires = "cri_secret")]
    pub(crate) cri_address: Option<String>,
    /// The Secret in the documents with tls.crt, tls.key and ca.crt for connections to the proxy
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "cri_address")]
    pub(crate) cri_secret: Option<String>,
    /// The name in the proxy's certificate [default: the host of --cri-address]
    #[arg(long, value_name = "NAME", requires = "cri_address")]
    pub(crate) cri_server_name: Option<String>,
    /// The address of the agent that Keelway starts behind the proxy [default: the first --private-address, port 7443]
    #[arg(long, value_name = "HOST:PORT", requires = "cri_address")]
    pub(crate) cri_agent_address: Option<String>,
    /// The socket of the container runtime on the machine behind the proxy [default: /run/containerd/containerd.sock]
    #[arg(long, value_name = "PATH", requires = "cri_address")]
    pub(crate) cri_runtime_socket: Option<PathBuf>,
    /// keelway-hypervisor-agent does not listen: it connects to the agent of --agent-via
    #[arg(long, group = "way", requires = "agent_via")]
    pub(crate) agent_dials_out: bool,
    /// The public hypervisor whose agent forwards connections to this agent
    #[arg(long, value_name = "NAME", conflicts_with_all = ["socket", "agent_socket"])]
    pub(crate) agent_via: Option<HypervisorName>,
    /// An address in the network between hypervisors; can be repeated
    #[arg(long = "private-address", value_name = "ADDRESS", required = true)]
    pub(crate) private_addresses: Vec<String>,
    #[command(flatten)]
    pub(crate) placement: PlacementArguments,
}

/// What a machine offers, beside its role and its addresses between machines.
#[derive(Args)]
pub(crate) struct PlacementArguments {
    /// An address for users of clusters, for a public hypervisor; can be repeated
    #[arg(long = "public-address", value_name = "ADDRESS")]
    pub(crate) public_addresses: Vec<String>,
    /// An address on which ingresses listen, if the machine has no interface with its public addresses; can be repeated
    #[arg(long = "bind-address", value_name = "ADDRESS")]
    pub(crate) bind_addresses: Vec<String>,
    /// The zone, stored as the label topology.kubernetes.io/zone
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<String>,
    /// The range of ports for components [default: 20000-22767]
    #[arg(long, value_name = "FROM-TO", value_parser = port_range)]
    pub(crate) port_range: Option<PortRange>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArgument {
    /// Runs ingresses and gateways
    Public,
    /// Runs etcd and Kubernetes components
    Private,
}

fn port_range(text: &str) -> Result<PortRange, String> {
    let (from, to) = text.split_once('-').ok_or("must be FROM-TO, such as 20000-22767")?;
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("{text:?} is not a port from 0 to 65535"));
    Ok(PortRange { from: port(from)?, to: port(to)? })
}

pub(super) fn run(global: &GlobalArguments, arguments: HypervisorInjectArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_or_empty(&global.files)?;
    let documents = inject(&input, arguments).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&documents)?;
    Ok(Code::Done)
}

fn inject(input: &Input, arguments: HypervisorInjectArguments) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let name = arguments.name.clone();
    if documents.hypervisors.contains_key(&name) {
        let help = "choose another --name, or edit its document";
        return Err(CommandFailure::usage(format!("hypervisor {name} already exists"), help));
    }
    let hypervisor = hypervisor(arguments);
    ValidatedHypervisor::parse(&hypervisor)
        .map_err(|faults| CommandFailure::faults(Faults(faults), &Input::flags()))?;
    documents.hypervisors.insert(name, hypervisor);
    Ok(documents)
}

/// Parses `NAMESPACE/NAME`, or a name in the namespace `default`.
fn secret(text: &str) -> SecretReference {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    SecretReference { namespace: namespace.to_owned(), name: name.to_owned() }
}

pub(super) fn hypervisor(arguments: HypervisorInjectArguments) -> Hypervisor {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let endpoint = match (arguments.socket, arguments.agent_socket, arguments.cri_address) {
        (Some(socket), _, _) => HypervisorEndpoint::Unix { path: text(&socket) },
        (None, Some(agent), _) => HypervisorEndpoint::agent(text(&agent)),
        (None, None, Some(address)) => HypervisorEndpoint::Cri(CriEndpoint {
            address,
            server_name: arguments.cri_server_name,
            secret_ref: secret(&arguments.cri_secret.unwrap_or_default()),
            agent_address: arguments.cri_agent_address,
            runtime_socket: arguments.cri_runtime_socket.as_deref().map_or_else(|| RUNTIME_SOCKET.to_owned(), text),
        }),
        (None, None, None) => HypervisorEndpoint::Agent(AgentEndpoint {
            unix: None,
            address: arguments.agent_address,
            via: arguments.agent_via.map(|via| via.to_string()),
            dials_out: arguments.agent_dials_out,
        }),
    };
    let PlacementArguments { public_addresses, bind_addresses, zone, port_range } = arguments.placement;
    let spec = HypervisorSpec {
        role: arguments.role.into(),
        endpoint,
        addresses: Addresses { private: arguments.private_addresses, public: public_addresses, bind: bind_addresses },
        port_range: port_range.unwrap_or_default(),
        unschedulable: false,
        drain: false,
        newer: Newer::default(),
    };
    let mut hypervisor = Hypervisor::new(arguments.name.as_str(), spec);
    hypervisor.metadata = ObjectMeta {
        name: Some(arguments.name.to_string()),
        labels: zone.map(|zone| [(ZONE_LABEL.to_owned(), zone)].into()),
        ..ObjectMeta::default()
    };
    hypervisor
}

impl From<RoleArgument> for HypervisorRole {
    fn from(role: RoleArgument) -> Self {
        match role {
            RoleArgument::Public => Self::Public,
            RoleArgument::Private => Self::Private,
        }
    }
}
