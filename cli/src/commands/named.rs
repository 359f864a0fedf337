//! Documents as command lines name them.

use std::{collections::BTreeSet, path::Path};

use keelway_api::{Component, Documents, Hypervisor, hypervisor::Way, name::PodName};
use keelway_hypervisor_agent::reach::Reached;
use keelway_reconciler::{agent_way, reach_bare};

use crate::{directories::cache_directory, exit::Failure};

/// A component as tables name it: `c1/etcd-0`.
pub(super) fn title(pod: &PodName, component: &Component) -> String {
    format!("{}/{}", component.spec.cluster, pod.component)
}

/// The fault of naming what is not there.
pub(super) fn absent(kind: &str, name: &str, there: &BTreeSet<String>) -> Failure {
    let all = there.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let mend = if all.is_empty() { "the documents hold none".to_owned() } else { format!("the documents hold {all}") };
    Failure::usage(format!("there is no {kind} {name}"), mend)
}

/// A machine, the way that its document names.
pub(super) async fn reach(documents: &Documents, machine: &Hypervisor) -> Result<Reached, Failure> {
    match machine.spec.endpoint.way() {
        Way::Runtime(socket) => Reached::behind(Path::new(socket)).await.map_err(Failure::other),
        Way::Agent(socket) => Reached::behind_agent(Path::new(socket)).await.map_err(Failure::other),
        Way::Network(_) => Ok(Reached::over(agent_way(documents, machine).map_err(Failure::other)?)),
        Way::Cri(_) => {
            let archives = cache_directory().join("images");
            reach_bare(documents, machine, archives).await.map_err(Failure::other)
        }
    }
}

/// A component, and its machine.
pub(super) fn component<'a>(documents: &'a Documents, name: &str) -> Result<(PodName, &'a Hypervisor), Failure> {
    let found = documents.components.iter().find(|(pod, component)| title(pod, component) == name);
    let (pod, component) = found.ok_or_else(|| {
        let there = documents.components.iter().map(|(pod, component)| title(pod, component)).collect();
        absent("Component", name, &there)
    })?;
    let machine = documents.hypervisors.get(&component.spec.hypervisor).ok_or_else(|| {
        let there = documents.hypervisors.keys().map(ToString::to_string).collect();
        absent("Hypervisor", component.spec.hypervisor.as_str(), &there)
    })?;
    Ok((pod.clone(), machine))
}
