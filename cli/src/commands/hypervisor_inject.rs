//! `keelway hypervisor inject`.

use std::path::Path;

use keelway_api::{
    Documents, Hypervisor, Newer, ObjectMeta,
    fault::Faults,
    hypervisor::{
        Addresses, AgentEndpoint, CriEndpoint, HypervisorEndpoint, HypervisorRole, HypervisorSpec, SecretReference,
    },
    validated::{ValidatedHypervisor, ZONE_LABEL},
};

use super::print_documents;
use crate::{
    args::{GlobalArguments, HypervisorInjectArguments, PlacementArguments, RoleArgument},
    exit::{Code, CommandFailure},
    input::Input,
};

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
        }),
        (None, None, None) => HypervisorEndpoint::Agent(AgentEndpoint {
            unix: None,
            address: arguments.agent_address,
            via: arguments.agent_via.map(|via| via.to_string()),
            dials_out: arguments.agent_dials_out,
        }),
    };
    let PlacementArguments { public_addresses, zone, port_range } = arguments.placement;
    let spec = HypervisorSpec {
        role: arguments.role.into(),
        endpoint,
        addresses: Addresses { private: arguments.private_addresses, public: public_addresses },
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
