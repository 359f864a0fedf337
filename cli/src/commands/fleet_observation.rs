//! What a fleet decided, and what its clusters are like. Explanations are made of it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList, ObjectMeta};
use keelway_fleet::{SchedulePolicy, WorkloadCluster, WorkloadPlacement, WorkloadRef, names::FLEET_NAMESPACE};
use kube::{Api, Client, Error, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::fleet_api::{FLEET_API, list_all};
use crate::{exit::CommandFailure, view::list};

/// The Placements of a fleet with its clusters.
#[derive(Debug, Default)]
pub(super) struct FleetObservation {
    placements: Vec<WorkloadPlacement>,
    pub(super) clusters: Vec<WorkloadCluster>,
    /// They are written for people. No explanation is made of them.
    policies: Vec<SchedulePolicy>,
    /// The names of the kinds that are placed.
    resources: Vec<APIResourceList>,
}

impl FleetObservation {
    /// Reads everything from the API of a fleet.
    pub(super) async fn of_fleet(client: &Client) -> Result<Self, CommandFailure> {
        let placements = all(Api::<WorkloadPlacement>::all(client.clone())).await?;
        let policies = all(Api::<SchedulePolicy>::all(client.clone())).await?;
        Ok(Self { policies, ..Self::with(client, placements).await? })
    }

    /// Reads the Placements of objects with this name: those in the namespace, and those of objects without a namespace.
    pub(super) async fn of_objects(client: &Client, namespace: &str, name: &str) -> Result<Self, CommandFailure> {
        let mut placements = Vec::new();
        for place in BTreeSet::from([namespace, FLEET_NAMESPACE]) {
            let found = all(Api::<WorkloadPlacement>::namespaced(client.clone(), place)).await?;
            placements.extend(found.into_iter().filter(|placement| placement.spec.object.name == name));
        }
        Self::with(client, placements).await
    }

    async fn with(client: &Client, placements: Vec<WorkloadPlacement>) -> Result<Self, CommandFailure> {
        let clusters = all(Api::<WorkloadCluster>::all(client.clone())).await?;
        let resources = resources(client, &placements).await?;
        Ok(Self { placements, clusters, policies: Vec::new(), resources })
    }

    /// Reads an observation that was written before. Other items of the List, as `kubectl get` may print them, are left out.
    pub(super) fn read(text: &str) -> Result<Self, CommandFailure> {
        let unfit = |problem: String| CommandFailure::usage(problem, "pass the output of: keelway fleet observe");
        let list: Value = serde_saphyr::from_str(text).map_err(|error| unfit(format!("not YAML: {error}")))?;
        let Some(items) = list["items"].as_array().filter(|_| list["kind"] == "List") else {
            return Err(unfit("not a List".to_owned()));
        };
        let mut faults = Vec::new();
        let mut observation = Self::default();
        for (index, item) in items.iter().enumerate() {
            let read = match (item["apiVersion"].as_str(), item["kind"].as_str()) {
                (Some(FLEET_API), Some("Placement")) => push(&mut observation.placements, item),
                (Some(FLEET_API), Some("Cluster")) => push(&mut observation.clusters, item),
                (Some("v1"), Some("APIResourceList")) => push(&mut observation.resources, item),
                (_, _) => Ok(()),
            };
            faults.extend(read.err().map(|error| format!("items[{index}]: {error}")));
        }
        if !faults.is_empty() {
            return Err(unfit(faults.join("\n")));
        }
        if observation.placements.is_empty() && observation.clusters.is_empty() {
            return Err(unfit("no item is a Placement or a Cluster of a fleet".to_owned()));
        }
        Ok(observation)
    }

    /// Returns everything as one List.
    pub(super) fn list(mut self) -> Result<Value, CommandFailure> {
        self.placements.iter_mut().for_each(|placement| shorten(&mut placement.metadata));
        self.clusters.iter_mut().for_each(|cluster| shorten(&mut cluster.metadata));
        self.policies.iter_mut().for_each(|policy| shorten(&mut policy.metadata));
        let mut items = values(&self.clusters)?;
        items.extend(values(&self.policies)?);
        items.extend(values(&self.placements)?);
        items.extend(values(&self.resources)?);
        Ok(list(&items))
    }

    /// Returns the Placement of an object: in its namespace, or where those of objects without a namespace are.
    pub(super) fn placement(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
    ) -> Result<&WorkloadPlacement, CommandFailure> {
        let in_place = |place: &str| -> Vec<&WorkloadPlacement> {
            let placements = self.placements.iter().filter(|placement| placement.namespace().as_deref() == Some(place));
            placements
                .filter(|placement| placement.spec.object.name == name && self.is_meant(&placement.spec.object, kind))
                .collect()
        };
        let found = [namespace, FLEET_NAMESPACE].into_iter().map(in_place).find(|found| !found.is_empty());
        match found.unwrap_or_default().as_slice() {
            [only] => Ok(only),
            [] => Err(CommandFailure::usage(
                format!("{kind}/{name} has no Placement in the namespace {namespace}"),
                "no SchedulePolicy and no annotation selects it, or the fleet-controller has not decided yet: check its labels, and keelway fleet status",
            )),
            _ => {
                let message = format!("several objects are {kind}/{name}");
                Err(CommandFailure::usage(message, "write KIND.GROUP/NAME, such as deployment.apps/web"))
            }
        }
    }

    /// Whether the kind of an object is meant: by its name, or by a name that the API server has for it.
    fn is_meant(&self, object: &WorkloadRef, word: &str) -> bool {
        let (word, group) = word.split_once('.').map_or((word, None), |(word, group)| (word, Some(group)));
        if group.is_some_and(|group| group != object.group) {
            return false;
        }
        let lists = self.resources.iter().filter(|list| list.group_version == group_version(object));
        let mut names = lists.flat_map(|list| &list.resources).filter(|resource| resource.kind == object.kind);
        object.kind.eq_ignore_ascii_case(word) || names.any(|resource| is_named(resource, word))
    }
}

async fn all<K>(api: Api<K>) -> Result<Vec<K>, CommandFailure>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    list_all(&api).await.map_err(CommandFailure::other)
}

/// Returns the names of the kinds of placed objects. Kinds that are not served any more have none.
async fn resources(client: &Client, placements: &[WorkloadPlacement]) -> Result<Vec<APIResourceList>, CommandFailure> {
    let mut placed: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for WorkloadPlacement { spec, .. } in placements {
        placed.entry(group_version(&spec.object)).or_default().insert(&spec.object.kind);
    }
    let mut lists = Vec::new();
    for (version, kinds) in placed {
        let listed = if version.contains('/') {
            client.list_api_group_resources(&version).await
        } else {
            client.list_core_api_resources(&version).await
        };
        match listed {
            Ok(mut list) => {
                list.resources
                    .retain(|resource| kinds.contains(resource.kind.as_str()) && !resource.name.contains('/'));
                lists.push(list);
            }
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(CommandFailure::other(error)),
        }
    }
    Ok(lists)
}

/// Returns the group and the version of an object, as `apiVersion` has them.
fn group_version(object: &WorkloadRef) -> String {
    if object.group.is_empty() { object.version.clone() } else { format!("{}/{}", object.group, object.version) }
}

/// Whether a resource has this name: the plural, the singular, or a short one.
fn is_named(resource: &APIResource, word: &str) -> bool {
    let short = resource.short_names.iter().flatten();
    let mut names = [&resource.name, &resource.singular_name].into_iter().chain(short);
    names.any(|name| name.eq_ignore_ascii_case(word))
}

fn push<T: DeserializeOwned>(items: &mut Vec<T>, item: &Value) -> Result<(), serde_json::Error> {
    T::deserialize(item).map(|item| items.push(item))
}

fn values<T: Serialize>(items: &[T]) -> Result<Vec<Value>, CommandFailure> {
    items.iter().map(|item| serde_json::to_value(item).map_err(CommandFailure::other)).collect()
}

/// Removes what only API servers use.
fn shorten(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_the_names_that_the_api_server_has_for_it() {
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
