//! The API resources of documents.

use k8s_openapi::api::core::v1::Secret;
use keelway_api::{Cluster, ClusterClass, Component, Hypervisor, document::DocumentName};
use kube::{
    Api, Client, Resource,
    core::{ApiResource, DynamicObject},
};

/// The resources of all kinds that a store consists of.
#[derive(Clone)]
pub(super) struct StoreResources {
    pub(super) class: ApiResource,
    pub(super) hypervisor: ApiResource,
    pub(super) cluster: ApiResource,
    pub(super) component: ApiResource,
    pub(super) secret: ApiResource,
}

impl StoreResources {
    pub(super) fn new() -> Self {
        Self {
            class: of::<ClusterClass>(),
            hypervisor: of::<Hypervisor>(),
            cluster: of::<Cluster>(),
            component: of::<Component>(),
            secret: of::<Secret>(),
        }
    }

    /// Returns the resource of a document.
    pub(super) fn of(&self, name: &DocumentName) -> &ApiResource {
        match name {
            DocumentName::ClusterClass(_) => &self.class,
            DocumentName::Hypervisor(_) => &self.hypervisor,
            DocumentName::Cluster(_) => &self.cluster,
            DocumentName::Component(_) => &self.component,
            DocumentName::Secret(_) => &self.secret,
        }
    }

    /// Returns the API through which a document is read and written.
    pub(super) fn api(&self, client: &Client, name: &DocumentName) -> Api<DynamicObject> {
        let resource = self.of(name);
        match name.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, resource),
            None => Api::all_with(client.clone(), resource),
        }
    }
}

fn of<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}
