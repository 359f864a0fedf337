//! Finds documents by the names of a command line.

use std::{collections::BTreeSet, path::Path};

use keelway_api::{Component, Documents, Hypervisor, hypervisor::MachineTransport, name::PodName};
use keelway_reconciler::{agent_way, reach::ReachedMachine};

use crate::exit::CommandFailure;

/// Returns the name of a component in tables, such as `c1/etcd-0`.
pub(super) fn title(pod: &PodName, component: &Component) -> String {
    format!("{}/{}", component.spec.cluster, pod.component)
}

/// Returns the error for a document that does not exist, with the existing ones.
pub(super) fn missing_document_error(kind: &str, name: &str, there: &BTreeSet<String>) -> CommandFailure {
    let all = there.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let help =
        if all.is_empty() { "the documents contain none".to_owned() } else { format!("the documents contain {all}") };
    CommandFailure::usage(format!("{kind} {name} not found"), help)
}

/// Connects to a machine over the transport of its document.
pub(super) async fn reach(documents: &Documents, machine: &Hypervisor) -> Result<ReachedMachine, CommandFailure> {
    match machine.spec.endpoint.way() {
        MachineTransport::Runtime(socket) => {
            ReachedMachine::on_runtime_socket(Path::new(socket)).await.map_err(CommandFailure::other)
        }
        MachineTransport::Agent(socket) => {
            ReachedMachine::on_agent_socket(Path::new(socket)).await.map_err(CommandFailure::other)
        }
        MachineTransport::Network(_) | MachineTransport::Cri(_) => {
            Ok(ReachedMachine::over(agent_way(documents, machine).map_err(CommandFailure::other)?))
        }
    }
}

/// Finds a component and its machine.
pub(super) fn component<'a>(documents: &'a Documents, name: &str) -> Result<(PodName, &'a Hypervisor), CommandFailure> {
    let found = documents.components.iter().find(|(pod, component)| title(pod, component) == name);
    let (pod, component) = found.ok_or_else(|| {
        let there = documents.components.iter().map(|(pod, component)| title(pod, component)).collect();
        missing_document_error("Component", name, &there)
    })?;
    let machine = documents.hypervisors.get(&component.spec.hypervisor).ok_or_else(|| {
        let there = documents.hypervisors.keys().map(ToString::to_string).collect();
        missing_document_error("Hypervisor", component.spec.hypervisor.as_str(), &there)
    })?;
    Ok((pod.clone(), machine))
}
