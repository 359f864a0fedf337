//! `keelway hypervisor local enroll`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use keelway_api::{
    Documents, Hypervisor,
    hypervisor::{AgentEndpoint, Endpoint, HypervisorRole, Way},
    jiff::Timestamp,
    name::HypervisorName,
};
use keelway_local_hypervisor::{AgentIdentity, FLEET_LABEL, Step, enroll};
use keelway_reconciler::{AgentCredentials, agent_credentials};

use super::{
    hypervisor_local::request,
    print_documents,
    session::{minter, runtime},
};
use crate::{
    args::{EnrollFrom, Global, LocalEnrollArguments},
    exit::{Code, Failure},
    input::Input,
    progress::Line,
};

/// Where agents of local hypervisors listen: outside of the ports of components.
const PORT: u16 = 7443;

pub(super) fn run(global: &Global, arguments: &LocalEnrollArguments) -> Result<Code, Failure> {
    let input = Input::read_some(&global.files)?;
    let enrolled = enroll_those_of(global, &input, arguments.from).map_err(|failure| failure.echoing(&input))?;
    print_documents(&enrolled)?;
    Ok(Code::Done)
}

/// The documents, whose agents on local hypervisors are reached over a network by now.
fn enroll_those_of(global: &Global, input: &Input, from: EnrollFrom) -> Result<Documents, Failure> {
    let mut documents = input.documents()?;
    let fleet = |machine: &Hypervisor| machine.metadata.labels.as_ref()?.get(FLEET_LABEL).cloned();
    let mut fleets: BTreeMap<String, Vec<(HypervisorName, Place)>> = BTreeMap::new();
    let publics: BTreeMap<Option<String>, (HypervisorName, IpAddr)> = documents
        .hypervisors
        .iter()
        .filter(|(_, machine)| machine.spec.role == HypervisorRole::Public)
        .filter_map(|(name, machine)| Some((fleet(machine), (name.clone(), first(&machine.spec.addresses.private)?))))
        .collect();
    for (name, machine) in documents.hypervisors.iter_mut() {
        let Some(fleet) = fleet(machine) else { continue };
        let Some(place) = place(machine, from, publics.get(&Some(fleet.clone()))) else { continue };
        machine.spec.endpoint = Endpoint::Agent(place.endpoint.clone());
        fleets.entry(fleet).or_default().push((name.clone(), place));
    }
    if fleets.is_empty() {
        let mend = "make some: keelway hypervisor local create";
        return Err(Failure::usage("the documents hold no local hypervisor with an agent", mend));
    }
    let documents = keelway_reconciler::enroll(&documents, &mut minter(), Timestamp::now()).map_err(Failure::other)?;
    let line = Line::of_terminal(global.quiet);
    let executor = runtime()?;
    for (fleet, machines) in fleets {
        let identities = machines.into_iter().filter_map(|(name, Place { listen, connect, .. })| {
            let AgentCredentials { certificate, key, authorities } = agent_credentials(&documents, &name)?;
            Some((name.to_string(), AgentIdentity { listen, connect, files: [certificate, key, authorities] }))
        });
        let request = request(&fleet, true)?;
        let say = |step: &Step| line.say(&step.to_string());
        executor.block_on(enroll(&request, &identities.collect(), &say)).map_err(Failure::other)?;
    }
    Ok(documents)
}

/// Where an agent is on the network, and how its document says so.
struct Place {
    listen: Option<SocketAddr>,
    connect: Vec<SocketAddr>,
    endpoint: AgentEndpoint,
}

/// The place of a machine that has an agent. `public` is one whose agent those of others are reached through.
fn place(machine: &Hypervisor, from: EnrollFrom, public: Option<&(HypervisorName, IpAddr)>) -> Option<Place> {
    let (Way::Agent(_) | Way::Network(_)) = machine.spec.endpoint.way() else { return None };
    let private = SocketAddr::new(first(&machine.spec.addresses.private)?, PORT);
    let listening = |listen: SocketAddr, address: SocketAddr, via: Option<&HypervisorName>| Place {
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
            Place { listen: None, connect: vec![SocketAddr::new(*address, PORT)], endpoint }
        }
    })
}

fn first(addresses: &[String]) -> Option<IpAddr> {
    addresses.first()?.parse().ok()
}
