//! `keelway fleet diff`: what policies would move, before they are applied.

mod documents;

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use http::{Method, Request, header::CONTENT_TYPE};
use keelway_fleet::{DecidedPlacement, FleetDocuments, PlacedCluster, PlacementChange, PolicySet, SchedulePolicy};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::{
    fleet_api::{FLEET_API, FleetArgument, list_all},
    print,
    session::runtime,
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
    table::TextTable,
    terminal,
};

const RESOURCE: &str = "/apis/fleet.keelway.dev/v1alpha1/schedulepolicies";

#[derive(Args)]
pub(crate) struct FleetDiffArguments {
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

pub(super) fn run(global: &GlobalArguments, arguments: &FleetDiffArguments) -> Result<Code, CommandFailure> {
    let written = read(&Input::read(&global.files)?)?;
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

/// Reads policies, by name. Reports everything that is not a policy.
fn read(input: &Input) -> Result<BTreeMap<String, Value>, CommandFailure> {
    let unfit = |problem| CommandFailure::usage(problem, "pass SchedulePolicies only, with -f FILE or on stdin");
    let text = str::from_utf8(&input.bytes).map_err(|error| unfit(format!("{}: {error}", input.name)))?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| unfit(format!("{}: not YAML: {error}", input.name)))?;
    policies(documents).map_err(|faults| {
        unfit(faults.iter().map(|fault| format!("{}: {fault}", input.name)).collect::<Vec<_>>().join("\n"))
    })
}

fn policies(documents: Vec<Value>) -> Result<BTreeMap<String, Value>, Vec<String>> {
    let (mut policies, mut faults) = (BTreeMap::new(), Vec::new());
    for (index, document) in documents.into_iter().enumerate().filter(|(_, document)| !document.is_null()) {
        let is_policy = document["apiVersion"] == FLEET_API && document["kind"] == "SchedulePolicy";
        let fault = match document["metadata"]["name"].as_str().map(str::to_owned) {
            _ if !is_policy => format!("not a SchedulePolicy of {FLEET_API}"),
            None => "metadata.name is missing".to_owned(),
            Some(name) if policies.contains_key(&name) => format!("the SchedulePolicy {name} stands twice"),
            Some(name) => {
                policies.insert(name, document);
                continue;
            }
        };
        faults.push(format!("document {}: {fault}", index + 1));
    }
    if policies.is_empty() && faults.is_empty() {
        faults.push("no SchedulePolicy".to_owned());
    }
    if faults.is_empty() { Ok(policies) } else { Err(faults) }
}

async fn changes(client: &Client, written: &BTreeMap<String, Value>) -> Result<Vec<PlacementChange>, CommandFailure> {
    let policies = list_all(&Api::<SchedulePolicy>::all(client.clone())).await.map_err(CommandFailure::other)?;
    let mut after: BTreeMap<String, SchedulePolicy> =
        policies.iter().map(|policy| (policy.name_any(), policy.clone())).collect();
    let mut faults = Vec::new();
    for (name, policy) in written {
        match dry_run(client, policy, after.get(name)).await {
            Ok(policy) => drop(after.insert(name.clone(), policy)),
            // What the API server says about the policy. Everything else is a failure of the request.
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                faults.push(format!("SchedulePolicy {name}: {}", status.message));
            }
            Err(error) => return Err(CommandFailure::other(error)),
        }
    }
    if !faults.is_empty() {
        return Err(CommandFailure::usage(faults.join("\n"), "correct the policies"));
    }
    let (before, after) = (PolicySet::read(policies), PolicySet::read(after.into_values()));
    let unreadable: Vec<String> = after
        .unreadable()
        .iter()
        .map(|(name, error)| format!("this release does not understand the SchedulePolicy {name}: {error}"))
        .collect();
    if !unreadable.is_empty() {
        let help = "upgrade keelway; a fleet decides nothing while it has such a policy";
        return Err(CommandFailure::usage(unreadable.join("\n"), help));
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
    let mut table = TextTable::new(&["NAMESPACE", "OBJECT", "BEFORE", "AFTER", "WHY"]);
    for PlacementChange { object, before, after } in changes {
        let group = if object.group.is_empty() { String::new() } else { format!(".{}", object.group) };
        let (now, then) = (listed(before), listed(after));
        let then = if now == then { format!("{then} (other overrides)") } else { then };
        table.row(vec![
            object.namespace.clone().unwrap_or_default(),
            format!("{}{group}/{}", object.kind.to_lowercase(), object.name),
            now,
            then,
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
    let one = |cluster: &PlacedCluster| match cluster.replicas {
        Some(replicas) => format!("{}: {replicas}", cluster.name),
        None => cluster.name.clone(),
    };
    placement.clusters.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the reason of the first cluster that the object leaves, or else of the first that differs.
fn why(before: &DecidedPlacement, after: &DecidedPlacement) -> String {
    fn placed<'a>(placement: &'a DecidedPlacement, name: &str) -> Option<&'a PlacedCluster> {
        placement.clusters.iter().find(|cluster| cluster.name == name)
    }
    let mut differing =
        after.reasons.iter().filter(|reason| placed(before, &reason.cluster) != placed(after, &reason.cluster));
    let left = differing.clone().find(|reason| placed(after, &reason.cluster).is_none());
    let reason = left.or_else(|| differing.next());
    reason.map_or_else(String::new, |reason| format!("{}: {}", reason.cluster, reason.message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn placement(clusters: &Value) -> DecidedPlacement {
        let reason =
            |cluster: &str| json!({ "cluster": cluster, "reason": "R", "message": format!("because of {cluster}") });
        let (clusters, reasons) = (clusters.clone(), json!(["east", "north", "west"].map(reason)));
        DecidedPlacement {
            policy: None,
            clusters: serde_json::from_value(clusters).unwrap(),
            reasons: serde_json::from_value(reasons).unwrap(),
        }
    }

    fn line(before: &Value, after: &Value) -> String {
        let object =
            json!({ "group": "apps", "version": "v1", "kind": "Deployment", "namespace": "shop", "name": "web" });
        let (before, after) = (placement(before), placement(after));
        let change = PlacementChange { object: serde_json::from_value(object).unwrap(), before, after };
        let text = table(&[change]);
        let cells = text.lines().nth(1).unwrap().split("   ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.skip(2).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn a_line_names_the_clusters_and_the_first_reason_that_differs() {
        let (west, east) = (json!([{ "name": "west" }]), json!([{ "name": "east" }]));
        assert_eq!(line(&west, &east), "west|east|west: because of west");
        assert_eq!(line(&json!([]), &east), "<none>|east|east: because of east");
        let divided = |east, west| json!([{ "name": "east", "replicas": east }, { "name": "west", "replicas": west }]);
        assert_eq!(line(&divided(1, 3), &divided(1, 4)), "east: 1, west: 3|east: 1, west: 4|west: because of west");
        let overrides = json!([{ "name": "west", "overrides": [{ "fieldPath": "a", "value": { "staticValue": 1 } }] }]);
        assert_eq!(line(&west, &overrides), "west|west (other overrides)|west: because of west");
        assert_eq!(table(&[]), "No object would run elsewhere.\n");
    }

    #[test]
    fn each_document_that_is_no_policy_is_a_fault() {
        let policy =
            |name: &str| json!({ "apiVersion": FLEET_API, "kind": "SchedulePolicy", "metadata": { "name": name } });
        let read = policies(vec![policy("a"), Value::Null, policy("b")]).unwrap();
        assert_eq!(read.into_keys().collect::<Vec<_>>(), ["a", "b"]);
        let unnamed = json!({ "apiVersion": FLEET_API, "kind": "SchedulePolicy" });
        assert_eq!(
            policies(vec![policy("a"), policy("a"), json!({ "kind": "Pod" }), unnamed]).unwrap_err(),
            [
                "document 2: the SchedulePolicy a stands twice",
                "document 3: not a SchedulePolicy of fleet.keelway.dev/v1alpha1",
                "document 4: metadata.name is missing",
            ]
        );
        assert_eq!(policies(vec![]).unwrap_err(), ["no SchedulePolicy"]);
    }
}
