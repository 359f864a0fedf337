//! `keelway-fleet-controller host`: what a driver does for a fleet on hypervisors, in a Kubernetes cluster that hosts a fleet.
//!
//! It applies the first bindings in the fleet, without which neither the fleet-controller nor administrators have rights, and reports in the hosting
//! cluster when the fleet is ready, and when its certificates are due. Renewals of the fleet-controller's Lease drive it, and renewed files need no
//! restart.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use keelway_api::{Time, jiff::Timestamp};
use keelway_base::error_chain::ErrorChain;
use keelway_component::{
    kubeconfig::{ClientError, client, files_of},
    requests::{KubeRequestError, call, has_code},
};
use keelway_fleet::{
    SchedulePolicy,
    names::{API_READY_EVENT, CERTIFICATES_DUE_EVENT, CONTROL_PLANE_READY_EVENT, CONTROLLER_FIELD_MANAGER},
};
use keelway_kube_object::{KubeObject, KubeObjectError};
use keelway_pki::{CertificateError, CertificateFacts, Validity};
use keelway_tls::FilesVersion;
use kube::{
    Api, Client,
    api::ListParams,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use serde_json::{Value, json};
use tokio::{
    select,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

/// How long a response of an API server may take to begin.
const ANSWER: Duration = Duration::from_secs(15);
/// The pause after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// API servers delete an Event an hour after it was written. It is written again as long as it is true.
const EVENT_RENEWAL: Duration = Duration::from_secs(600);
/// How often the first bindings are applied. A change that another client made is undone by then.
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

/// The host cannot go on, and begins anew.
#[derive(Debug, thiserror::Error)]
pub enum FleetHostError {
    /// The hosting cluster cannot be used.
    #[error("cannot use the API of the hosting cluster")]
    Hosting(#[source] Box<kube::Error>),
    /// The kubeconfig of the fleet cannot be used.
    #[error(transparent)]
    Fleet(ClientError),
    /// A file cannot be read.
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
    /// The certificate of the host cannot be parsed.
    #[error("cannot read the certificate of the host")]
    Certificate(#[source] CertificateError),
    /// A request failed.
    #[error(transparent)]
    Request(#[from] KubeRequestError),
    /// An object was not applied.
    #[error(transparent)]
    Object(#[from] KubeObjectError),
    /// The Lease of the fleet-controller cannot be watched.
    #[error("cannot watch the Lease of the fleet-controller")]
    Lease(#[source] Box<watcher::Error>),
    /// The watch of the Lease ended.
    #[error("the watch of the fleet-controller's Lease ended")]
    LeaseWatchEnded,
}

/// An Event in the hosting cluster. It is named after its reason, so that `kubectl wait` finds it.
struct HostEvent {
    reason: &'static str,
    kind: &'static str,
    about: Value,
    message: String,
}

impl HostEvent {
    fn api_is_ready() -> Self {
        let message = "The API of the fleet serves.".to_owned();
        Self { reason: API_READY_EVENT, kind: "Normal", about: api_service(), message }
    }

    fn control_plane_is_ready() -> Self {
        let about = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "keelway-fleet-controller" });
        let message = "The fleet-controller works, and the API serves the kinds of the fleet.".to_owned();
        Self { reason: CONTROL_PLANE_READY_EVENT, kind: "Normal", about, message }
    }

    fn certificates_are_due(validity: Validity) -> Self {
        let message = format!(
            "The certificates of the fleet expire on {}, and the fleet stops then. Renew them: run `keelway fleet manifests` with --existing and the \
             Secret of the fleet, and apply the result.",
            validity.not_after().strftime("%Y-%m-%d")
        );
        Self { reason: CERTIFICATES_DUE_EVENT, kind: "Warning", about: api_service(), message }
    }
}

fn api_service() -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "name": "kube-apiserver" })
}

/// The fleet, by one version of the files. All certificates of a fleet are issued together, so that of the host stands for all.
struct HostedFleetFiles {
    files: Vec<PathBuf>,
    version: FilesVersion,
    client: Client,
    bindings: Vec<Vec<Value>>,
    validity: Validity,
}

impl HostedFleetFiles {
    async fn read(directory: &Path) -> Result<Self, FleetHostError> {
        let [kubeconfig, bindings, certificate] =
            ["kubeconfig.json", "bindings.json", "client.crt"].map(|name| directory.join(name));
        let files = [files_of(&kubeconfig), vec![bindings.clone(), certificate.clone()]].concat();
        let version = FilesVersion::of(&files);
        let client = client(&kubeconfig, ANSWER).await.map_err(FleetHostError::Fleet)?;
        let bindings = serde_json::from_str(&text(&bindings)?).map_err(FleetHostError::Bindings)?;
        let facts = CertificateFacts::from_pem(&text(&certificate)?).map_err(FleetHostError::Certificate)?;
        Ok(Self { files, version, client, bindings, validity: facts.validity })
    }

    /// Applies the first bindings.
    async fn bind(&self) -> Result<(), FleetHostError> {
        for object in self.bindings.iter().flatten() {
            apply(&self.client, object).await?;
        }
        Ok(())
    }

    async fn serves_its_kinds(&self) -> Result<bool, FleetHostError> {
        let policies = Api::<SchedulePolicy>::all(self.client.clone());
        match policies.list(&ListParams::default().limit(1)).await {
            Ok(_) => Ok(true),
            Err(error) if has_code(&error, 404) => Ok(false),
            Err(error) => Err(KubeRequestError { what: "list SchedulePolicies", source: Box::new(error) }.into()),
        }
    }
}

fn text(path: &Path) -> Result<String, FleetHostError> {
    std::fs::read_to_string(path).map_err(|source| FleetHostError::File { path: path.to_owned(), source })
}

async fn apply(client: &Client, object: &Value) -> Result<(), FleetHostError> {
    let object = KubeObject::read(object)?;
    object.apply(client, object.manager(OWNER)).await?;
    Ok(())
}

/// When each Event was written last.
type WrittenEvents = BTreeMap<&'static str, Instant>;

impl FleetHost {
    /// Runs until `stop`.
    ///
    /// # Errors
    /// The process does not run in a pod of a Kubernetes cluster.
    pub async fn run(&self, stop: impl Future<Output = ()>) -> Result<(), FleetHostError> {
        let hosting = Client::try_default().await.map_err(|error| FleetHostError::Hosting(Box::new(error)))?;
        let mut written = WrittenEvents::new();
        let mut stop = pin!(stop);
        loop {
            select! {
                () = self.host(&hosting, &mut written) => {}
                () = &mut stop => return Ok(()),
            }
        }
    }

    /// Hosts the fleet until a file changes or something fails.
    async fn host(&self, hosting: &Client, written: &mut WrittenEvents) {
        let failed = match HostedFleetFiles::read(&self.files).await {
            Ok(fleet) => select! {
                failed = self.serve(hosting, &fleet, written) => failed,
                _ = fleet.version.next(&fleet.files) => return tracing::info!("reloaded changed files"),
            },
            Err(error) => Err(error),
        };
        let Err(error) = failed;
        tracing::warn!("the fleet is not ready: {}", ErrorChain(&error));
        sleep(AGAIN).await;
    }

    async fn serve(
        &self,
        hosting: &Client,
        fleet: &HostedFleetFiles,
        written: &mut WrittenEvents,
    ) -> Result<Infallible, FleetHostError> {
        let leases = Api::<Lease>::namespaced(fleet.client.clone(), LEASE_NAMESPACE);
        let own = watcher::Config::default().fields(&format!("metadata.name={CONTROLLER_FIELD_MANAGER}"));
        let mut leases = pin!(watcher(leases, own).applied_objects());
        let mut renewals = LeaseRenewals::default();
        let mut again = interval(BINDINGS_RENEWAL);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            select! {
                _ = again.tick() => {
                    call("reach the API of the fleet", fleet.client.apiserver_version()).await?;
                    self.report(hosting, written, HostEvent::api_is_ready()).await?;
                    fleet.bind().await?;
                    if Timestamp::now() >= fleet.validity.renew_at() {
                        self.report(hosting, written, HostEvent::certificates_are_due(fleet.validity)).await?;
                    }
                }
                lease = leases.try_next() => {
                    let lease = lease.map_err(|error| FleetHostError::Lease(Box::new(error)))?;
                    let lease = lease.ok_or(FleetHostError::LeaseWatchEnded)?;
                    let is_due = renewals.observe(&lease) && is_due(written, CONTROL_PLANE_READY_EVENT);
                    if is_due && fleet.serves_its_kinds().await? {
                        self.report(hosting, written, HostEvent::control_plane_is_ready()).await?;
                    }
                }
            }
        }
    }

    /// Writes an Event, unless it was written a short time ago.
    async fn report(
        &self,
        hosting: &Client,
        written: &mut WrittenEvents,
        HostEvent { reason, kind, mut about, message }: HostEvent,
    ) -> Result<(), FleetHostError> {
        if !is_due(written, reason) {
            return Ok(());
        }
        about["namespace"] = json!(self.namespace);
        let now = Time(Timestamp::now());
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": reason, "namespace": self.namespace },
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": kind,
            "source": { "component": "keelway-fleet-host" },
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        apply(hosting, &event).await?;
        written.insert(reason, Instant::now());
        Ok(())
    }
}

/// Whether an Event was not written a short time ago.
fn is_due(written: &WrittenEvents, reason: &str) -> bool {
    written.get(reason).is_none_or(|written| written.elapsed() >= EVENT_RENEWAL)
}

/// The renewals of the fleet-controller's Lease. No clocks are compared: a change shows that the controller works.
#[derive(Debug, Default)]
struct LeaseRenewals {
    last: Option<Time>,
}

impl LeaseRenewals {
    /// Returns whether the Lease was renewed since it was observed first.
    fn observe(&mut self, lease: &Lease) -> bool {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|renewed| Time(renewed.0));
        let before = std::mem::replace(&mut self.last, renewed.clone());
        before.is_some() && renewed.is_some() && before != renewed
    }
}
