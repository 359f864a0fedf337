//! The objects in the API server, through a client of the benchmark.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use keelway_api::{Hypervisor, documents::SecretName, name::ClusterId, release};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value as Json, json};

use crate::wait;

/// Requests in flight at one time.
const AT_ONCE: usize = 16;
const KINDS: [(&str, &str, &str); 4] = [
    ("keelway.dev", "v1alpha1", "Hypervisor"),
    ("keelway.dev", "v1alpha1", "Cluster"),
    ("keelway.dev", "v1alpha1", "Component"),
    ("", "v1", "Secret"),
];

/// The field manager that writes the copies.
const CLIENT: &str = "bench";

pub(crate) struct Objects(Client);

/// Copies of objects, to be written again.
#[derive(Default)]
pub(crate) struct Copies {
    pub(crate) clusters: BTreeSet<ClusterId>,
    all: Vec<Copy>,
}

/// A copy of one object.
struct Copy {
    resource: ApiResource,
    namespace: String,
    name: String,
    document: Json,
    status: Option<Json>,
}

impl Copy {
    fn of(object: DynamicObject, resource: &ApiResource, namespace: &str) -> Self {
        let (data, resource) = (&object.data, resource.clone());
        let (namespace, name) = (format!("again-{namespace}"), object.metadata.name.unwrap());
        let begin = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": { "name": name, "namespace": namespace, "labels": object.metadata.labels },
        });
        let with = |fields: &[&str]| {
            let mut body = begin.clone();
            for field in fields {
                if let Some(value) = data.get(*field) {
                    body[*field] = value.clone();
                }
            }
            body
        };
        let document = with(&["spec", "type", "immutable", "data"]);
        let status = data.get("status").map(|_| with(&["status"]));
        Self { resource, namespace, name, document, status }
    }
}

impl Objects {
    pub(crate) fn new(client: Client) -> Self {
        Self(client)
    }

    fn clusters(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.0.clone(), "default", &resource(KINDS[1]))
    }

    /// Creates a Hypervisor, as a user does.
    pub(crate) async fn add(&self, machine: &Hypervisor) {
        let machines: Api<DynamicObject> = Api::all_with(self.0.clone(), &resource(KINDS[0]));
        let object = serde_json::from_value(serde_json::to_value(machine).unwrap()).unwrap();
        machines.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Returns a Secret. Waits until it exists.
    pub(crate) async fn secret(&self, name: &SecretName) -> Secret {
        let secrets: Api<Secret> = Api::namespaced(self.0.clone(), &name.namespace);
        wait::some(&name.name, async || secrets.get_opt(&name.name).await.unwrap()).await
    }

    /// Creates clusters of the default size with these numbers, as a user does.
    pub(crate) async fn ask_for(&self, numbers: Range<usize>) {
        let clusters = self.clusters();
        let made = numbers.map(|number| {
            let object = json!({
                "apiVersion": "keelway.dev/v1alpha1", "kind": "Cluster", "metadata": { "name": format!("c{number}") },
                "spec": { "version": release::newest_version() },
            });
            let clusters = &clusters;
            async move { clusters.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap() }
        });
        stream::iter(made).buffer_unordered(AT_ONCE).for_each(|_| std::future::ready(())).await;
    }

    /// Changes a cluster, as a user does, so that one of its components is replaced.
    pub(crate) async fn change(&self, number: usize, verbosity: usize) {
        let arguments = json!({ "extraArgs": { "v": verbosity.to_string() } });
        let patch = json!({ "spec": { "controlPlane": { "kubeScheduler": arguments } } });
        let (name, params) = (format!("c{number}"), PatchParams::default());
        self.clusters().patch(&name, &params, &Patch::Merge(patch)).await.unwrap();
    }

    /// Copies all objects of these clusters.
    pub(crate) async fn copies(&self, numbers: Range<usize>) -> Copies {
        let mut copies = Copies::default();
        for cluster in self.clusters().list(&ListParams::default()).await.unwrap() {
            let number =
                cluster.metadata.name.as_deref().and_then(|name| name.strip_prefix('c')?.parse::<usize>().ok());
            if !number.is_some_and(|number| numbers.contains(&number)) {
                continue;
            }
            let id: ClusterId = cluster.data["status"]["id"].as_str().unwrap().parse().unwrap();
            let namespace = id.namespace();
            copies.clusters.insert(id);
            copies.all.push(Copy::of(cluster, &resource(KINDS[1]), "default"));
            for kind in [KINDS[2], KINDS[3]] {
                let resource = resource(kind);
                let all: Api<DynamicObject> = Api::namespaced_with(self.0.clone(), &namespace, &resource);
                let all = all.list(&ListParams::default()).await.unwrap();
                copies.all.extend(all.into_iter().map(|object| Copy::of(object, &resource, &namespace)));
            }
        }
        copies
    }

    /// Writes the copies once, into namespaces of their own, with as many concurrent requests as the manager.
    pub(crate) async fn write_again(&self, copies: &Copies) {
        let namespaces: BTreeSet<&str> = copies.all.iter().map(|copy| copy.namespace.as_str()).collect();
        let made = namespaces.into_iter().map(|namespace| self.make_namespace(namespace));
        stream::iter(made).buffer_unordered(AT_ONCE).for_each(|()| std::future::ready(())).await;
        let written = copies.all.iter().map(|copy| self.write(copy));
        stream::iter(written).buffer_unordered(AT_ONCE).for_each(|()| std::future::ready(())).await;
    }

    async fn make_namespace(&self, name: &str) {
        let namespaces: Api<Namespace> = Api::all(self.0.clone());
        let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        namespaces.patch(name, &PatchParams::apply(CLIENT), &Patch::Apply(body)).await.unwrap();
    }

    async fn write(&self, copy: &Copy) {
        let Copy { resource, namespace, name, document, status } = copy;
        let api: Api<DynamicObject> = Api::namespaced_with(self.0.clone(), namespace, resource);
        let params = PatchParams::apply(CLIENT);
        api.patch(name, &params, &Patch::Apply(document)).await.unwrap();
        if let Some(status) = status {
            api.patch_status(name, &params, &Patch::Apply(status)).await.unwrap();
        }
    }

    /// Returns how many write requests the API server has received, by verb and resource.
    pub(crate) async fn write_requests(&self) -> BTreeMap<String, f64> {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let mut asked = BTreeMap::new();
        for line in self.0.request_text(request).await.unwrap().lines() {
            let Some((labels, count)) =
                line.strip_prefix("apiserver_request_total{").and_then(|rest| rest.rsplit_once("} "))
            else {
                continue;
            };
            let label = |name: &str| {
                let (_, rest) = labels.split_once(&format!("{name}=\""))?;
                rest.split_once('"').map(|(value, _)| value)
            };
            let [verb, resource, part] =
                ["verb", "resource", "subresource"].map(|name| label(name).unwrap_or_default());
            if ["APPLY", "DELETE", "PATCH", "POST", "PUT"].contains(&verb) {
                *asked.entry(format!("{verb} {resource} {part}").trim().to_owned()).or_default() +=
                    count.parse::<f64>().unwrap();
            }
        }
        asked
    }

    /// Returns the resource versions of all documents.
    pub(crate) async fn versions(&self) -> BTreeMap<(&'static str, String), String> {
        let mut versions = BTreeMap::new();
        for (group, version, kind) in KINDS {
            let resource = resource((group, version, kind));
            let all: Api<DynamicObject> = Api::all_with(self.0.clone(), &resource);
            for object in all.list_metadata(&ListParams::default()).await.unwrap() {
                let metadata = object.metadata;
                let path = [metadata.namespace.unwrap_or_default(), metadata.name.unwrap()].join("/");
                versions.insert((kind, path), metadata.resource_version.unwrap());
            }
        }
        versions
    }
}

fn resource((group, version, kind): (&str, &str, &str)) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}
