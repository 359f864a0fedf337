//! What is in the API server, by a client of its own.

use std::{collections::BTreeMap, ops::Range};

use futures::{StreamExt, stream};
use keelway_api::release;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::json;

/// Requests at one time.
const AT_ONCE: usize = 16;
const KINDS: [(&str, &str, &str); 4] = [
    ("keelway.dev", "v1alpha1", "Hypervisor"),
    ("keelway.dev", "v1alpha1", "Cluster"),
    ("keelway.dev", "v1alpha1", "Component"),
    ("", "v1", "Secret"),
];

pub(crate) struct Objects(Client);

impl Objects {
    pub(crate) fn new(client: Client) -> Self {
        Self(client)
    }

    fn clusters(&self) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("keelway.dev", "v1alpha1", "Cluster"));
        Api::namespaced_with(self.0.clone(), "default", &resource)
    }

    /// A user asks for clusters of the default size, of these numbers.
    pub(crate) async fn ask_for(&self, numbers: Range<usize>) {
        let clusters = self.clusters();
        let made = numbers.map(|number| {
            let object = json!({
                "apiVersion": "keelway.dev/v1alpha1", "kind": "Cluster", "metadata": { "name": format!("c{number}") },
                "spec": { "version": release::newest().kubernetes },
            });
            let clusters = &clusters;
            async move { clusters.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap() }
        });
        stream::iter(made).buffer_unordered(AT_ONCE).for_each(|_| std::future::ready(())).await;
    }

    /// A user changes a cluster, so that one of its components is made anew.
    pub(crate) async fn change(&self, number: usize, verbosity: usize) {
        let arguments = json!({ "extraArgs": { "v": verbosity.to_string() } });
        let patch = json!({ "spec": { "controlPlane": { "kubeScheduler": arguments } } });
        let (name, params) = (format!("c{number}"), PatchParams::default());
        self.clusters().patch(&name, &params, &Patch::Merge(patch)).await.unwrap();
    }

    /// The versions of all documents.
    pub(crate) async fn versions(&self) -> BTreeMap<(&'static str, String), String> {
        let mut versions = BTreeMap::new();
        for (group, version, kind) in KINDS {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
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
