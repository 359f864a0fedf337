//! The documents of a fleet, as its controller reads them.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use keelway_fleet::{
    FleetDocuments, FleetObject, PlacedKind, PodKinds, Work, WorkloadCluster, WorkloadPlacement, names::POD_KINDS,
};
use kube::{Api, Client, Error, api::DynamicObject};
use serde_json::Value;

use crate::{commands::fleet_api::list_all, exit::CommandFailure};

/// How many kinds are listed at once.
const AT_ONCE: usize = 4;
/// The content of objects, which no decision reads.
const DATA: [&str; 3] = ["binaryData", "data", "stringData"];
/// The annotation in which kubectl stores a copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Reads everything on which placements depend.
pub(super) async fn read(client: &Client) -> Result<FleetDocuments, CommandFailure> {
    let mut objects = of_kinds(client, PlacedKind::built_in()).await?;
    let definitions = objects.iter().filter(|object| object.reference.kind == "CustomResourceDefinition");
    let custom: BTreeSet<PlacedKind> =
        definitions.filter_map(|object| PlacedKind::defined_by(&object.manifest)).collect();
    objects.extend(of_kinds(client, custom.into_iter()).await?);
    Ok(FleetDocuments {
        clusters: list_all(&Api::<WorkloadCluster>::all(client.clone())).await.map_err(CommandFailure::other)?,
        placements: list_all(&Api::<WorkloadPlacement>::all(client.clone())).await.map_err(CommandFailure::other)?,
        works: works(client).await.map_err(CommandFailure::other)?,
        objects,
        pod_kinds: pod_kinds(client).await.map_err(CommandFailure::other)?,
        now: Timestamp::now(),
    })
}

async fn of_kinds(
    client: &Client,
    kinds: impl Iterator<Item = PlacedKind>,
) -> Result<Vec<FleetObject>, CommandFailure> {
    let listed = stream::iter(kinds.map(|kind| of_kind(client, kind))).buffered(AT_ONCE);
    let listed: Vec<Vec<FleetObject>> = listed.try_collect().await.map_err(CommandFailure::other)?;
    Ok(listed.into_iter().flatten().collect())
}

/// Lists the objects of a kind. A kind that the fleet does not serve has none.
async fn of_kind(client: &Client, kind: PlacedKind) -> Result<Vec<FleetObject>, Error> {
    let listed = match list_all(&Api::<DynamicObject>::all_with(client.clone(), &kind.resource())).await {
        Err(Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
        listed => listed?,
    };
    let object = |object: DynamicObject| {
        let mut manifest = serde_json::to_value(object).ok()?;
        without_data(&mut manifest);
        kind.read(manifest)
    };
    Ok(listed.into_iter().filter_map(object).collect())
}

/// Lists the Works, without the content of their objects.
async fn works(client: &Client) -> Result<Vec<Work>, Error> {
    let mut works = list_all(&Api::<Work>::all(client.clone())).await?;
    for work in &mut works {
        without_data(&mut work.spec.manifest);
    }
    Ok(works)
}

/// Removes the content of an object, which may be secret.
fn without_data(manifest: &mut Value) {
    if let Some(fields) = manifest.as_object_mut() {
        fields.retain(|field, _| !DATA.contains(&field.as_str()));
    }
    if let Some(annotations) = manifest.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| name != LAST_APPLIED);
    }
}

async fn pod_kinds(client: &Client) -> Result<PodKinds, Error> {
    let table = Api::<ConfigMap>::namespaced(client.clone(), "kube-system").get_opt(POD_KINDS).await?;
    let rows: BTreeMap<String, String> = table.and_then(|table| table.data).unwrap_or_default();
    Ok(PodKinds::with_rows(&rows).0)
}
