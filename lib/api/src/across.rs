//! Checks between documents.

mod class;
mod snapshots;

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Cluster, Component, Documents, Hypervisor, Shared,
    cluster::{EtcdStatus, MemberPhase},
    component::ComponentStage,
    document::DocumentName,
    fault::{Fault, MOST_FAULTS},
    hypervisor::{AgentNetworkAddress, HypervisorRole, MachineTransport},
    kind::DocumentKind,
    machine::{CLUSTER_LABEL, INSTALLATION_LABEL},
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    origin::OriginIndex,
    registry::{PULL_SECRET, is_pull_secret},
    role::{API, Role},
    secret_name::{ENCRYPTION_SECRET, SecretName},
    tree::{field, item},
};

/// Returns every fault between valid documents, with document and line.
pub(crate) fn across(documents: &Documents, seen: &OriginIndex<'_>) -> Vec<Fault> {
    let found = faults_between(documents, seen).into_iter();
    found.filter_map(|(name, fault)| Some(seen.origins.get(&name)?.locate(fault))).collect()
}

/// Returns every fault between valid documents, each with the name of its document.
pub(crate) fn faults_between(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    let checks = [
        class::defaults,
        ids,
        owners,
        machines_apart,
        endpoints,
        vias,
        components,
        secrets,
        secrets_of_installations,
        ports,
        users,
    ];
    checks.iter().flat_map(|check| check(documents, seen)).take(MOST_FAULTS).collect()
}

/// Returns what documents lack for a reconciliation.
pub(crate) fn completeness_faults(documents: &Documents, seen: &OriginIndex<'_>) -> Vec<Fault> {
    if documents.is_empty() && seen.broken.is_empty() {
        let help = "pipe in what another command wrote, or begin with `keelway hypervisor local create`";
        return vec![Fault::of("", "the input holds no document of Keelway's", help)];
    }
    let lacks = [machines, pull_secrets, snapshots::credentials, class::pull_secrets, class::clusters, changes]
        .into_iter()
        .flat_map(|check| check(documents, seen));
    let found = lacks.chain(missing_documents(documents, seen)).take(MOST_FAULTS);
    found.filter_map(|(place, fault)| Some(seen.origins.get(&place)?.locate(fault))).collect()
}

/// Returns the faults of changes that an existing cluster does not allow.
fn changes(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::Hypervisor) || seen.broken.contains(&DocumentKind::Component) {
        return Vec::new();
    }
    documents.faults_of_changes(|_| true)
}

/// Returns documents that are missing although others show that they existed.
pub(crate) fn missing_documents(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    [members, ingresses, keys].into_iter().flat_map(|check| check(documents, seen)).collect()
}

pub(crate) type DocumentFaults = Vec<(DocumentName, Fault)>;

/// Checks that the pull Secrets of each cluster exist.
fn pull_secrets(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::Secret) {
        return Vec::new();
    }
    let is_there = |name: &SecretName| documents.secrets.get(name).is_some_and(|secret| is_pull_secret(secret));
    let of_cluster = |(cluster, document): (&ClusterRef, &Shared<Cluster>)| {
        let references = document.spec.images.pull_secrets.iter().enumerate();
        let cluster = cluster.clone();
        let missing = references.filter_map(move |(index, reference)| {
            let name = SecretName { namespace: cluster.namespace.clone(), name: reference.name.clone() };
            let problem = format!("Secret {}/{} of type {PULL_SECRET} does not exist", name.namespace, name.name);
            let field = field(&item("spec.images.pullSecrets", index), "name");
            let help = "add it: kubectl create secret docker-registry NAME --dry-run=client -o yaml ..";
            (!is_there(&name)).then(|| (DocumentName::Cluster(cluster.clone()), Fault::of(field, problem, help)))
        });
        missing.collect::<Vec<_>>()
    };
    documents.clusters.iter().filter(|(_, cluster)| !cluster.deleted()).flat_map(of_cluster).collect()
}

/// Checks that there are machines of each role that the components of a cluster need.
fn machines(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::Hypervisor) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for kind in [HypervisorRole::Private, HypervisorRole::Public] {
        if documents.hypervisors.values().any(|machine| machine.spec.role == kind) {
            continue;
        }
        let needs = |cluster: &Cluster| {
            Role::ALL.into_iter().any(|role| role.row().runs_on == kind && cluster.spec.replicas(role) > 0)
        };
        let clusters = documents.clusters.iter().filter(|(_, cluster)| !cluster.deleted() && needs(cluster));
        for (name, _) in clusters {
            let field = match kind {
                HypervisorRole::Private => "spec.etcd",
                HypervisorRole::Public => "spec.ingress",
            };
            let word = format!("{kind:?}").to_lowercase();
            found.push((
                DocumentName::Cluster(name.clone()),
                Fault::of(
                    field,
                    format!("a {word} Hypervisor is required to run it, but there is none"),
                    format!("add one: keelway hypervisor inject --role {word} .."),
                ),
            ));
        }
    }
    found
}

/// Checks that no two clusters have the same id.
fn ids(documents: &Documents, _: &OriginIndex<'_>) -> DocumentFaults {
    let mut first = BTreeMap::new();
    let mut found = Vec::new();
    for (name, cluster) in &documents.clusters {
        let Some(id) = cluster.id() else { continue };
        if let Some(other) = first.insert(id, name) {
            found.push((
                DocumentName::Cluster(name.clone()),
                Fault::of(
                    "status.id",
                    format!("Cluster {other} has the same id {id}"),
                    "remove status from the document that is a copy",
                ),
            ));
        }
    }
    found
}

/// Checks that all machines obey the same installation.
fn owners(documents: &Documents, _: &OriginIndex<'_>) -> DocumentFaults {
    let mut first = None;
    let mut found = Vec::new();
    for (name, machine) in &documents.hypervisors {
        let owner = machine.status.as_ref().and_then(|s| s.installation.as_ref());
        let Some(owner) = owner else { continue };
        let (other, expected) = *first.get_or_insert((name, owner));
        if owner != expected {
            found.push((
                DocumentName::Hypervisor(name.clone()),
                Fault::of(
                    "status.installation",
                    format!("the machine belongs to installation {owner}, but Hypervisor {other} belongs to installation {expected}"),
                    "reconcile the documents of each installation separately",
                ),
            ));
        }
    }
    found
}

/// Checks that no two Hypervisors describe the same machine. Otherwise, etcd members of one cluster would share it, and each config would undo the
/// other.
fn machines_apart(documents: &Documents, _: &OriginIndex<'_>) -> DocumentFaults {
    let mut first: BTreeMap<(&str, String), &HypervisorName> = BTreeMap::new();
    let mut found = Vec::new();
    for (name, machine) in &documents.hypervisors {
        for (field, what, value) in unique_values(machine) {
            let Some(other) = first.insert((what, value.clone()), name).filter(|other| *other != name) else {
                continue;
            };
            let problem = format!("{value} is also the {what} of Hypervisor {other}");
            let help = "write the value of this machine, or remove one of the two documents";
            found.push((DocumentName::Hypervisor(name.clone()), Fault::of(field, problem, help)));
        }
    }
    found
}

/// Returns the values that must be unique to a machine: the field, a description, and the value.
fn unique_values(machine: &Hypervisor) -> Vec<(String, &'static str, String)> {
    let one = |field: &str, what, value: &str| (field.to_owned(), what, value.to_owned());
    let listener = |text: &str| text.parse::<SocketAddr>().map_or_else(|_| text.to_lowercase(), |at| at.to_string());
    let way = match machine.spec.endpoint.way() {
        MachineTransport::Runtime(path) => Some(one("spec.endpoint.unix.path", "socket", path)),
        MachineTransport::Agent(path) => Some(one("spec.endpoint.agent.unix.path", "socket", path)),
        MachineTransport::Cri(cri) => {
            Some(one("spec.endpoint.cri.address", "proxy's address", &listener(&cri.address)))
        }
        MachineTransport::Network(AgentNetworkAddress { address: Some(address), .. }) => {
            Some(one("spec.endpoint.agent.address", "agent's address", &listener(address)))
        }
        MachineTransport::Network(AgentNetworkAddress { address: None, .. }) => None,
    };
    let private = machine.spec.addresses.private.iter().enumerate().map(|(index, text)| {
        let address = text.parse::<IpAddr>().map_or_else(|_| text.clone(), |address| address.to_string());
        (item("spec.addresses.private", index), "private address", address)
    });
    way.into_iter().chain(private).collect()
}

/// Checks that the Secret of an endpoint exists and is complete.
fn endpoints(documents: &Documents, _: &OriginIndex<'_>) -> DocumentFaults {
    let mut found = Vec::new();
    for (name, machine) in &documents.hypervisors {
        let MachineTransport::Cri(cri) = machine.spec.endpoint.way() else { continue };
        let reference = SecretName { namespace: cri.secret_ref.namespace.clone(), name: cri.secret_ref.name.clone() };
        let title = format!("Secret {}/{}", reference.namespace, reference.name);
        let mut add = |problem| {
            let help = "add it to the documents, with the keys tls.crt, tls.key and ca.crt in PEM";
            found.push((
                DocumentName::Hypervisor(name.clone()),
                Fault::of("spec.endpoint.cri.secretRef", problem, help),
            ));
        };
        let Some(secret) = documents.user_secrets.get(&reference) else {
            add(format!("{title} does not exist"));
            continue;
        };
        let has =
            |key: &str| secret.data.as_ref().is_some_and(|data| data.get(key).is_some_and(|value| !value.0.is_empty()));
        for key in ["tls.crt", "tls.key", "ca.crt"].into_iter().filter(|key| !has(key)) {
            add(format!("{title} has no {key}"));
        }
    }
    found
}

/// Checks that `via` names a public Hypervisor whose agent is reached directly.
fn vias(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::Hypervisor) {
        return Vec::new();
    }
    let fault = |via: &str| {
        let Some(other) = via.parse().ok().and_then(|via: HypervisorName| documents.hypervisors.get(&via)) else {
            return Some(format!("Hypervisor {via} does not exist"));
        };
        if other.spec.role != HypervisorRole::Public {
            return Some(format!("Hypervisor {via} is not public"));
        }
        match other.spec.endpoint.way() {
            MachineTransport::Runtime(_) => Some(format!("Hypervisor {via} has no agent that can forward connections")),
            MachineTransport::Network(AgentNetworkAddress { via: Some(third), .. }) => {
                Some(format!("Hypervisor {via} must be reached directly, not through {third}"))
            }
            MachineTransport::Agent(_) | MachineTransport::Network(_) | MachineTransport::Cri(_) => None,
        }
    };
    let mut found = Vec::new();
    for (name, machine) in &documents.hypervisors {
        let MachineTransport::Network(AgentNetworkAddress { via: Some(via), .. }) = machine.spec.endpoint.way() else {
            continue;
        };
        if let Some(problem) = fault(via) {
            let help =
                "write the name of a public Hypervisor of these documents whose endpoint is an agent without via";
            found.push((DocumentName::Hypervisor(name.clone()), Fault::of("spec.endpoint.agent.via", problem, help)));
        }
    }
    found
}

fn restore_help(what: &str) -> String {
    format!("restore {what}; to delete a cluster, run keelway cluster delete")
}

/// Checks that the cluster and the machine of each component exist.
fn components(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    let mut found = Vec::new();
    for (name, component) in &documents.components {
        let spec = &component.spec;
        let mut add = |fault| found.push((DocumentName::Component(name.clone()), fault));
        if !seen.broken.contains(&DocumentKind::Cluster) {
            match documents.clusters.get(&spec.cluster) {
                None => add(Fault::of(
                    "spec.cluster",
                    format!("Cluster {} does not exist", spec.cluster),
                    restore_help("its document"),
                )),
                Some(cluster) if cluster.id() == Some(&spec.cluster_id) => {}
                Some(cluster) => {
                    let other = if cluster.id().is_some() { "another" } else { "no" };
                    add(Fault::of(
                        "spec.clusterId",
                        format!("Cluster {} has {other} id", spec.cluster),
                        restore_help("its document with that id"),
                    ));
                }
            }
        }
        let machine = documents.hypervisors.contains_key(&spec.hypervisor);
        if !machine && !seen.broken.contains(&DocumentKind::Hypervisor) {
            add(Fault::of(
                "spec.hypervisor",
                format!("Hypervisor {} does not exist", spec.hypervisor),
                "restore its document",
            ));
        }
    }
    found
}

/// Checks that the cluster of each Secret of Keelway exists.
fn secrets(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::Cluster) {
        return Vec::new();
    }
    let ids: BTreeSet<&str> = documents.clusters.values().filter_map(|cluster| Some(cluster.id()?.as_str())).collect();
    documents
        .secrets
        .iter()
        .filter_map(|(name, secret)| {
            let id = secret.metadata.labels.as_ref()?.get(CLUSTER_LABEL)?;
            (!ids.contains(id.as_str())).then(|| {
                let field = field("metadata.labels", CLUSTER_LABEL);
                let problem = format!("there is no Cluster with the id {id}");
                (DocumentName::Secret(name.clone()), Fault::of(field, problem, restore_help("its document")))
            })
        })
        .collect()
}

/// Checks that each Secret of an installation has a machine of that installation.
fn secrets_of_installations(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::Hypervisor) {
        return Vec::new();
    }
    let machines = documents.hypervisors.values();
    let ids: BTreeSet<&str> =
        machines.filter_map(|machine| Some(machine.status.as_ref()?.installation.as_ref()?.as_str())).collect();
    let labelled = documents.secrets.iter().filter_map(|(name, secret)| {
        let id = secret.metadata.labels.as_ref()?.get(INSTALLATION_LABEL)?;
        Some((name, id)).filter(|_| !ids.contains(id.as_str()))
    });
    let fault = |(name, id): (&SecretName, &String)| {
        let problem = format!("there is no Hypervisor of the installation {id}");
        let help = "restore the documents of its machines, or remove the Secret if no machines are left";
        (DocumentName::Secret(name.clone()), Fault::of(field("metadata.labels", INSTALLATION_LABEL), problem, help))
    };
    labelled.map(fault).collect()
}

/// Checks that no two components of a machine have the same port.
fn ports(documents: &Documents, _: &OriginIndex<'_>) -> DocumentFaults {
    let mut taken: BTreeMap<(&HypervisorName, u16), (&PodName, &Component)> = BTreeMap::new();
    let mut found = Vec::new();
    for (name, component) in &documents.components {
        for (port_name, port) in &component.spec.ports {
            let key = (&component.spec.hypervisor, *port);
            let before = taken.insert(key, (name, component));
            if let Some((other, owner)) = before.filter(|(other, _)| *other != name) {
                let owner = format!("{}/{}", owner.spec.cluster, other.component);
                found.push((
                    DocumentName::Component(name.clone()),
                    Fault::of(
                        field("spec.ports", port_name),
                        format!("{port} is already a port of {owner} on that machine"),
                        "restore the documents that reconcile wrote",
                    ),
                ));
            }
        }
    }
    found
}

/// Checks that a user id belongs to one role of one cluster. Files of one role are not readable for any other.
fn users(documents: &Documents, _: &OriginIndex<'_>) -> DocumentFaults {
    let mut of_user: BTreeMap<u32, (&PodName, &Component)> = BTreeMap::new();
    let mut of_role: BTreeMap<(&ClusterId, Role), (&PodName, &Component)> = BTreeMap::new();
    let mut found = Vec::new();
    for (name, component) in &documents.components {
        let (user, role) = (component.spec.user, component.spec.role);
        let (other, first) = *of_user.entry(user).or_insert((name, component));
        let (same, beside) = *of_role.entry((&name.cluster, role)).or_insert((name, component));
        let problem = if (&other.cluster, first.spec.role) != (&name.cluster, role) {
            format!("{user} is already the user of {}/{}", first.spec.cluster, other.component)
        } else if beside.spec.user != user {
            format!("must be the same as for {}/{}, which is {}", beside.spec.cluster, same.component, beside.spec.user)
        } else {
            continue;
        };
        let help = "one of the two documents is outdated: restore the documents that reconcile wrote";
        found.push((DocumentName::Component(name.clone()), Fault::of("spec.user", problem, help)));
    }
    found
}

/// Checks that each recorded etcd member has its document, and that each member that served is recorded.
fn members(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    let mut found = Vec::new();
    for (name, id, cluster) in living(documents) {
        let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
        let known = store.map(|store| &store.members);
        let mut add = |fault| found.push((DocumentName::Cluster(name.clone()), fault));
        let there = |member: &ComponentName| {
            documents.components.contains_key(&PodName { cluster: id.clone(), component: member.clone() })
        };
        let staying = store.into_iter().flat_map(EtcdStatus::staying_members).map(|(member, _)| member);
        for member in staying.filter(|member| !there(member)) {
            if !seen.broken.contains(&DocumentKind::Component) {
                let problem = format!("Component {member} does not exist, and Keelway cannot recreate its data");
                add(Fault::of(field("status.etcd.members", member.as_str()), problem, restore_help("its document")));
            }
        }
        let served = documents
            .components_of(id)
            .filter(|(_, component)| component.spec.role == Role::Etcd && component.stage() == ComponentStage::Serving);
        for (pod, _) in served {
            let phase = known.and_then(|known| known.get(&pod.component)).map(|member| member.phase);
            if phase.is_none_or(|phase| phase == MemberPhase::Pending) {
                let problem = format!("{} served requests, but this status does not record it", pod.component);
                add(Fault::of("status.etcd", problem, "this document is outdated: restore the newest one"));
            }
        }
    }
    found
}

/// Checks that ingresses have the port that the cluster reserved for them.
fn ingresses(documents: &Documents, _: &OriginIndex<'_>) -> DocumentFaults {
    let mut found = Vec::new();
    for (name, id, cluster) in living(documents) {
        let reserved = cluster.status.as_ref().and_then(|status| status.ingress_port);
        let of_role = documents.components_of(id).filter(|(_, component)| component.spec.role == Role::Ingress);
        let ports = of_role.filter_map(|(pod, component)| Some((pod, *component.spec.ports.get(API)?)));
        if let Some((pod, port)) = ports.into_iter().find(|(_, port)| Some(*port) != reserved) {
            let problem = format!("{} has port {port}", pod.component);
            let help = "one of the two documents is outdated: restore the newest one";
            found.push((DocumentName::Cluster(name.clone()), Fault::of("status.ingressPort", problem, help)));
        }
    }
    found
}

/// Checks that the encryption key of each existing etcd exists. Without that key, the stored Secrets cannot be read.
fn keys(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::Secret) {
        return Vec::new();
    }
    let born = living(documents)
        .filter(|(_, _, cluster)| cluster.status.as_ref().is_some_and(|status| status.etcd.is_some()))
        .map(|(name, id, _)| (name, SecretName::of(id, ENCRYPTION_SECRET)));
    let missing = born.filter(|(_, secret)| !documents.secrets.contains_key(secret));
    missing
        .map(|(name, SecretName { namespace, name: secret })| {
            let problem = format!(
                "Secret {namespace}/{secret} does not exist, but the Secrets in the cluster are encrypted with its key"
            );
            (DocumentName::Cluster(name.clone()), Fault::of("status.id", problem, restore_help("its document")))
        })
        .collect()
}

/// Returns the clusters that have an id and are not being deleted.
fn living(documents: &Documents) -> impl Iterator<Item = (&ClusterRef, &ClusterId, &Cluster)> {
    let clusters = documents.clusters.iter().filter(|(_, cluster)| !cluster.deleted());
    clusters.filter_map(|(name, cluster)| Some((name, cluster.id()?, &**cluster)))
}
