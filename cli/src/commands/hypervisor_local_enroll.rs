//! `keelway hypervisor local enroll`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use clap::{Args, ValueEnum};
use keelway_api::{
    Documents, Hypervisor,
    hypervisor::{AgentEndpoint, HypervisorEndpoint, HypervisorRole, MachineTransport},
    jiff::Timestamp,
    name::HypervisorName,
};
use keelway_local_hypervisor::{FLEET_LABEL, FleetStep, LocalAgentIdentity, enroll};
use keelway_reconciler::{AgentCredentials, agent_credentials};

use super::{
    hypervisor_local::request,
    print_documents,
    session::{minter, runtime},
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
    progress::ProgressLine,
};

#[derive(Args)]
pub(crate) struct LocalEnrollArguments {
    /// The network in which keelway runs, which decides how it connects to the agents of private machines
    #[arg(long, value_enum, default_value = "private")]
    pub(crate) from: EnrollFrom,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnrollFrom {
    /// The private network: keelway connects directly
    Private,
    /// The public network: keelway connects through the agent of a public machine
    Public,
    /// The public network: private agents do not listen, but connect to the agent of a public machine
    DialOut,
}

/// The port on which agents of local hypervisors listen. It is outside of the range for components.
const PORT: u16 = 7443;

pub(super) fn run(global: &GlobalArguments, arguments: &LocalEnrollArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let enrolled = enroll_those_of(global, &input, arguments.from).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&enrolled)?;
    Ok(Code::Done)
}

/// Enrolls the agents of local hypervisors. Returns the documents, in which these agents are reached over the network.
fn enroll_those_of(global: &GlobalArguments, input: &Input, from: EnrollFrom) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let fleet = |machine: &Hypervisor| machine.metadata.labels.as_ref()?.get(FLEET_LABEL).cloned();
    let mut fleets: BTreeMap<String, Vec<(HypervisorName, AgentNetworkSetup)>> = BTreeMap::new();
    let publics: BTreeMap<Option<String>, (HypervisorName, IpAddr)> = documents
        .hypervisors
        .iter()
        .filter(|(_, machine)| machine.spec.role == HypervisorRole::Public)
        .filter_map(|(name, machine)| Some((fleet(machine), (name.clone(), first(&machine.spec.addresses.private)?))))
        .collect();
    for (name, machine) in documents.hypervisors.iter_mut() {
        let Some(fleet) = fleet(machine) else { continue };
        let Some(place) = place(machine, from, publics.get(&Some(fleet.clone()))) else { continue };
        machine.spec.endpoint = HypervisorEndpoint::Agent(place.endpoint.clone());
        fleets.entry(fleet).or_default().push((name.clone(), place));
    }
    if fleets.is_empty() {
        let help = "create some: keelway hypervisor local create";
        return Err(CommandFailure::usage("the documents contain no local hypervisor with an agent", help));
    }
    let documents =
        keelway_reconciler::enroll(&documents, &mut minter(), Timestamp::now()).map_err(CommandFailure::other)?;
    let line = ProgressLine::of_terminal(global.quiet);
    let executor = runtime()?;
    for (fleet, machines) in fleets {
        let identities = machines.into_iter().filter_map(|(name, AgentNetworkSetup { listen, connect, .. })| {
            let AgentCredentials { certificate, key, authorities } = agent_credentials(&documents, &name)?;
            Some((name.to_string(), LocalAgentIdentity { listen, connect, files: [certificate, key, authorities] }))
        });
        let request = request(&fleet, true)?;
        let say = |step: &FleetStep| line.show(&step.to_string());
        executor.block_on(enroll(&request, &identities.collect(), &say)).map_err(CommandFailure::other)?;
    }
    Ok(documents)
}

/// The addresses of an agent, and the endpoint in its document.
struct AgentNetworkSetup {
    listen: Option<SocketAddr>,
    connect: Vec<SocketAddr>,
    endpoint: AgentEndpoint,
}

/// Returns the setup for a machine with an agent. `public` is the machine whose agent relays to the agents of others.
fn place(
    machine: &Hypervisor,
    from: EnrollFrom,
    public: Option<&(HypervisorName, IpAddr)>,
) -> Option<AgentNetworkSetup> {
    let (MachineTransport::Agent(_) | MachineTransport::Network(_)) = machine.spec.endpoint.way() else { return None };
    let private = SocketAddr::new(first(&machine.spec.addresses.private)?, PORT);
    let listening = |listen: SocketAddr, address: SocketAddr, via: Option<&HypervisorName>| AgentNetworkSetup {
        listen: Some(listen),
        connect: Vec::new(),
        endpoint: AgentEndpoint {
            address: Some(address.to_string()),
            via: via.map(ToString::to_string),
            ..AgentEndpoint::default()
        },
    };
    let anywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    Some(match (from, machine.spec.role, public) {
        (EnrollFrom::Private, _, _) => listening(private, private, None),
        (_, HypervisorRole::Public, _) => {
            listening(anywhere, SocketAddr::new(first(&machine.spec.addresses.public)?, PORT), None)
        }
        (EnrollFrom::Public, HypervisorRole::Private, via) => listening(private, private, via.map(|(via, _)| via)),
        (EnrollFrom::DialOut, HypervisorRole::Private, via) => {
            let (via, address) = via?;
            let endpoint = AgentEndpoint { via: Some(via.to_string()), dials_out: true, ..AgentEndpoint::default() };
            AgentNetworkSetup { listen: None, connect: vec![SocketAddr::new(*address, PORT)], endpoint }
        }
    })
}

fn first(addresses: &[String]) -> Option<IpAddr> {
    addresses.first()?.parse().ok()
}
