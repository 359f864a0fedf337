//! `keelway hypervisor describe`.

use std::collections::BTreeSet;

use clap::{ArgAction, Args};
use keelway_api::{
    Component, Documents, Hypervisor, Time,
    hypervisor::{AgentNetworkAddress, Applied, HypervisorStatus, MachineTransport, Quantities},
    jiff::Timestamp,
    name::{HypervisorName, PodName},
};
use keelway_pki::CertificateFacts;
use keelway_planner::agent_identity;

use super::{
    events,
    named::{missing_document_error, title},
    print,
    session::runtime,
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
    table::TextTable,
    view::{Allocation, EventView, TableRow, age, message_of, size, status_of},
};

#[derive(Args)]
pub(crate) struct DescribeArguments {
    /// Names [default: all]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Show the events of each machine
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub(crate) show_events: bool,
}

pub(super) fn run(global: &GlobalArguments, arguments: &DescribeArguments) -> Result<Code, CommandFailure> {
    let documents = Input::read(&global.files)?.documents()?;
    let there: BTreeSet<String> = documents.hypervisors.keys().map(ToString::to_string).collect();
    if let Some(missing) = arguments.names.iter().find(|name| !there.contains(*name)) {
        return Err(missing_document_error("Hypervisor", missing, &there));
    }
    let is_wanted = |name: &str| arguments.names.is_empty() || arguments.names.iter().any(|wanted| wanted == name);
    let now = Timestamp::now();
    let mut texts = Vec::new();
    for (name, machine) in documents.hypervisors.iter().filter(|(name, _)| is_wanted(name.as_str())) {
        let mut text = Description::of(&documents, name, machine, now).text();
        if arguments.show_events {
            text += &happened(runtime()?.block_on(events::of_machine(&documents, name, machine)));
        }
        texts.push(text);
    }
    print(&texts.join("\n\n"))?;
    Ok(Code::Done)
}

/// The number of events that are shown.
const SHOWN: usize = 20;

fn happened(events: Result<Vec<EventView>, String>) -> String {
    match events {
        Err(why) => section("Events", &format!("<unknown>: {why}\n")),
        Ok(events) if events.is_empty() => section("Events", "<none>\n"),
        Ok(events) => {
            let rows = events.iter().rev().take(SHOWN).rev().map(TableRow::cells);
            section("Events", &rows_of(EventView::HEADER.get(..EventView::NARROW).unwrap_or_default(), rows))
        }
    }
}

/// One machine as its documents describe it.
struct Description<'a> {
    documents: &'a Documents,
    name: &'a HypervisorName,
    machine: &'a Hypervisor,
    status: HypervisorStatus,
    now: Timestamp,
}

impl<'a> Description<'a> {
    fn of(documents: &'a Documents, name: &'a HypervisorName, machine: &'a Hypervisor, now: Timestamp) -> Self {
        Self { documents, name, machine, status: machine.status.clone().unwrap_or_default(), now }
    }

    fn text(&self) -> String {
        let parts = [
            self.head(),
            section("Conditions", &self.conditions()),
            section("Addresses", &self.addresses()),
            section("System Info", &self.system()),
            section("Capacity", &self.capacity()),
            section("Components", &self.components()),
            section("Certificates", &self.certificates()),
        ];
        parts.concat()
    }

    fn head(&self) -> String {
        let spec = &self.machine.spec;
        let labels = self.machine.metadata.labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
        let created = self.machine.metadata.creation_timestamp.as_ref();
        let issued = self.status.issued.as_ref();
        let applied = self.status.applied.as_ref();
        let number = |config: Option<&Applied>| {
            config.map_or_else(none, |config| format!("{}.{}", config.term, config.generation))
        };
        pairs([
            ("Name", self.name.to_string()),
            ("Role", format!("{:?}", spec.role)),
            ("Labels", listed(labels)),
            ("Created", self.moment(created)),
            ("Last Heartbeat", self.moment(self.status.last_heartbeat_time.as_ref())),
            ("Endpoint", endpoint(spec.endpoint.way())),
            ("Ports", format!("{}-{}", spec.port_range.from, spec.port_range.to)),
            ("Unschedulable", (spec.unschedulable || spec.drain).to_string()),
            ("Drain", spec.drain.to_string()),
            ("Installation", self.status.installation.as_ref().map_or_else(none, ToString::to_string)),
            ("Config", format!("{} applied, {} issued", number(applied), number(issued))),
        ])
    }

    fn moment(&self, time: Option<&Time>) -> String {
        time.map_or_else(|| "<unknown>".to_owned(), |moment| format!("{} ({} ago)", moment.0, age(time, self.now)))
    }

    fn conditions(&self) -> String {
        let rows = self.status.conditions.iter().map(|condition| {
            let since = age(Some(&condition.last_transition_time), self.now);
            vec![
                condition.type_.clone(),
                condition.status.clone(),
                since,
                condition.reason.clone(),
                condition.message.clone(),
            ]
        });
        rows_of(&["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], rows)
    }

    fn addresses(&self) -> String {
        let addresses = &self.machine.spec.addresses;
        let of = |addresses: &[String]| listed(addresses.iter().cloned());
        let (private, public) = (of(&addresses.private), of(&addresses.public));
        if addresses.bind.is_empty() {
            return pairs([("Private", private), ("Public", public)]);
        }
        pairs([("Private", private), ("Public", public), ("Bind", of(&addresses.bind))])
    }

    fn system(&self) -> String {
        let Some(info) = self.status.node_info.clone() else { return none() + "\n" };
        pairs([
            ("OS Image", info.os_image),
            ("Kernel Version", info.kernel_version),
            ("Architecture", info.architecture),
            ("Container Runtime Version", info.container_runtime_version),
            ("Agent Version", info.agent_version.unwrap_or_else(none)),
        ])
    }

    /// Returns the capacity of the machine, what is allocatable, what components request, and what is left.
    fn capacity(&self) -> String {
        let allocation = Allocation::of(self.documents, self.name, &self.status);
        let of = |quantities: Option<&Quantities>| quantities.and_then(Quantities::amount);
        let amounts =
            [of(self.status.capacity.as_ref()), allocation.allocatable, Some(allocation.requests), allocation.left()];
        let cpu = amounts.map(|amount| amount.map_or_else(none, |amount| format!("{}m", amount.cpu_millis)));
        let memory = amounts.map(|amount| amount.map_or_else(none, |amount| size(amount.memory_bytes)));
        let disk = allocation.disk;
        let of_disk = |of: fn(keelway_api::machine::Disk) -> u64| disk.map_or_else(none, |disk| size(of(disk)));
        let used = of_disk(|disk| disk.capacity_bytes.saturating_sub(disk.available_bytes));
        let disk = [of_disk(|disk| disk.capacity_bytes), none(), used, of_disk(|disk| disk.available_bytes)];
        let rows = [("cpu", cpu), ("memory", memory), ("disk", disk)];
        let rows = rows.map(|(name, cells)| [vec![name.to_owned()], cells.to_vec()].concat());
        rows_of(&["RESOURCE", "CAPACITY", "ALLOCATABLE", "USED", "LEFT"], rows)
    }

    fn components(&self) -> String {
        let here = self.documents.components.iter().filter(|(_, component)| component.spec.hypervisor == *self.name);
        let rows = here.map(|(pod, component)| component_row(pod, component));
        rows_of(&["COMPONENT", "READY", "VERSION", "CPU", "MEMORY", "MESSAGE"], rows)
    }

    /// Returns the certificates of its agent, if the documents contain them.
    fn certificates(&self) -> String {
        let identity = self.status.installation.as_ref().map(|id| agent_identity(id, self.name));
        let rows = identity.into_iter().filter_map(|identity| {
            let secret = self.documents.secrets.get(&identity.secret)?;
            let pem = secret.data.as_ref()?.get(&format!("{}.crt", identity.name))?;
            let facts = CertificateFacts::from_pem(std::str::from_utf8(&pem.0).ok()?).ok()?;
            let validity = facts.validity;
            Some(vec![
                identity.secret.name,
                facts.common_name.unwrap_or_default(),
                validity.renew_at().to_string(),
                validity.not_after().to_string(),
            ])
        });
        rows_of(&["SECRET", "COMMON NAME", "RENEWAL", "EXPIRY"], rows)
    }
}

fn component_row(pod: &PodName, component: &Component) -> Vec<String> {
    let conditions = component.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let requests = component.spec.role.row().requests;
    vec![
        title(pod, component),
        status_of(conditions, "Ready"),
        component.spec.version.clone(),
        format!("{}m", requests.cpu_millis),
        size(requests.memory_bytes),
        message_of(conditions, "Ready"),
    ]
}

fn endpoint(way: MachineTransport<'_>) -> String {
    match way {
        MachineTransport::Runtime(path) => format!("container runtime at {path}"),
        MachineTransport::Agent(path) => format!("agent at {path}"),
        MachineTransport::Network(AgentNetworkAddress { address, via }) => match (address, via) {
            (Some(address), None) => format!("agent at {address}"),
            (Some(address), Some(via)) => format!("agent at {address}, through the agent of {via}"),
            (None, via) => format!("agent that connects to the agent of {}", via.unwrap_or_default()),
        },
        MachineTransport::Cri(cri) => format!("agent, started through the proxy at {}", cri.address),
    }
}

fn none() -> String {
    "<none>".to_owned()
}

fn listed(texts: impl Iterator<Item = String>) -> String {
    let text = texts.collect::<Vec<_>>().join(", ");
    if text.is_empty() { none() } else { text }
}

/// Formats lines `Name:   value` with aligned values.
fn pairs<const N: usize>(pairs: [(&str, String); N]) -> String {
    let widest = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default() + 1;
    let lines = pairs.map(|(name, value)| format!("{:widest$}   {value}\n", format!("{name}:")));
    lines.concat()
}

/// Returns a table with this header, or `<none>` if there are no rows.
fn rows_of(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = TextTable::new(header);
    let mut count = 0;
    for mut row in rows {
        row.truncate(header.len());
        table.row(row);
        count += 1;
    }
    if count == 0 { none() + "\n" } else { table.render(None) }
}

/// Indents lines under a title.
fn section(title: &str, lines: &str) -> String {
    let indented: Vec<String> = lines.lines().map(|line| format!("  {line}\n")).collect();
    format!("{title}:\n{}", indented.concat())
}
