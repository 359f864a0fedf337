//! The rows for kinds that are not of Kubernetes itself.

use alloc::collections::BTreeMap;

use super::PodSource;

/// Where a Ray cluster is in the kinds of `ray.io`.
const RAY: [(&str, &str); 3] = [
    ("RayCluster.ray.io", "spec"),
    ("RayJob.ray.io", "spec.rayClusterSpec"),
    ("RayService.ray.io", "spec.rayClusterConfig"),
];

pub(super) fn rows() -> BTreeMap<String, Vec<PodSource>> {
    let mut rows: BTreeMap<String, Vec<PodSource>> =
        RAY.into_iter().map(|(key, cluster)| (key.to_owned(), ray(cluster))).collect();
    if let Some(job) = rows.get_mut("RayJob.ray.io") {
        job.push(PodSource { template: texts(["spec.submitterPodTemplate"]), ..PodSource::default() });
    }
    rows.insert("LeaderWorkerSet.leaderworkerset.x-k8s.io".to_owned(), leader_worker_set());
    rows.insert("InferenceService.serving.kserve.io".to_owned(), inference_service());
    rows.insert("NIMService.apps.nvidia.com".to_owned(), nim_service());
    rows
}

fn texts<const N: usize>(all: [&str; N]) -> Vec<String> {
    all.map(str::to_owned).to_vec()
}

/// One head, and groups of workers.
fn ray(cluster: &str) -> Vec<PodSource> {
    let head = PodSource { template: vec![format!("{cluster}.headGroupSpec.template")], ..PodSource::default() };
    let workers = PodSource {
        each: Some(format!("{cluster}.workerGroupSpecs")),
        template: texts(["template"]),
        count: texts(["replicas", "numOfHosts"]),
        ..PodSource::default()
    };
    vec![head, workers]
}

/// Groups of a leader and workers. Without a template of its own, the leader is as the workers are.
fn leader_worker_set() -> Vec<PodSource> {
    const WORKER: &str = "spec.leaderWorkerTemplate.workerTemplate";
    let leaders = PodSource {
        template: texts(["spec.leaderWorkerTemplate.leaderTemplate", WORKER]),
        count: texts(["spec.replicas"]),
        ..PodSource::default()
    };
    let workers = PodSource {
        template: texts([WORKER]),
        count: texts(["spec.replicas", "spec.leaderWorkerTemplate.size"]),
        less: 1,
        ..PodSource::default()
    };
    vec![leaders, workers]
}

/// The specifications of the pods are in the object, and the model is one of their containers.
fn inference_service() -> Vec<PodSource> {
    let part = |name: &str, container: Option<&str>| PodSource {
        spec: Some(format!("spec.{name}")),
        container: container.map(str::to_owned),
        count: vec![format!("spec.{name}.minReplicas")],
        ..PodSource::default()
    };
    vec![part("predictor", Some("model")), part("transformer", None), part("explainer", None)]
}

/// The fields of the pod are those of the object, and its resources are those of the pod.
fn nim_service() -> Vec<PodSource> {
    vec![PodSource { spec: Some("spec".to_owned()), count: texts(["spec.replicas"]), ..PodSource::default() }]
}
