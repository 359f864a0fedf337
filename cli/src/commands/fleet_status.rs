//! `keelway fleet status`.

use clap::{Args, ValueEnum};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use keelway_api::{condition, jiff::Timestamp};
use keelway_fleet::{
    CLUSTER_READY, PodKindError, PodKinds, SchedulePolicy, WorkloadCluster,
    names::{CONTROLLER_FIELD_MANAGER, POD_KINDS},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde::Serialize;

use super::{fleet_api::FleetArgument, print, session::runtime};
use crate::exit::{Code, CommandFailure};

/// A controller renews its Lease every five seconds. Clocks may differ by the rest.
const RENEWED_WITHIN: i64 = 120;

#[derive(Args)]
pub(crate) struct FleetStatusArguments {
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: CheckOutput,
    #[command(flatten)]
    pub(crate) fleet: FleetArgument,
}

/// The output format of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckOutput {
    /// One line for each check
    Table,
    /// A list in JSON
    Json,
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckOutcome {
    Ok,
    Warning,
    Failed,
}

/// A check of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct FleetCheck {
    outcome: CheckOutcome,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

impl FleetCheck {
    fn new(outcome: CheckOutcome, message: impl Into<String>, help: &str) -> Self {
        let help = (outcome != CheckOutcome::Ok && !help.is_empty()).then(|| help.to_owned());
        Self { outcome, message: message.into(), help }
    }

    fn line(&self) -> String {
        let mark = match self.outcome {
            CheckOutcome::Ok => "ok      ",
            CheckOutcome::Warning => "warning ",
            CheckOutcome::Failed => "failed  ",
        };
        let help = self.help.as_ref().map(|help| format!("        {help}\n")).unwrap_or_default();
        format!("{mark}{}\n{help}", self.message)
    }
}

pub(super) fn run(arguments: &FleetStatusArguments) -> Result<Code, CommandFailure> {
    let checks = runtime()?.block_on(async {
        let (client, server) = arguments.fleet.client().await?;
        Ok::<_, CommandFailure>(check(&client, &server, Timestamp::now()).await)
    })?;
    let text = match arguments.output {
        CheckOutput::Table => checks.iter().map(FleetCheck::line).collect(),
        CheckOutput::Json => serde_json::to_string_pretty(&checks).map_err(CommandFailure::other)? + "\n",
    };
    print(&text)?;
    let has_failed = checks.iter().any(|check| check.outcome == CheckOutcome::Failed);
    Ok(if has_failed { Code::Failed } else { Code::Done })
}

/// Makes all checks. Those that rely on one that failed are left out.
async fn check(client: &Client, server: &str, now: Timestamp) -> Vec<FleetCheck> {
    let api = api_server(client, server).await;
    let is_there = api.outcome == CheckOutcome::Ok;
    let mut checks = vec![api];
    if !is_there {
        return checks;
    }
    checks.push(controller(client, now).await);
    match Api::<WorkloadCluster>::all(client.clone()).list(&ListParams::default()).await {
        Ok(list) => checks.extend(clusters(&list.items)),
        Err(error) => checks.push(kind_failure("Cluster", &error)),
    }
    match Api::<SchedulePolicy>::all(client.clone()).list(&ListParams::default()).await {
        Ok(list) => checks.push(policies(list.items.len())),
        Err(error) => checks.push(kind_failure("SchedulePolicy", &error)),
    }
    checks.extend(pod_kinds(client).await);
    checks
}

/// Checks the table of kinds with pods, if there is one.
async fn pod_kinds(client: &Client) -> Vec<FleetCheck> {
    let table = match Api::<ConfigMap>::namespaced(client.clone(), "kube-system").get_opt(POD_KINDS).await {
        Ok(table) => table.and_then(|table| table.data).unwrap_or_default(),
        Err(error) => {
            let message = format!("cannot read the ConfigMap kube-system/{POD_KINDS}: {error}");
            return vec![FleetCheck::new(CheckOutcome::Warning, message, "")];
        }
    };
    let (_, errors) = PodKinds::with_rows(&table);
    let failed = |error: &PodKindError| {
        let message = format!("a row of the ConfigMap kube-system/{POD_KINDS} cannot be used: {error}");
        FleetCheck::new(
            CheckOutcome::Failed,
            message,
            "the row has no effect: objects of that kind need no room, or what the built-in row of the kind says",
        )
    };
    errors.iter().map(failed).collect()
}

async fn api_server(client: &Client, server: &str) -> FleetCheck {
    match client.apiserver_version().await {
        Ok(version) => {
            FleetCheck::new(CheckOutcome::Ok, format!("API server {server} responds ({})", version.git_version), "")
        }
        Err(error) => FleetCheck::new(
            CheckOutcome::Failed,
            format!("API server {server} does not respond: {error}"),
            "check the fleet's components: keelway status",
        ),
    }
}

async fn controller(client: &Client, now: Timestamp) -> FleetCheck {
    let help = "check that the fleet-controller runs: keelway component get";
    let leases = Api::<Lease>::namespaced(client.clone(), "kube-system");
    let lease = match leases.get_opt(CONTROLLER_FIELD_MANAGER).await {
        Ok(lease) => lease,
        Err(error) => {
            return FleetCheck::new(
                CheckOutcome::Failed,
                format!("cannot read the Lease of the fleet-controller: {error}"),
                help,
            );
        }
    };
    let spec = lease.and_then(|lease| lease.spec).unwrap_or_default();
    let age = spec.renew_time.map(|renewed| now.as_second().saturating_sub(renewed.0.as_second()));
    match (spec.holder_identity.filter(|holder| !holder.is_empty()), age) {
        (Some(holder), Some(age)) if age <= RENEWED_WITHIN => {
            FleetCheck::new(CheckOutcome::Ok, format!("fleet-controller {holder} works"), "")
        }
        (Some(holder), Some(age)) => FleetCheck::new(
            CheckOutcome::Failed,
            format!("fleet-controller {holder} renewed its Lease {age} s ago"),
            help,
        ),
        (_, _) => FleetCheck::new(CheckOutcome::Failed, "no fleet-controller works", help),
    }
}

fn clusters(found: &[WorkloadCluster]) -> Vec<FleetCheck> {
    if found.is_empty() {
        let help = "register one: keelway fleet token create --cluster-name NAME";
        return vec![FleetCheck::new(CheckOutcome::Warning, "0 workload clusters", help)];
    }
    found.iter().map(cluster).collect()
}

fn cluster(found: &WorkloadCluster) -> FleetCheck {
    let name = found.name_any();
    let conditions = found.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    if condition::is_true(conditions, CLUSTER_READY) {
        return FleetCheck::new(CheckOutcome::Ok, format!("workload cluster {name} is connected and ready"), "");
    }
    let ready = conditions.iter().find(|condition| condition.type_ == CLUSTER_READY);
    let help = ready.map_or("its controller has not reported it yet", |ready| ready.message.as_str());
    FleetCheck::new(CheckOutcome::Failed, format!("workload cluster {name} is not ready"), help)
}

fn policies(count: usize) -> FleetCheck {
    match count {
        0 => FleetCheck::new(
            CheckOutcome::Warning,
            "0 SchedulePolicies",
            "nothing is placed without one, or an annotation",
        ),
        count => FleetCheck::new(CheckOutcome::Ok, format!("{count} SchedulePolicies"), ""),
    }
}

fn kind_failure(kind: &str, error: &kube::Error) -> FleetCheck {
    let help = "the fleet-controller installs the kinds of a fleet; check that this is the kubeconfig of a fleet";
    FleetCheck::new(CheckOutcome::Failed, format!("cannot list objects of the kind {kind}: {error}"), help)
}
