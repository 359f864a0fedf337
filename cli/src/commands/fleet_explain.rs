//! `keelway fleet explain`.

use clap::{Args, ValueEnum};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use keelway_fleet::{PlacementExplanation, WorkloadCluster, WorkloadPlacement, WorkloadRef, names::FLEET_NAMESPACE};
use kube::{Api, Client, Error, api::ListParams};

use super::{fleet_api::FleetArgument, print, session::runtime};
use crate::exit::{Code, CommandFailure};

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
        for placement in all.items {
            if placement.spec.object.name == name && is_meant(client, &placement.spec.object, kind).await? {
                found.push(placement);
            }
        }
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

/// Whether the kind of an object is meant: by its name, or by a name that the API server knows for it.
async fn is_meant(client: &Client, object: &WorkloadRef, word: &str) -> Result<bool, CommandFailure> {
    let (word, group) = word.split_once('.').map_or((word, None), |(word, group)| (word, Some(group)));
    if group.is_some_and(|group| group != object.group) {
        return Ok(false);
    }
    if object.kind.eq_ignore_ascii_case(word) {
        return Ok(true);
    }
    let resources = match object.group.as_str() {
        "" => client.list_core_api_resources(&object.version).await,
        group => client.list_api_group_resources(&format!("{group}/{}", object.version)).await,
    };
    match resources {
        Ok(list) => Ok(list.resources.iter().any(|resource| resource.kind == object.kind && is_named(resource, word))),
        // The kind is not served any more.
        Err(Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(CommandFailure::other(error)),
    }
}

/// Whether a resource has this name: the plural, the singular, or a short one.
fn is_named(resource: &APIResource, word: &str) -> bool {
    let short = resource.short_names.iter().flatten();
    let mut names = [&resource.name, &resource.singular_name].into_iter().chain(short);
    names.any(|name| name.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_the_names_that_the_api_server_knows() {
        let policies = APIResource {
            name: "networkpolicies".to_owned(),
            singular_name: "networkpolicy".to_owned(),
            kind: "NetworkPolicy".to_owned(),
            short_names: Some(vec!["netpol".to_owned()]),
            ..APIResource::default()
        };
        for word in ["networkpolicies", "networkpolicy", "netpol", "NetworkPolicies"] {
            assert!(is_named(&policies, word), "{word}");
        }
        for word in ["networkpolicys", "np", ""] {
            assert!(!is_named(&policies, word), "{word}");
        }
        let without_singular = APIResource { name: "nodes".to_owned(), ..APIResource::default() };
        assert!(is_named(&without_singular, "nodes") && !is_named(&without_singular, "node"));
    }
}
