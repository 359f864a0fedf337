//! `keelway plan`.

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
};

use clap::Args;
use keelway_api::{Cluster, Documents, Observation, Shared, name::ClusterRef, sleep::SleepPhase};
use keelway_machine::action::Action;
use keelway_reconciler::{PlanPreview, preview, preview_offline};

use super::{
    print,
    session::{self, PipeSession, runtime_of_passes},
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct PlanArguments {
    /// Plan from this Observation, as of its time, without connecting to machines
    #[arg(long, value_name = "OBSERVATION")]
    pub(crate) offline: Option<PathBuf>,
    /// Exit with 4 if there is something to do
    #[arg(long)]
    pub(crate) exit_code: bool,
}

pub(super) fn run(global: &GlobalArguments, arguments: &PlanArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let preview = match &arguments.offline {
        Some(file) => offline(&input, file)?,
        None => online(global, &input)?,
    };
    print(&render(&preview))?;
    Ok(if arguments.exit_code && !preview.settled() { Code::SomethingToDo } else { Code::Done })
}

fn online(global: &GlobalArguments, input: &Input) -> Result<PlanPreview, CommandFailure> {
    let mut session = PipeSession::new(global, input.world()?);
    let preview = runtime_of_passes()?.block_on(preview(&session.context, &mut session.minter));
    drop(session.context);
    preview.map_err(CommandFailure::other)
}

/// Plans without connections. The time of the observation decides which certificates are valid.
fn offline(input: &Input, file: &Path) -> Result<PlanPreview, CommandFailure> {
    let recorded = Input::read(&[file.to_owned()])?;
    let observation = Observation::read(&recorded.bytes).map_err(|faults| CommandFailure::faults(faults, &recorded))?;
    let documents = input.world()?;
    preview_offline(&documents, observation, &mut session::minter()).map_err(CommandFailure::other)
}

/// Renders lists with headings, in the order in which a pass works.
fn render(preview: &PlanPreview) -> String {
    let mut text = String::new();
    let clusters = |is_named: fn(&Cluster) -> bool| {
        let named = preview.plan.documents.clusters.iter().filter(move |(_, cluster)| is_named(cluster));
        named.map(|(name, _)| name.to_string())
    };
    let paused = clusters(|cluster| cluster.spec.paused);
    let asleep = clusters(|cluster| cluster.sleep_phase() == Some(SleepPhase::Asleep));
    if preview.settled() {
        text.push_str("Nothing to do: the machines match the documents.\n");
        section(&mut text, "Paused", paused);
        section(&mut text, "Asleep", asleep);
        return text;
    }
    let names = ClusterNames::of(&preview.plan.documents);
    section(&mut text, "Decisions", preview.plan.decisions.iter().map(ToString::to_string));
    let keys = preview.plan.mint.iter();
    section(
        &mut text,
        "Keys",
        keys.map(|wanted| format!("{}: {wanted}", names.of_namespace(&wanted.secret().namespace))),
    );
    let agents = preview.plan.agents.iter();
    section(&mut text, "Agents", agents.map(|(machine, order)| format!("{machine}: {order}")));
    for (machine, refused) in &preview.refused {
        section(&mut text, &format!("On {machine}"), std::iter::once(format!("refused: {refused}")));
    }
    for (machine, actions) in &preview.machines {
        match actions {
            Ok(actions) => {
                section(&mut text, &format!("On {machine}"), actions.iter().map(|action| names.action(action)));
            }
            Err(refusal) => {
                section(&mut text, &format!("On {machine}"), std::iter::once(format!("refused: {refusal}")));
            }
        }
    }
    let bindings = preview.plan.bindings.iter();
    let bindings = bindings.map(|id| format!("{}: apply the first role bindings", names.of_namespace(&id.namespace())));
    section(&mut text, "In clusters", bindings);
    let stores = preview.plan.stores.iter();
    let stores = stores.map(|(id, order)| format!("{}: {order}", names.of_namespace(&id.namespace())));
    section(&mut text, "In stores", stores);
    section(&mut text, "Upgrades", preview.upgrades.iter().map(ToString::to_string));
    section(&mut text, "Paused", paused);
    section(&mut text, "Asleep", asleep);
    section(&mut text, "Waiting", preview.plan.waiting.iter().map(ToString::to_string));
    text
}

/// The names of clusters, by the namespace of their documents.
struct ClusterNames<'a>(BTreeMap<String, &'a ClusterRef>);

impl<'a> ClusterNames<'a> {
    fn of(documents: &'a Documents) -> Self {
        let named = |(name, cluster): (&'a ClusterRef, &Shared<Cluster>)| Some((cluster.id()?.namespace(), name));
        Self(documents.clusters.iter().filter_map(named).collect())
    }

    /// Returns the name of a cluster, or its id if the documents do not contain it.
    fn of_namespace(&self, namespace: &str) -> String {
        let id = || namespace.trim_start_matches("keelway-").to_owned();
        self.0.get(namespace).map_or_else(id, ToString::to_string)
    }

    /// Returns an action with its component.
    fn action(&self, action: &Action) -> String {
        match action.pod() {
            Some(pod) => format!("{}/{}: {action}", self.of_namespace(&pod.cluster.namespace()), pod.component),
            None => action.to_string(),
        }
    }
}

fn section(text: &mut String, heading: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{heading}:");
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}
