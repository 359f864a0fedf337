//! `keelway hypervisor local enroll`.

use std::{collections::BTreeMap, net::SocketAddr};

use keelway_api::{
    Documents, Hypervisor,
    hypervisor::{Endpoint, Way},
    jiff::Timestamp,
    name::HypervisorName,
};
use keelway_local_hypervisor::{AgentIdentity, FLEET_LABEL, Step, enroll};
use keelway_reconciler::{AgentCredentials, agent_credentials};

use super::{
    hypervisor_local::request,
    print,
    session::{minter, runtime},
};
use crate::{
    args::Global,
    exit::{Code, Failure},
    input::Input,
    progress::Line,
};

/// Where agents of local hypervisors listen: outside of the ports of components.
const PORT: u16 = 7443;

pub(super) fn run(global: &Global) -> Result<Code, Failure> {
    let input = Input::read(&global.files)?;
    let enrolled = enroll_those_of(global, &input).map_err(|failure| failure.echoing(&input))?;
    print(&enrolled.write())?;
    Ok(Code::Done)
}

/// The documents, whose agents on local hypervisors are reached over a network by now.
fn enroll_those_of(global: &Global, input: &Input) -> Result<Documents, Failure> {
    let mut documents = input.documents()?;
    let mut fleets: BTreeMap<String, Vec<(HypervisorName, SocketAddr)>> = BTreeMap::new();
    for (name, machine) in &mut documents.hypervisors {
        let Some((fleet, listen)) = place(machine) else { continue };
        machine.spec.endpoint = Endpoint::network(listen.to_string());
        fleets.entry(fleet).or_default().push((name.clone(), listen));
    }
    if fleets.is_empty() {
        let mend = "make some: keelway hypervisor local create";
        return Err(Failure::usage("the documents hold no local hypervisor with an agent", mend));
    }
    let documents = keelway_reconciler::enroll(&documents, &mut minter(), Timestamp::now()).map_err(Failure::other)?;
    let line = Line::of_terminal(global.quiet);
    let executor = runtime()?;
    for (fleet, machines) in fleets {
        let identities = machines.into_iter().filter_map(|(name, listen)| {
            let AgentCredentials { certificate, key, authorities } = agent_credentials(&documents, &name)?;
            Some((name.to_string(), AgentIdentity { listen, files: [certificate, key, authorities] }))
        });
        let request = request(&fleet, true)?;
        let say = |step: &Step| line.say(&step.to_string());
        executor.block_on(enroll(&request, &identities.collect(), &say)).map_err(Failure::other)?;
    }
    Ok(documents)
}

/// The fleet of a local hypervisor that has an agent, and where that is to listen.
fn place(machine: &Hypervisor) -> Option<(String, SocketAddr)> {
    let fleet = machine.metadata.labels.as_ref()?.get(FLEET_LABEL)?;
    match machine.spec.endpoint.way() {
        Way::Runtime(_) | Way::Cri(_) => None,
        Way::Agent(_) | Way::Network(_) => {
            let address = machine.spec.addresses.private.first()?.parse().ok()?;
            Some((fleet.clone(), SocketAddr::new(address, PORT)))
        }
    }
}
