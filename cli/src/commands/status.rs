//! `keelway status`.

use keelway_api::{
    Cluster, Component, Condition, Documents, Hypervisor, Time, condition, jiff::Timestamp, name::PodName, role::Role,
};
use serde::Serialize;

use super::print;
use crate::{
    args::{Global, StatusArguments, StatusOutput},
    exit::{Code, Failure},
    input::Input,
    table::Table,
};

pub(super) fn run(global: &Global, arguments: &StatusArguments) -> Result<Code, Failure> {
    let input = Input::read(&global.files)?;
    let view = View::of(&input.documents()?, Timestamp::now());
    let text = match arguments.output {
        StatusOutput::Table => view.tables(false),
        StatusOutput::Wide => view.tables(true),
        StatusOutput::Json => serde_json::to_string_pretty(&view).map_err(Failure::other)? + "\n",
        StatusOutput::Yaml => serde_saphyr::to_string(&view).map_err(Failure::other)?,
    };
    print(&text)?;
    Ok(Code::Done)
}

/// What the documents tell of the world, for people and programs.
#[derive(Serialize)]
struct View {
    clusters: Vec<ClusterView>,
    components: Vec<ComponentView>,
    hypervisors: Vec<HypervisorView>,
}

#[derive(Serialize)]
struct ClusterView {
    name: String,
    available: String,
    version: String,
    etcd: String,
    api: String,
    endpoint: String,
    age: String,
    message: String,
}

#[derive(Serialize)]
struct ComponentView {
    name: String,
    ready: String,
    version: String,
    hypervisor: String,
    ports: String,
    user: u32,
    message: String,
    placement: String,
}

#[derive(Serialize)]
struct HypervisorView {
    name: String,
    role: String,
    ready: String,
    components: usize,
    addresses: String,
    message: String,
}

impl View {
    fn of(documents: &Documents, now: Timestamp) -> Self {
        Self {
            clusters: documents.clusters.values().map(|cluster| ClusterView::of(documents, cluster, now)).collect(),
            components: documents.components.iter().map(|(pod, component)| ComponentView::of(pod, component)).collect(),
            hypervisors: documents.hypervisors.values().map(|machine| HypervisorView::of(documents, machine)).collect(),
        }
    }

    /// What is wrong comes first, then three tables.
    fn tables(&self, wide: bool) -> String {
        let tables = [self.clusters(wide), self.components(wide), self.hypervisors(wide)];
        let shown: Vec<String> = [self.troubles()].into_iter().chain(tables).filter(|text| !text.is_empty()).collect();
        if shown.is_empty() { "No documents.\n".to_owned() } else { shown.join("\n") }
    }

    fn troubles(&self) -> String {
        let broken = self.components.iter().filter(|component| component.ready != "True");
        let silent = self.hypervisors.iter().filter(|machine| machine.ready != "True");
        broken
            .map(|component| format!("{} waits for {}\n", component.name, component.message))
            .chain(silent.map(|machine| format!("{} is not ready: {}\n", machine.name, machine.message)))
            .collect()
    }

    fn clusters(&self, wide: bool) -> String {
        let mut table = Table::new(&["CLUSTER", "AVAILABLE", "VERSION", "ETCD", "API", "ENDPOINT", "AGE"]);
        for cluster in &self.clusters {
            table.row(vec![
                cluster.name.clone(),
                cluster.available.clone(),
                cluster.version.clone(),
                cluster.etcd.clone(),
                cluster.api.clone(),
                cluster.endpoint.clone(),
                if wide { format!("{}   {}", cluster.age, cluster.message) } else { cluster.age.clone() },
            ]);
        }
        if self.clusters.is_empty() { String::new() } else { table.render() }
    }

    fn components(&self, wide: bool) -> String {
        let narrow = ["COMPONENT", "READY", "VERSION", "HYPERVISOR"];
        let more = ["COMPONENT", "READY", "VERSION", "HYPERVISOR", "PORTS", "USER", "PLACEMENT"];
        let mut table = Table::new(if wide { &more } else { &narrow });
        for component in &self.components {
            let mut cells = vec![
                component.name.clone(),
                component.ready.clone(),
                component.version.clone(),
                component.hypervisor.clone(),
            ];
            if wide {
                cells.extend([component.ports.clone(), component.user.to_string(), component.placement.clone()]);
            }
            table.row(cells);
        }
        if self.components.is_empty() { String::new() } else { table.render() }
    }

    fn hypervisors(&self, wide: bool) -> String {
        let narrow = ["HYPERVISOR", "ROLE", "READY", "COMPONENTS"];
        let more = ["HYPERVISOR", "ROLE", "READY", "COMPONENTS", "ADDRESSES", "RUNTIME"];
        let mut table = Table::new(if wide { &more } else { &narrow });
        for machine in &self.hypervisors {
            let mut cells =
                vec![machine.name.clone(), machine.role.clone(), machine.ready.clone(), machine.components.to_string()];
            if wide {
                cells.extend([machine.addresses.clone(), machine.message.clone()]);
            }
            table.row(cells);
        }
        if self.hypervisors.is_empty() { String::new() } else { table.render() }
    }
}

impl ClusterView {
    fn of(documents: &Documents, cluster: &Cluster, now: Timestamp) -> Self {
        let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let endpoints = cluster.status.as_ref().map(|status| status.endpoints.join(",")).unwrap_or_default();
        Self {
            name: cluster.reference().to_string(),
            available: status_of(conditions, "Available"),
            version: cluster.spec.version.clone(),
            etcd: ready_of(documents, cluster, Role::Etcd),
            api: ready_of(documents, cluster, Role::KubeApiserver),
            endpoint: if endpoints.is_empty() { "<none>".to_owned() } else { endpoints },
            age: age(cluster.metadata.creation_timestamp.as_ref(), now),
            message: message_of(conditions, "Degraded"),
        }
    }
}

/// `READY/WANTED` of one role.
fn ready_of(documents: &Documents, cluster: &Cluster, role: Role) -> String {
    let ready = documents
        .components
        .values()
        .filter(|component| Some(&component.spec.cluster_id) == cluster.id() && component.spec.role == role)
        .filter(|component| {
            component.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
        })
        .count();
    format!("{ready}/{}", cluster.spec.replicas(role))
}

impl ComponentView {
    fn of(pod: &PodName, component: &Component) -> Self {
        let conditions = component.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let ports: Vec<String> = component.spec.ports.iter().map(|(name, port)| format!("{name}:{port}")).collect();
        Self {
            name: format!("{}/{}", component.spec.cluster, pod.component),
            ready: status_of(conditions, "Ready"),
            version: component.spec.version.clone(),
            hypervisor: component.spec.hypervisor.to_string(),
            ports: ports.join(","),
            user: component.spec.user,
            message: message_of(conditions, "Ready"),
            placement: component.status.as_ref().map(|status| status.placement.clone()).unwrap_or_default(),
        }
    }
}

impl HypervisorView {
    fn of(documents: &Documents, machine: &Hypervisor) -> Self {
        let name = machine.metadata.name.clone().unwrap_or_default();
        let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let addresses = &machine.spec.addresses;
        let components =
            documents.components.values().filter(|component| component.spec.hypervisor.as_str() == name).count();
        Self {
            role: format!("{:?}", machine.spec.role),
            ready: status_of(conditions, "Ready"),
            components,
            addresses: [addresses.public.as_slice(), addresses.private.as_slice()].concat().join(","),
            message: message_of(conditions, "Ready"),
            name,
        }
    }
}

fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn status_of(conditions: &[Condition], kind: &str) -> String {
    find(conditions, kind).map_or_else(|| "Unknown".to_owned(), |condition| condition.status.clone())
}

fn message_of(conditions: &[Condition], kind: &str) -> String {
    find(conditions, kind).map_or_else(|| "the next reconcile".to_owned(), |condition| condition.message.clone())
}

/// As kubectl shows it: the largest unit, two below ten.
fn age(since: Option<&Time>, now: Timestamp) -> String {
    let Some(since) = since else { return "<unknown>".to_owned() };
    let seconds = now.duration_since(since.0).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => format!("{}m{}s", seconds / 60, seconds % 60),
        600..10_800 => format!("{}m", seconds / 60),
        10_800..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
