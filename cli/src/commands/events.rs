//! `keelway events`.

use std::{io::Write, path::Path, pin::Pin, time::Duration};

use clap::Args;
use futures::{
    Stream, StreamExt, TryStreamExt,
    future::join_all,
    stream::{self, select_all},
};
use keelway_agent_api::client::HypervisorAgentClient;
use keelway_api::{
    Documents, Hypervisor,
    hypervisor::MachineTransport,
    jiff::Timestamp,
    machine::{CLUSTER_LABEL, COMPONENT_LABEL, MachineEvent, event::reason},
    name::{ClusterId, HypervisorName, PodName},
};
use keelway_base::error_chain::chain_text;
use keelway_cri::ContainerStatus;
use keelway_reconciler::{agent_channel, reach::ReachedMachine};

use super::{
    named::{missing_document_error, title},
    print,
    session::runtime,
};
use crate::{
    args::{GlobalArguments, OutputFormat},
    exit::{Code, CommandFailure},
    input::Input,
    view::{EventView, TableRow, list, table},
};

#[derive(Args)]
pub(crate) struct EventsArguments {
    /// A cluster or a hypervisor [default: all]
    #[arg(value_name = "CLUSTER|HYPERVISOR")]
    pub(crate) of: Option<String>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
    /// Watch for new events
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// The time within which a machine must begin its response.
const ANSWER: Duration = Duration::from_secs(10);

type EventStream = Pin<Box<dyn Stream<Item = Result<MachineEvent, String>> + Send>>;

pub(super) fn run(global: &GlobalArguments, arguments: &EventsArguments) -> Result<Code, CommandFailure> {
    let documents = Input::read(&global.files)?.documents()?;
    let wanted = EventFilter::of(&documents, arguments.of.as_deref())?;
    runtime()?.block_on(async {
        let known = past_events(&documents, &wanted, global).await?;
        show(&known, arguments.output)?;
        if arguments.watch { watch(&documents, &wanted, arguments.output).await } else { Ok(Code::Done) }
    })
}

/// Selects events by machine or cluster.
struct EventFilter {
    machine: Option<HypervisorName>,
    cluster: Option<ClusterId>,
}

impl EventFilter {
    fn of(documents: &Documents, name: Option<&str>) -> Result<Self, CommandFailure> {
        let Some(name) = name else { return Ok(Self { machine: None, cluster: None }) };
        if let Some(machine) = documents.hypervisors.keys().find(|machine| machine.as_str() == name) {
            return Ok(Self { machine: Some(machine.clone()), cluster: None });
        }
        let cluster = documents.clusters.iter().find(|(reference, _)| reference.to_string() == name);
        let Some((_, cluster)) = cluster else {
            let clusters = documents.clusters.keys().map(ToString::to_string);
            let there = clusters.chain(documents.hypervisors.keys().map(ToString::to_string)).collect();
            return Err(missing_document_error("Cluster or Hypervisor", name, &there));
        };
        let not_yet = || {
            CommandFailure::usage(
                format!("cluster {name} has not been created yet"),
                "create it first: keelway reconcile",
            )
        };
        Ok(Self { machine: None, cluster: Some(cluster.id().ok_or_else(not_yet)?.clone()) })
    }

    fn machines<'a>(&self, documents: &'a Documents) -> impl Iterator<Item = (&'a HypervisorName, &'a Hypervisor)> {
        let wanted = |name| self.machine.as_ref().is_none_or(|wanted| wanted == name);
        let machines = documents.hypervisors.iter().filter(move |(name, _)| wanted(*name));
        machines.map(|(name, machine)| (name, &**machine))
    }

    fn has(&self, event: &MachineEvent) -> bool {
        let of = event.pod.as_ref().map(|pod| &pod.cluster);
        self.cluster.is_none() || of == self.cluster.as_ref()
    }
}

/// Returns past events of all machines that respond, and reports the others.
async fn past_events(
    documents: &Documents,
    wanted: &EventFilter,
    global: &GlobalArguments,
) -> Result<Vec<EventView>, CommandFailure> {
    let asked = join_all(wanted.machines(documents).map(|(name, machine)| async move {
        let events = events(documents, machine, false).await?.try_collect::<Vec<_>>().await?;
        Ok::<_, String>((name, events))
    }));
    let (mut views, mut answered, mut silent) = (Vec::new(), 0, Vec::new());
    for ((name, _), answer) in wanted.machines(documents).zip(asked.await) {
        match answer {
            Ok((name, events)) => {
                answered += 1;
                let of_machine = events.into_iter().filter(|event| wanted.has(event));
                views.extend(of_machine.map(|event| view(documents, name, event)));
            }
            Err(why) => silent.push(format!("cannot get the events of {name}: {why}")),
        }
    }
    if answered == 0 && !silent.is_empty() {
        return Err(CommandFailure::other(anyhow::anyhow!(silent.join("\n"))));
    }
    for line in silent.iter().filter(|_| !global.quiet) {
        let _ = writeln!(std::io::stderr(), "warning: {line}");
    }
    views.sort_by_key(|view| view.event.last);
    Ok(views)
}

/// Returns past events of one machine, the newest last.
pub(super) async fn of_machine(
    documents: &Documents,
    name: &HypervisorName,
    machine: &Hypervisor,
) -> Result<Vec<EventView>, String> {
    let found = events(documents, machine, false).await?.try_collect::<Vec<_>>().await?;
    let mut views: Vec<EventView> = found.into_iter().map(|event| view(documents, name, event)).collect();
    views.sort_by_key(|view| view.event.last);
    Ok(views)
}

/// Prints events from now on, until it is interrupted or all streams have ended.
async fn watch(documents: &Documents, wanted: &EventFilter, output: OutputFormat) -> Result<Code, CommandFailure> {
    let begun = Timestamp::now();
    let mut all = Vec::new();
    for (name, machine) in wanted.machines(documents).filter(|(_, machine)| machine.spec.endpoint.has_agent()) {
        if let Ok(events) = events(documents, machine, true).await {
            all.push(events.map(move |event| (name, event)).boxed());
        }
    }
    let mut all = select_all(all);
    while let Some((name, event)) = all.next().await {
        // A stream that fails is dropped.
        let Ok(event) = event else { continue };
        if event.last >= begun && wanted.has(&event) {
            print(&line(&view(documents, name, event), output)?)?;
        }
    }
    Ok(Code::Done)
}

async fn events(documents: &Documents, machine: &Hypervisor, follow: bool) -> Result<EventStream, String> {
    let agent = match machine.spec.endpoint.way() {
        MachineTransport::Runtime(socket) => {
            return of_runtime(async { Ok(ReachedMachine::on_runtime_socket(Path::new(socket)).await?) }).await;
        }
        MachineTransport::Agent(socket) => HypervisorAgentClient::on_socket(Path::new(socket)),
        MachineTransport::Network(_) | MachineTransport::Cri(_) => {
            HypervisorAgentClient::on_channel(agent_channel(documents, machine).map_err(|error| chain_text(&error))?)
        }
    };
    let events = agent.events(follow, ANSWER).await.map_err(|error| chain_text(&error))?;
    Ok(events.map_err(|error| chain_text(&error)).boxed())
}

/// Without an agent, the runtime is the only source: it has the times of the containers that exist.
async fn of_runtime(reached: impl Future<Output = anyhow::Result<ReachedMachine>>) -> Result<EventStream, String> {
    let look = async { Ok::<_, anyhow::Error>(reached.await?.containers().await?) };
    let found =
        tokio::time::timeout(ANSWER, look).await.map_err(|_| "the container runtime does not respond".to_owned())?;
    let found = found.map_err(|error| format!("{error:#}"))?;
    Ok(stream::iter(found.iter().flat_map(of_container).map(Ok).collect::<Vec<_>>()).boxed())
}

/// Returns the start and the end of a container as events.
fn of_container(container: &ContainerStatus) -> Vec<MachineEvent> {
    let label = |name| container.labels.get(name);
    let pod = || {
        let (cluster, component) = (label(CLUSTER_LABEL)?, label(COMPONENT_LABEL)?);
        Some(PodName { cluster: cluster.parse().ok()?, component: component.parse().ok()? })
    };
    let name = &container.name;
    let event = |moment, (warning, reason): (bool, &str), message| {
        let moment = Timestamp::try_from(moment).ok()?;
        Some(MachineEvent {
            pod: pod(),
            container: name.clone(),
            warning,
            reason: reason.to_owned(),
            message,
            count: 1,
            first: moment,
            last: moment,
        })
    };
    let started = container
        .started
        .and_then(|moment| event(moment, (false, reason::STARTED), format!("started container {name}")));
    let ended = container.exit.as_ref().and_then(|exit| {
        let reason = if exit.reason == reason::OOM_KILLED { reason::OOM_KILLED } else { reason::EXITED };
        event(exit.finished, (exit.code != 0, reason), format!("container {name} exited with code {}", exit.code))
    });
    started.into_iter().chain(ended).collect()
}

fn view(documents: &Documents, machine: &HypervisorName, event: MachineEvent) -> EventView {
    let object = match &event.pod {
        None => machine.to_string(),
        Some(pod) => documents.components.get(pod).map_or_else(|| pod.to_string(), |found| title(pod, found)),
    };
    EventView { hypervisor: machine.to_string(), object, event, now: Timestamp::now() }
}

fn show(views: &[EventView], output: OutputFormat) -> Result<(), CommandFailure> {
    let list = || list(&views.iter().map(EventView::json).collect::<Vec<_>>());
    let text = match output {
        OutputFormat::Table | OutputFormat::Wide if views.is_empty() => {
            let _ = writeln!(std::io::stderr(), "No events found.");
            String::new()
        }
        OutputFormat::Table => table(views, false),
        OutputFormat::Wide => table(views, true),
        OutputFormat::Json => serde_json::to_string_pretty(&list()).map_err(CommandFailure::other)? + "\n",
        OutputFormat::Yaml => serde_saphyr::to_string(&list()).map_err(CommandFailure::other)?,
        OutputFormat::Name => {
            views.iter().flat_map(|view| ["event/".to_owned(), view.name(), "\n".to_owned()]).collect()
        }
    };
    print(&text)
}

/// Formats a single event of a watch.
fn line(view: &EventView, output: OutputFormat) -> Result<String, CommandFailure> {
    Ok(match output {
        OutputFormat::Table => view.cells().get(..EventView::NARROW).unwrap_or_default().join("   ") + "\n",
        OutputFormat::Wide => view.cells().join("   ") + "\n",
        OutputFormat::Json => format!("{}\n", view.json()),
        OutputFormat::Yaml => {
            "---\n".to_owned() + &serde_saphyr::to_string(&view.json()).map_err(CommandFailure::other)?
        }
        OutputFormat::Name => format!("event/{}\n", view.name()),
    })
}
