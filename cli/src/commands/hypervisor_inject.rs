//! `keelway hypervisor inject`.

use std::path::Path;

use keelway_api::{
    Documents, Hypervisor, ObjectMeta,
    fault::Faults,
    hypervisor::{Addresses, Endpoint, HypervisorRole, HypervisorSpec},
    validated::{ValidatedHypervisor, ZONE_LABEL},
};

use super::print;
use crate::{
    args::{Global, HypervisorInjectArguments, RoleArgument},
    exit::{Code, Failure},
    input::Input,
};

pub(super) fn run(global: &Global, arguments: HypervisorInjectArguments) -> Result<Code, Failure> {
    let input = Input::read_or_nothing(&global.files)?;
    let documents = inject(&input, arguments).map_err(|failure| failure.echoing(&input))?;
    print(&documents.write())?;
    Ok(Code::Done)
}

fn inject(input: &Input, arguments: HypervisorInjectArguments) -> Result<Documents, Failure> {
    let mut documents = input.documents()?;
    let name = arguments.name.clone();
    if documents.hypervisors.contains_key(&name) {
        let mend = "choose another --name, or change the document itself";
        return Err(Failure::usage(format!("there is a hypervisor {name} already"), mend));
    }
    let hypervisor = hypervisor(arguments);
    ValidatedHypervisor::parse(&hypervisor).map_err(|faults| Failure::faults(Faults(faults), &Input::flags()))?;
    documents.hypervisors.insert(name, hypervisor);
    Ok(documents)
}

pub(super) fn hypervisor(arguments: HypervisorInjectArguments) -> Hypervisor {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let endpoint = match (arguments.socket, arguments.agent_socket) {
        (Some(socket), _) => Endpoint::Unix { path: text(&socket) },
        (None, Some(agent)) => Endpoint::agent(text(&agent)),
        (None, None) => Endpoint::network(arguments.agent_address.unwrap_or_default()),
    };
    let spec = HypervisorSpec {
        role: arguments.role.into(),
        endpoint,
        addresses: Addresses { private: arguments.private_addresses, public: arguments.public_addresses },
        port_range: arguments.port_range.unwrap_or_default(),
        unschedulable: false,
        drain: false,
    };
    let mut hypervisor = Hypervisor::new(arguments.name.as_str(), spec);
    hypervisor.metadata = ObjectMeta {
        name: Some(arguments.name.to_string()),
        labels: arguments.zone.map(|zone| [(ZONE_LABEL.to_owned(), zone)].into()),
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
