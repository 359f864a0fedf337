//! `keelway hypervisor enroll`.

use std::{io::Write, net::SocketAddr};

use clap::Args;
use keelway_api::{
    Documents, Hypervisor,
    duration::Span,
    fault::Faults,
    hypervisor::{AgentEndpoint, HypervisorEndpoint},
    jiff::{SignedDuration, Timestamp},
    name::HypervisorName,
    validated::{ValidatedHypervisor, ZONE_LABEL},
};
use keelway_pki::EnrollmentToken;
use keelway_reconciler::{EnrollFault, issue_token};

use super::{hypervisor_inject::hypervisor, print_documents, session::minter};
use crate::{
    args::GlobalArguments,
    commands::hypervisor_inject::{HypervisorInjectArguments, PlacementArguments, RoleArgument},
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct HypervisorEnrollArguments {
    /// The hypervisor's name
    #[arg(long)]
    pub(crate) name: HypervisorName,
    /// The address of keelway-hypervisor-agent; required for a new hypervisor
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
    /// The role, required for a new hypervisor: public ones run ingresses and gateways, private ones etcd and Kubernetes components
    #[arg(long, value_enum)]
    pub(crate) role: Option<RoleArgument>,
    /// An address in the network between hypervisors; can be repeated [default: the host of --address]
    #[arg(long = "private-address", value_name = "ADDRESS")]
    pub(crate) private_addresses: Vec<String>,
    #[command(flatten)]
    pub(crate) placement: PlacementArguments,
    /// How long the token is valid
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub(crate) ttl: Span,
}

/// The port of agents if the command line names none.
const PORT: u16 = 7443;

pub(super) fn run(global: &GlobalArguments, arguments: HypervisorEnrollArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_or_empty(&global.files)?;
    let (documents, listen, token) = enroll(&input, arguments).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&documents)?;
    print_command(&listen, &token);
    Ok(Code::Done)
}

/// Prints the command to run on the machine, also with `--quiet`: the user needs it.
fn print_command(listen: &str, token: &EnrollmentToken) {
    let token = token.encode();
    let _ = writeln!(std::io::stderr(), "keelway-hypervisor-agent run --enroll {} --listen {listen}", *token);
}

fn enroll(
    input: &Input,
    arguments: HypervisorEnrollArguments,
) -> Result<(Documents, String, EnrollmentToken), CommandFailure> {
    let mut documents = input.documents()?;
    let (name, ttl) = (arguments.name.clone(), arguments.ttl);
    if ttl.seconds() == 0 {
        return Err(CommandFailure::usage("--ttl must be greater than 0", "set --ttl to 1m or more"));
    }
    let wanted = match documents.hypervisors.get(&name) {
        Some(there) => changed(Hypervisor::clone(there), arguments)?,
        None => new(arguments)?,
    };
    ValidatedHypervisor::parse(&wanted).map_err(|faults| CommandFailure::faults(Faults(faults), &Input::flags()))?;
    let listen = listen(&wanted);
    documents.hypervisors.insert(name.clone(), wanted);
    let ttl = SignedDuration::from_secs(i64::try_from(ttl.seconds()).unwrap_or(i64::MAX));
    let issued = issue_token(&documents, &name, ttl, &mut minter(), Timestamp::now());
    let (documents, token) = issued.map_err(|error| match error {
        EnrollFault::Enrolled(_) => CommandFailure::usage(
            error.to_string(),
            format!("revoke its certificates first: keelway hypervisor revoke {name}"),
        ),
        EnrollFault::Ttl => CommandFailure::usage(error.to_string(), "set a shorter --ttl"),
        other
        @ (EnrollFault::Missing(_) | EnrollFault::Never(_) | EnrollFault::Authority(_) | EnrollFault::Pass(_)) => {
            CommandFailure::other(other)
        }
    })?;
    Ok((documents, listen, token))
}

fn new(arguments: HypervisorEnrollArguments) -> Result<Hypervisor, CommandFailure> {
    let missing = |flag: &str| {
        CommandFailure::usage(format!("hypervisor {} not found", arguments.name), format!("to add it, set {flag}"))
    };
    let role = arguments.role.ok_or_else(|| missing("--role"))?;
    let address = arguments.address.clone().ok_or_else(|| missing("--address"))?;
    let own = || address.parse().map(|address: SocketAddr| address.ip().to_string()).into_iter().collect();
    let private = Some(arguments.private_addresses).filter(|given| !given.is_empty());
    Ok(hypervisor(HypervisorInjectArguments {
        name: arguments.name,
        role,
        socket: None,
        agent_socket: None,
        private_addresses: private.unwrap_or_else(own),
        agent_address: Some(address),
        agent_dials_out: false,
        agent_via: None,
        cri_address: None,
        cri_server_name: None,
        cri_secret: None,
        cri_agent_address: None,
        cri_runtime_socket: None,
        placement: arguments.placement,
    }))
}

/// Changes an existing hypervisor by the arguments that are set.
fn changed(mut there: Hypervisor, arguments: HypervisorEnrollArguments) -> Result<Hypervisor, CommandFailure> {
    let PlacementArguments { public_addresses, bind_addresses, zone, port_range } = arguments.placement;
    let spec = &mut there.spec;
    match arguments.address {
        Some(address) => {
            let via = if let HypervisorEndpoint::Agent(agent) = &mut spec.endpoint { agent.via.take() } else { None };
            spec.endpoint =
                HypervisorEndpoint::Agent(AgentEndpoint { address: Some(address), via, ..AgentEndpoint::default() });
        }
        None if spec.endpoint.address().is_none() => {
            let problem = format!("the document of {} has no address of its agent", arguments.name);
            return Err(CommandFailure::usage(problem, "set --address"));
        }
        None => {}
    }
    if let Some(role) = arguments.role {
        spec.role = role.into();
    }
    if !arguments.private_addresses.is_empty() {
        spec.addresses.private = arguments.private_addresses;
    }
    if !public_addresses.is_empty() {
        spec.addresses.public = public_addresses;
    }
    if !bind_addresses.is_empty() {
        spec.addresses.bind = bind_addresses;
    }
    if let Some(range) = port_range {
        spec.port_range = range;
    }
    if let Some(zone) = zone {
        there.metadata.labels.get_or_insert_default().insert(ZONE_LABEL.to_owned(), zone);
    }
    Ok(there)
}

/// Returns the address on which the agent has to listen: its address, or all addresses if that is a name, which can lead to the machine
/// indirectly.
fn listen(machine: &Hypervisor) -> String {
    let address = machine.spec.endpoint.address().unwrap_or_default();
    let of_name = || {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(PORT);
        format!("[::]:{port}")
    };
    address.parse::<SocketAddr>().map_or_else(|_| of_name(), |address| address.to_string())
}
