//! `keelway-fleet-controller host`: what a driver does for a fleet on hypervisors, in a Kubernetes cluster that hosts a fleet.
//!
//! It applies the first bindings in the fleet, without which neither the fleet-controller nor administrators have rights, and reports in the hosting
//! cluster when the fleet is ready. It reads its files again in each pass, so renewed certificates need no restart.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use keelway_api::{Time, jiff::Timestamp, worker::MANAGED_BY};
use keelway_base::error_chain::ErrorChain;
use keelway_component::{
    kubeconfig::{ClientError, client},
    requests::{KubeRequestError, call},
};
use keelway_fleet::{
    SchedulePolicy,
    names::{API_READY_EVENT, CONTROL_PLANE_READY_EVENT, CONTROLLER_FIELD_MANAGER},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tokio::{
    select,
    time::{Instant, sleep},
};

/// How long a response of an API server may take to begin.
const ANSWER: Duration = Duration::from_secs(15);
/// The pause between two passes while the fleet is not ready, and while it is.
const AGAIN: Duration = Duration::from_secs(1);
const SETTLED: Duration = Duration::from_secs(30);
/// API servers delete an Event an hour after it was written. It is written again as long as it is true.
const EVENT_RENEWAL: Duration = Duration::from_secs(600);
/// The pause before the first bindings are applied again.
const BINDINGS_RENEWAL: Duration = Duration::from_secs(300);
/// The field manager in both clusters, unless an object names another one.
const OWNER: &str = "keelway";
/// The namespace of the Lease of the fleet-controller.
const LEASE_NAMESPACE: &str = "kube-system";

/// The host of a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetHost {
    /// The directory of its files.
    pub files: PathBuf,
    /// The namespace of the control plane in the hosting cluster.
    pub namespace: String,
}

/// A pass failed. The next one begins anew.
#[derive(Debug, thiserror::Error)]
pub enum FleetHostError {
    /// The hosting cluster cannot be used.
    #[error("cannot use the API of the hosting cluster")]
    Hosting(#[source] Box<kube::Error>),
    /// The kubeconfig of the fleet cannot be used.
    #[error(transparent)]
    Fleet(ClientError),
    /// The file of the bindings cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file of the bindings contains something else.
    #[error("cannot read the first bindings")]
    Bindings(#[source] serde_json::Error),
    /// A request failed.
    #[error(transparent)]
    Request(#[from] KubeRequestError),
}

/// What the host remembers between passes.
#[derive(Default)]
struct HostMemory {
    /// When the first bindings were applied last.
    bound: Option<Instant>,
    /// When each Event was written last.
    written: BTreeMap<&'static str, Instant>,
    /// The last observed renewal of the fleet-controller's Lease. No clocks are compared: a change shows that the controller works.
    renewed: Option<Time>,
}

impl FleetHost {
    /// Runs until `stop`.
    ///
    /// # Errors
    /// The process does not run in a pod of a Kubernetes cluster.
    pub async fn run(&self, stop: impl Future<Output = ()>) -> Result<(), FleetHostError> {
        let hosting = Client::try_default().await.map_err(|error| FleetHostError::Hosting(Box::new(error)))?;
        let mut memory = HostMemory::default();
        let mut stop = pin!(stop);
        loop {
            let pause = select! {
                done = self.pass(&hosting, &mut memory) => match done {
                    Ok(true) => SETTLED,
                    Ok(false) => AGAIN,
                    Err(error) => {
                        tracing::warn!("the fleet is not ready: {}", ErrorChain(&error));
                        AGAIN
                    }
                },
                () = &mut stop => return Ok(()),
            };
            select! {
                () = sleep(pause) => {}
                () = &mut stop => return Ok(()),
            }
        }
    }

    /// Returns whether the fleet is ready.
    async fn pass(&self, hosting: &Client, memory: &mut HostMemory) -> Result<bool, FleetHostError> {
        let fleet = client(&self.files.join("kubeconfig.json"), ANSWER).await.map_err(FleetHostError::Fleet)?;
        call("reach the API of the fleet", fleet.apiserver_version()).await?;
        let api = json!({ "apiVersion": "v1", "kind": "Service", "name": "kube-apiserver" });
        self.report(hosting, memory, (API_READY_EVENT, api, "The API of the fleet serves.")).await?;
        self.bind(&fleet, memory).await?;
        call("list SchedulePolicies", Api::<SchedulePolicy>::all(fleet.clone()).list(&ListParams::default().limit(1)))
            .await?;
        if !controller_works(&fleet, memory).await? {
            return Ok(false);
        }
        let controller = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "keelway-fleet-controller" });
        let message = "The fleet-controller works, and the API serves the kinds of the fleet.";
        self.report(hosting, memory, (CONTROL_PLANE_READY_EVENT, controller, message)).await?;
        Ok(true)
    }

    /// Applies the first bindings. A change that another client made is undone after a while.
    async fn bind(&self, fleet: &Client, memory: &mut HostMemory) -> Result<(), FleetHostError> {
        if memory.bound.is_some_and(|bound| bound.elapsed() < BINDINGS_RENEWAL) {
            return Ok(());
        }
        for object in bindings(&self.files)?.iter().flatten() {
            apply(fleet, object).await?;
        }
        memory.bound = Some(Instant::now());
        Ok(())
    }

    /// Writes an Event that is named after its reason, so that `kubectl wait` finds it.
    async fn report(
        &self,
        hosting: &Client,
        memory: &mut HostMemory,
        (reason, mut object, message): (&'static str, Value, &str),
    ) -> Result<(), FleetHostError> {
        if memory.written.get(reason).is_some_and(|written| written.elapsed() < EVENT_RENEWAL) {
            return Ok(());
        }
        object["namespace"] = json!(self.namespace);
        let now = Time(Timestamp::now());
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": reason, "namespace": self.namespace },
            "involvedObject": object,
            "reason": reason,
            "message": message,
            "type": "Normal",
            "source": { "component": "keelway-fleet-host" },
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        apply(hosting, &event).await?;
        memory.written.insert(reason, Instant::now());
        Ok(())
    }
}

/// Whether the Lease of the fleet-controller was renewed since the last pass.
async fn controller_works(fleet: &Client, memory: &mut HostMemory) -> Result<bool, FleetHostError> {
    let leases = Api::<Lease>::namespaced(fleet.clone(), LEASE_NAMESPACE);
    let lease = call("read the Lease of the fleet-controller", leases.get(CONTROLLER_FIELD_MANAGER)).await?;
    let renewed = lease.spec.and_then(|spec| spec.renew_time).map(|renewed| Time(renewed.0));
    let before = std::mem::replace(&mut memory.renewed, renewed.clone());
    Ok(before.is_some() && renewed.is_some() && before != renewed)
}

/// The objects of the first bindings, in stages.
fn bindings(files: &Path) -> Result<Vec<Vec<Value>>, FleetHostError> {
    let path = files.join("bindings.json");
    let content = std::fs::read(&path).map_err(|source| FleetHostError::File { path, source })?;
    serde_json::from_slice(&content).map_err(FleetHostError::Bindings)
}

/// Applies an object. The plural of its kind is the kind and an s.
async fn apply(client: &Client, object: &Value) -> Result<(), FleetHostError> {
    let object: DynamicObject = serde_json::from_value(object.clone()).map_err(FleetHostError::Bindings)?;
    let types = object.types.clone().unwrap_or_default();
    let kind = GroupVersionKind::try_from(&types).unwrap_or_else(|_| GroupVersionKind::gvk("", "v1", &types.kind));
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let owner = object.labels().get(MANAGED_BY).map_or(OWNER, String::as_str);
    let (parameters, patch) = (PatchParams::apply(owner).force(), Patch::Apply(&object));
    call("apply an object", api.patch(&object.name_any(), &parameters, &patch)).await?;
    Ok(())
}
