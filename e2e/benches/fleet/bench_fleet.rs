//! The fleet that is measured.

use std::{collections::BTreeMap, fs};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::{SignedDuration, Timestamp},
};
use keelway_fleet::{
    BootstrapToken, CLUSTER_READY, FleetToken, SchedulePolicy, WorkloadCluster, bootstrap::token_secret,
    fleet_controller_role, names::CONTROLLER_USER,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use serde_json::{Value, json};

use crate::{
    host::WORK,
    plane::{Plane, free_port, path, write},
    programs::FleetProgram,
    wait,
};

/// The namespace of the objects.
pub(crate) const NAMESPACE: &str = "bench";
/// The directory of programs that are unpacked once.
const PROGRAMS: &str = "usr";
/// The label of the objects of a cluster.
const LABEL: &str = "bench";

/// A fleet with its agents.
pub(crate) struct BenchFleet {
    fleet_plane: Plane,
    workload_plane: Plane,
    pub(crate) fleet: Client,
    pub(crate) workload: Client,
    controller: Option<FleetProgram>,
    starts: usize,
    agents: Vec<FleetProgram>,
}

impl BenchFleet {
    /// Starts both control planes and the fleet-controller, without anything of a fleet before.
    pub(crate) async fn start() -> Self {
        for entry in fs::read_dir(WORK).unwrap().flatten().filter(|entry| entry.file_name() != PROGRAMS) {
            let left = entry.path();
            if left.is_dir() { fs::remove_dir_all(left) } else { fs::remove_file(left) }.unwrap();
        }
        let signer = Some("certificatesigningrequest-signing-controller");
        let (fleet_plane, workload_plane) =
            tokio::join!(Plane::start("fleet", signer, None), Plane::start("workload", None, None));
        let (fleet, workload) = (fleet_plane.admin().await, workload_plane.admin().await);
        for document in fleet_controller_role() {
            apply(&fleet, document).await;
        }
        for client in [&fleet, &workload] {
            create_namespace(client, NAMESPACE).await;
        }
        let mut this =
            Self { fleet_plane, workload_plane, fleet, workload, controller: None, starts: 0, agents: Vec::new() };
        this.start_controller();
        let clusters = Api::<WorkloadCluster>::all(this.fleet.clone());
        wait::until("the kinds are served", async || clusters.list(&ListParams::default()).await.is_ok()).await;
        this
    }

    /// Starts the fleet-controller. If one runs, ends it first.
    pub(crate) fn start_controller(&mut self) {
        if let Some(running) = self.controller.take() {
            running.stop();
        }
        self.starts += 1;
        let authorities = write("fleet-authorities.crt", self.fleet_plane.authority());
        let configuration = json!({
            "kubeconfig": self.fleet_plane.kubeconfig(CONTROLLER_USER, &[]),
            "endpoints": [self.fleet_plane.url().trim_start_matches("https://")],
            "authorities": authorities,
        });
        let arguments = [
            "run".to_owned(),
            format!("--config={}", write("controller.json", configuration.to_string())),
            format!("--identity=controller-{}", self.starts),
            format!("--health=127.0.0.1:{}", free_port()),
            format!("--metrics={}", self.metrics()),
        ];
        self.controller = Some(FleetProgram::start("controller", "keelway-fleet-controller", &arguments));
    }

    /// Returns the socket of the controller's metrics.
    pub(crate) fn metrics(&self) -> String {
        path(&format!("controller-{}.sock", self.starts)).display().to_string()
    }

    /// Registers clusters until there are this many. Each has a policy for the objects with its label.
    pub(crate) async fn grow(&mut self, clusters: usize) {
        let kubeconfig = self.workload_plane.kubeconfig("admin", &["system:masters"]);
        for number in self.agents.len()..clusters {
            let agent = self.register(number, &kubeconfig).await;
            self.agents.push(agent);
        }
        let api = Api::<WorkloadCluster>::all(self.fleet.clone());
        wait::until(&format!("{clusters} clusters are ready"), async || {
            let Ok(found) = api.list(&ListParams::default()).await else { return false };
            let is_ready = |cluster: &&WorkloadCluster| {
                cluster.status.as_ref().is_some_and(|status| {
                    let mut conditions = status.conditions.iter();
                    conditions.any(|condition| condition.type_ == CLUSTER_READY && condition.status == "True")
                })
            };
            found.items.iter().filter(is_ready).count() == clusters
        })
        .await;
    }

    async fn register(&self, number: usize, kubeconfig: &str) -> FleetProgram {
        let cluster = name_of(number);
        let token = BootstrapToken::mint(&mut ChaCha8Rng::from_rng(&mut rand::rng()));
        let secret = token_secret(&token, &cluster, Timestamp::now() + SignedDuration::from_hours(1));
        let secrets = Api::<Secret>::namespaced(self.fleet.clone(), "kube-system");
        secrets.create(&PostParams::default(), &secret).await.unwrap();
        let policy: SchedulePolicy = serde_json::from_value(policy(&cluster)).unwrap();
        let policies = Api::<SchedulePolicy>::all(self.fleet.clone());
        policies.create(&PostParams::default(), &policy).await.unwrap();
        let own = format!("keelway-{cluster}");
        create_namespace(&self.workload, &own).await;
        let token = FleetToken {
            server: vec![self.fleet_plane.url()],
            authorities: self.fleet_plane.authority().to_owned(),
            cluster: cluster.clone(),
            bootstrap: token,
        };
        let arguments = [
            "run".to_owned(),
            format!("--token={}", write(&format!("{cluster}.token"), token.to_text().as_bytes())),
            format!("--namespace={own}"),
            format!("--state={}", path(&format!("{cluster}.state")).display()),
            format!("--kubeconfig={kubeconfig}"),
        ];
        FleetProgram::start(&cluster, "keelway-fleet-agent", &arguments)
    }

    /// Returns the resident memory of the first agent in MiB.
    pub(crate) fn agent(&self) -> f64 {
        self.agents.first().map_or(f64::NAN, FleetProgram::resident)
    }

    /// The number of clusters.
    pub(crate) fn clusters(&self) -> usize {
        self.agents.len()
    }
}

/// Returns the object with this name for a cluster, if it has one. Without a cluster, no policy selects it.
pub(crate) fn object(name: &str, cluster: Option<usize>) -> ConfigMap {
    let labels = cluster.map(|number| BTreeMap::from([(LABEL.to_owned(), name_of(number))]));
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels, ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("key".to_owned(), "value".repeat(20))])),
        ..ConfigMap::default()
    }
}

fn name_of(number: usize) -> String {
    format!("c{number:03}")
}

fn policy(cluster: &str) -> Value {
    json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "SchedulePolicy",
        "metadata": { "name": cluster },
        "spec": {
            "resourceSelectors": { "labelSelectors": [{ "matchLabels": { LABEL: cluster } }] },
            "clusterSelector": { "matchLabels": { "kubernetes.io/metadata.name": cluster } },
        },
    })
}

async fn create_namespace(client: &Client, name: &str) {
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
}

async fn apply(client: &Client, document: Value) {
    let object: DynamicObject = serde_json::from_value(document).unwrap();
    let kind = GroupVersionKind::try_from(object.types.clone().unwrap()).unwrap();
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.patch(&object.name_any(), &PatchParams::apply("bench").force(), &Patch::Apply(&object)).await.unwrap();
}
