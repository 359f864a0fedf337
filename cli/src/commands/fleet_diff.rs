//! `keelway fleet diff`: what policies would move, before they are applied.

mod documents;

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use http::{Method, Request, header::CONTENT_TYPE};
use keelway_fleet::{DecidedPlacement, FleetDocuments, PlacementChange, PolicySet, SchedulePolicy};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::Value;

use super::{
    fleet_api::{FleetArgument, read_or_stdin},
    note, print,
    session::runtime,
};
use crate::{
    exit::{Code, CommandFailure},
    table::TextTable,
    terminal,
};

const RESOURCE: &str = "/apis/fleet.keelway.dev/v1alpha1/schedulepolicies";

#[derive(Args)]
pub(crate) struct FleetDiffArguments {
    /// A file with SchedulePolicies; - is stdin. The flag can be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub(crate) filenames: Vec<String>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: DifferenceOutput,
    /// Exit with 4 if an object would run elsewhere
    #[arg(long)]
    pub(crate) exit_code: bool,
    #[command(flatten)]
    pub(crate) fleet: FleetArgument,
}

/// The output format of differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DifferenceOutput {
    /// A line for each object
    Table,
    /// The objects with both decisions and their reasons, in JSON
    Json,
}

pub(super) fn run(arguments: &FleetDiffArguments) -> Result<Code, CommandFailure> {
    let written = read(&arguments.filenames)?;
    let changes = runtime()?.block_on(async {
        let (client, _) = arguments.fleet.client().await?;
        changes(&client, &written).await
    })?;
    let text = match arguments.output {
        DifferenceOutput::Table => table(&changes),
        DifferenceOutput::Json => serde_json::to_string_pretty(&changes).map_err(CommandFailure::other)? + "\n",
    };
    print(&text)?;
    Ok(if arguments.exit_code && !changes.is_empty() { Code::SomethingToDo } else { Code::Done })
}

/// Reads the policies of all files. Reports everything that is not a policy.
fn read(files: &[String]) -> Result<BTreeMap<String, Value>, CommandFailure> {
    let (mut policies, mut faults) = (BTreeMap::new(), Vec::new());
    for file in files {
        let documents: Vec<Value> = match serde_saphyr::from_multiple(&read_or_stdin(file)?) {
            Ok(documents) => documents,
            Err(error) => {
                faults.push(format!("{file}: not YAML: {error}"));
                continue;
            }
        };
        for (index, document) in documents.into_iter().enumerate().filter(|(_, document)| !document.is_null()) {
            let kind = (document["apiVersion"].as_str(), document["kind"].as_str());
            let name = document["metadata"]["name"].as_str().map(str::to_owned);
            match (kind, name) {
                ((Some("fleet.keelway.dev/v1alpha1"), Some("SchedulePolicy")), Some(name)) => {
                    if policies.insert(name.clone(), document).is_some() {
                        faults.push(format!("{file}, document {}: the SchedulePolicy {name} stands twice", index + 1));
                    }
                }
                ((Some("fleet.keelway.dev/v1alpha1"), Some("SchedulePolicy")), None) => {
                    faults.push(format!("{file}, document {}: metadata.name is missing", index + 1));
                }
                (_, _) => {
                    faults.push(format!(
                        "{file}, document {}: not a SchedulePolicy of fleet.keelway.dev/v1alpha1",
                        index + 1
                    ));
                }
            }
        }
    }
    if policies.is_empty() && faults.is_empty() {
        faults.push("the files contain no SchedulePolicy".to_owned());
    }
    if faults.is_empty() {
        return Ok(policies);
    }
    Err(CommandFailure::usage(faults.join("\n"), "pass files with SchedulePolicies only"))
}

async fn changes(client: &Client, written: &BTreeMap<String, Value>) -> Result<Vec<PlacementChange>, CommandFailure> {
    let policies = Api::<SchedulePolicy>::all(client.clone());
    let policies = policies.list(&ListParams::default()).await.map_err(CommandFailure::other)?.items;
    let mut after: BTreeMap<String, SchedulePolicy> =
        policies.iter().map(|policy| (policy.name_any(), policy.clone())).collect();
    let mut faults = Vec::new();
    for (name, policy) in written {
        match dry_run(client, policy, after.get(name)).await {
            Ok(policy) => drop(after.insert(name.clone(), policy)),
            Err(error) => faults.push(format!("SchedulePolicy {name}: {error}")),
        }
    }
    if !faults.is_empty() {
        return Err(CommandFailure::usage(faults.join("\n"), "correct the policies"));
    }
    let (before, after) = (PolicySet::read(policies), PolicySet::read(after.into_values()));
    for (name, error) in after.unreadable() {
        note(&format!("this release does not understand the SchedulePolicy {name}, so nothing is decided: {error}"));
    }
    let documents: FleetDocuments = documents::read(client).await?;
    Ok(documents.changes(&before, &after))
}

/// Lets the API server check a policy, and add its defaults, without a write.
async fn dry_run(
    client: &Client,
    policy: &Value,
    current: Option<&SchedulePolicy>,
) -> Result<SchedulePolicy, kube::Error> {
    let mut policy = policy.clone();
    let (method, path) = match current {
        Some(current) => {
            policy["metadata"]["resourceVersion"] = Value::from(current.resource_version());
            (Method::PUT, format!("{RESOURCE}/{}", current.name_any()))
        }
        None => (Method::POST, RESOURCE.to_owned()),
    };
    let request = Request::builder()
        .method(method)
        .uri(format!("{path}?dryRun=All&fieldValidation=Strict"))
        .header(CONTENT_TYPE, "application/json")
        .body(policy.to_string().into_bytes())
        .map_err(|error| kube::Error::BuildRequest(kube::core::request::Error::BuildRequest(error)))?;
    client.request(request).await
}

fn table(changes: &[PlacementChange]) -> String {
    if changes.is_empty() {
        return "No object would run elsewhere.\n".to_owned();
    }
    let mut table = TextTable::new(&["NAMESPACE", "OBJECT", "NOW", "AFTER", "WHY"]);
    for PlacementChange { object, before, after } in changes {
        let group = if object.group.is_empty() { String::new() } else { format!(".{}", object.group) };
        table.row(vec![
            object.namespace.clone().unwrap_or_default(),
            format!("{}{group}/{}", object.kind.to_lowercase(), object.name),
            listed(before),
            if listed(before) == listed(after) {
                format!("{} (other overrides)", listed(after))
            } else {
                listed(after)
            },
            why(before, after),
        ]);
    }
    table.render(terminal::columns())
}

/// Returns the clusters of an object, with its replicas in each if they are divided.
fn listed(placement: &DecidedPlacement) -> String {
    if placement.clusters.is_empty() {
        return "<none>".to_owned();
    }
    let one = |cluster: &keelway_fleet::PlacedCluster| match cluster.replicas {
        Some(replicas) => format!("{}: {replicas}", cluster.name),
        None => cluster.name.clone(),
    };
    placement.clusters.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns why the object leaves the first cluster that it leaves, or else why it runs in the first one that is new.
fn why(before: &DecidedPlacement, after: &DecidedPlacement) -> String {
    let runs = |placement: &DecidedPlacement, name: &str| placement.clusters.iter().any(|cluster| cluster.name == name);
    let mut reasons = after.reasons.iter();
    let left = reasons.clone().find(|reason| runs(before, &reason.cluster) && !runs(after, &reason.cluster));
    let new = || reasons.clone().find(|reason| runs(after, &reason.cluster) && !runs(before, &reason.cluster));
    let reason = left.or_else(new).or_else(|| reasons.next());
    reason.map_or_else(String::new, |reason| format!("{}: {}", reason.cluster, reason.message))
}
