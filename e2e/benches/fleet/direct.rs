//! The same writes, made directly by a client.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::bench_fleet::{NAMESPACE, object};

/// How many writes a client has under way, as many as the agent and the fleet-controller.
pub(crate) const AT_ONCE: usize = 16;
/// The namespace of direct writes to the fleet. The fleet-controller places nothing of it.
const UNPLACED: &str = "kube-public";

/// The clients of direct writes.
pub(crate) struct DirectWrites {
    fleet: Api<ConfigMap>,
    workload: Api<ConfigMap>,
}

impl DirectWrites {
    pub(crate) fn new(fleet: &Client, workload: &Client) -> Self {
        Self { fleet: Api::namespaced(fleet.clone(), UNPLACED), workload: Api::namespaced(workload.clone(), NAMESPACE) }
    }

    /// Creates an object in the fleet, and returns how long that takes.
    pub(crate) async fn submit(&self, name: &str) -> Duration {
        let began = Instant::now();
        self.fleet.create(&PostParams::default(), &object(name, None)).await.unwrap();
        began.elapsed()
    }

    /// Applies an object in the workload cluster, and returns how long that takes.
    pub(crate) async fn apply(&self, name: &str) -> Duration {
        let began = Instant::now();
        let manifest = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "key": "value".repeat(20) },
        });
        self.workload.patch(name, &PatchParams::apply("direct"), &Patch::Apply(&manifest)).await.unwrap();
        began.elapsed()
    }

    /// Creates all objects in the fleet, and then applies all in the workload cluster. Returns how long that takes.
    pub(crate) async fn all(&self, names: &[String]) -> Duration {
        let began = Instant::now();
        stream::iter(names)
            .for_each_concurrent(AT_ONCE, async |name| {
                self.submit(name).await;
            })
            .await;
        stream::iter(names)
            .for_each_concurrent(AT_ONCE, async |name| {
                self.apply(name).await;
            })
            .await;
        began.elapsed()
    }
}
