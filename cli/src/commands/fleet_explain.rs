//! `keelway fleet explain`.

use clap::{Args, ValueEnum};
use keelway_fleet::{PlacementExplanation, WorkloadCluster, WorkloadPlacement, WorkloadRef, names::FLEET_NAMESPACE};
use kube::{Api, Client, api::ListParams};

use super::{fleet_api::FleetArgument, print, session::runtime};
use crate::exit::{Code, CommandFailure};

/// Short names of kinds, as kubectl has them.
const SHORT: [(&str, &str); 12] = [
    ("cj", "cronjob"),
    ("cm", "configmap"),
    ("deploy", "deployment"),
    ("ds", "daemonset"),
    ("hpa", "horizontalpodautoscaler"),
    ("ing", "ingress"),
    ("ns", "namespace"),
    ("po", "pod"),
    ("pvc", "persistentvolumeclaim"),
    ("rs", "replicaset"),
    ("sts", "statefulset"),
    ("svc", "service"),
];

#[derive(Args)]
pub(crate) struct FleetExplainArguments {
    /// The object: KIND/NAME, or KIND.GROUP/NAME
    #[arg(value_name = "KIND/NAME")]
    pub(crate) object: String,
    /// The namespace of the object [default: that of the kubeconfig]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: ExplanationOutput,
    #[command(flatten)]
    pub(crate) fleet: FleetArgument,
}

/// The output format of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplanationOutput {
    /// A paragraph for each cluster
    Text,
    /// The same in JSON
    Json,
}

pub(super) fn run(arguments: &FleetExplainArguments) -> Result<Code, CommandFailure> {
    let Some((kind, name)) =
        arguments.object.split_once('/').filter(|(kind, name)| !kind.is_empty() && !name.is_empty())
    else {
        let message = format!("{:?} is not an object", arguments.object);
        return Err(CommandFailure::usage(message, "write KIND/NAME, such as deployment/web"));
    };
    let explanation = runtime()?.block_on(async {
        let (client, _) = arguments.fleet.client().await?;
        let namespace = arguments.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let placement = find(&client, &namespace, kind, name).await?;
        let clusters = Api::<WorkloadCluster>::all(client).list(&ListParams::default()).await;
        let clusters = clusters.map_err(CommandFailure::other)?.items;
        Ok::<_, CommandFailure>(PlacementExplanation::new(&placement.spec, placement.status.as_ref(), &clusters))
    })?;
    let text = match arguments.output {
        ExplanationOutput::Text => explanation.to_string(),
        ExplanationOutput::Json => serde_json::to_string_pretty(&explanation).map_err(CommandFailure::other)? + "\n",
    };
    print(&text)?;
    Ok(Code::Done)
}

/// Finds the Placement of an object: in its namespace, or where those of objects without a namespace are.
async fn find(client: &Client, namespace: &str, kind: &str, name: &str) -> Result<WorkloadPlacement, CommandFailure> {
    let mut found = Vec::new();
    for place in [namespace, FLEET_NAMESPACE] {
        let placements = Api::<WorkloadPlacement>::namespaced(client.clone(), place);
        let all = placements.list(&ListParams::default()).await.map_err(CommandFailure::other)?;
        found.extend(all.items.into_iter().filter(|placement| is_meant(&placement.spec.object, kind, name)));
        if !found.is_empty() {
            break;
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(_), false) => {
            let message = format!("several objects are {kind}/{name}");
            Err(CommandFailure::usage(message, "write KIND.GROUP/NAME, such as deployment.apps/web"))
        }
        (None, _) => Err(CommandFailure::usage(
            format!("{kind}/{name} has no Placement in the namespace {namespace}"),
            "no SchedulePolicy and no annotation selects it, or the fleet-controller has not decided yet: check its labels, and keelway fleet status",
        )),
    }
}

fn is_meant(object: &WorkloadRef, kind: &str, name: &str) -> bool {
    let (kind, group) = kind.split_once('.').map_or((kind, None), |(kind, group)| (kind, Some(group)));
    let kind = kind.to_lowercase();
    let kind = SHORT.iter().find(|(short, _)| *short == kind).map_or(kind.as_str(), |(_, long)| long);
    let own = object.kind.to_lowercase();
    let plurals = [own.clone() + "s", own.clone() + "es", own.trim_end_matches('y').to_owned() + "ies"];
    let is_kind = kind == own || plurals.iter().any(|plural| plural == kind);
    object.name == name && is_kind && group.is_none_or(|group| group == object.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_meant_as_kubectl_names_it() {
        let object = |group: &str, kind: &str| WorkloadRef {
            group: group.to_owned(),
            kind: kind.to_owned(),
            name: "web".to_owned(),
            ..WorkloadRef::default()
        };
        let web = object("apps", "Deployment");
        for kind in ["deployment", "deployments", "deploy", "Deployment", "deployment.apps", "deploy.apps"] {
            assert!(is_meant(&web, kind, "web"), "{kind}");
        }
        assert!(is_meant(&object("networking.k8s.io", "NetworkPolicy"), "networkpolicies", "web"));
        assert!(is_meant(&object("networking.k8s.io", "Ingress"), "ingresses", "web"));
        for (kind, name) in [("deployment", "other"), ("pod", "web"), ("deployment.batch", "web")] {
            assert!(!is_meant(&web, kind, name), "{kind}/{name}");
        }
    }
}
