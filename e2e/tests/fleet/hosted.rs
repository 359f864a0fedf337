//! A cluster with one worker hosts another fleet of three replicas, whose control plane is installed with the commands of the documentation.

use std::fs;

use keelway_api::release::{self, fleet_controller_image};
use keelway_e2e::{FinishedCommand, Kubectl, deadline, worker_fleet::WorkerFleet};

use crate::Member;

/// The namespace of the control plane. The agent has the default one.
const NAMESPACE: &str = "hosted-fleet";
/// The worker that runs it, and the directory of the etcd members.
const WORKER: &str = "w1";
const VOLUMES: &str = "/var/lib/hosted-fleet";
const REPLICAS: usize = 3;
/// The label that keeps replicas apart.
const HOST_NAME: &str = "kubernetes.io/hostname";
/// The label of the Secret with the documents of the fleet.
const DOCUMENTS: &str = "fleet.keelway.dev/documents";

/// The images of a control plane.
pub(crate) fn images() -> Vec<String> {
    let release = release::newest();
    let of = |program| release.kubernetes_image(program, None);
    let own = fleet_controller_image(None, release::KEELWAY);
    vec![release.etcd_image(None), of("kube-apiserver"), of("kube-controller-manager"), own]
}

/// Installs a fleet in a cluster, uses it, runs the command again, and uninstalls it.
pub(crate) fn a_cluster_hosts_a_fleet(setting: &WorkerFleet, member: &Member) {
    let host = FleetHosting { setting, kubectl: &member.cluster.kubectl, endpoint: endpoint(setting, member) };
    host.install();
    host.is_ready();
    let fleet = host.fleet();
    host.serves(&fleet);
    host.survives_the_loss_of_replicas(&fleet);
    host.the_same_command_changes_nothing();
    host.a_run_without_the_secrets_is_refused(&fleet);
    host.uninstall();
}

struct FleetHosting<'a> {
    setting: &'a WorkerFleet,
    kubectl: &'a Kubectl,
    /// A port of the worker.
    endpoint: String,
}

/// Creates the Service first, as where a cluster assigns the address.
fn endpoint(setting: &WorkerFleet, member: &Member) -> String {
    let kubectl = &member.cluster.kubectl;
    let service = ["fleet", "manifests", "--namespace", NAMESPACE, "--service-only", "--service-type", "node-port"];
    let service = setting.fleet.keelway.run(&service, &[]).succeeded().stdout;
    let _ = kubectl.run_with(&["apply", "-f", "-"], &service).succeeded();
    let port = ["get", "service", "kube-apiserver", "-n", NAMESPACE, "-o", "jsonpath={.spec.ports[0].nodePort}"];
    let port = kubectl.run(&port).succeeded().text().to_owned();
    let address = format!("node/{WORKER}");
    let address = member.cluster.value(&address, "{.status.addresses[?(@.type==\"InternalIP\")].address}");
    format!("{}:{port}", address.split_whitespace().next().unwrap())
}

impl FleetHosting<'_> {
    fn keelway(&self, arguments: &[&str], stdin: &[u8]) -> FinishedCommand {
        self.setting.fleet.keelway.run(arguments, stdin)
    }

    fn in_namespace(&self, arguments: &[&str]) -> FinishedCommand {
        self.kubectl.run(&[arguments, &["-n", NAMESPACE]].concat())
    }

    fn manifests(&self, more: &[&str], stdin: &[u8]) -> Vec<u8> {
        let command = ["fleet", "manifests", "--namespace", NAMESPACE, "--service-type", "node-port"];
        let replicas = REPLICAS.to_string();
        let command = [&command[..], &["--endpoint", &self.endpoint, "--replicas", &replicas], more].concat();
        self.keelway(&command, stdin).succeeded().stdout
    }

    fn secrets(&self) -> Vec<u8> {
        self.in_namespace(&["get", "secrets", "-l", DOCUMENTS, "-o", "yaml"]).succeeded().stdout
    }

    fn apply(&self, manifests: &[u8]) -> FinishedCommand {
        self.kubectl.run_with(&["apply", "-f", "-"], manifests)
    }

    /// The cluster provides no volumes by itself, and its one node stands for three: a node without a host name can run several replicas.
    fn install(&self) {
        for member in 0..REPLICAS {
            let _ = self.setting.worker(WORKER).shell(&format!("mkdir -p {VOLUMES}/{member}")).succeeded();
            self.kubectl.apply(&volume(member));
        }
        let _ = self.kubectl.run(&["label", "node", WORKER, &format!("{HOST_NAME}-")]).succeeded();
        let _ = self.apply(&self.manifests(&[], &[])).succeeded();
    }

    /// Both Events appear, by the commands of the documentation.
    fn is_ready(&self) {
        for reason in ["FleetAPIServerReady", "FleetControlPlaneReady"] {
            let event = format!("event/{reason}");
            let limit = format!("--timeout={}s", deadline::KUBERNETES.as_secs());
            let is_reason = format!("--for=jsonpath={{.reason}}={reason}");
            let waited = self.in_namespace(&["wait", "--for=create", &is_reason, &event, &limit]);
            if waited.code() != 0 {
                println!("{}", self.in_namespace(&["get", "pods,pvc,events"]).text());
                for pod in ["statefulset/etcd", "deployment/kube-apiserver", "deployment/keelway-fleet-host"] {
                    println!("{pod}: {}", self.in_namespace(&["logs", pod, "--tail=15"]).text());
                }
            }
            println!("{:>7} ms  {reason}", waited.succeeded().took.as_millis());
        }
        self.all_replicas_run(&[
            "statefulset/etcd",
            "deployment/kube-apiserver",
            "deployment/keelway-fleet-controller",
        ]);
    }

    fn all_replicas_run(&self, workloads: &[&str]) {
        let limit = format!("--timeout={}s", deadline::KUBERNETES.as_secs());
        for workload in workloads {
            let status = self.in_namespace(&["rollout", "status", workload, &limit]).succeeded();
            println!("{:>7} ms  {}", status.took.as_millis(), status.text());
        }
    }

    /// The fleet stores objects while a member of etcd and an API server are away, and their pods come back with what they had.
    fn survives_the_loss_of_replicas(&self, fleet: &Kubectl) {
        for name in ["etcd", "kube-apiserver"] {
            let first = "jsonpath={.items[0].metadata.name}";
            let label = format!("app.kubernetes.io/name={name}");
            let pod = self.in_namespace(&["get", "pods", "-l", &label, "-o", first]).succeeded().text().to_owned();
            let _ = self.in_namespace(&["delete", "pod", &pod, "--wait=false", "--grace-period=1"]).succeeded();
            // A request without a reply may have had an effect, so it can be sent again.
            let label = format!("stored-without={name}");
            deadline::until(&label, deadline::KUBERNETES, || {
                self.within(|| fleet.run(&["label", "deployment", "stored", "--overwrite", &label]).code() == 0)
            });
        }
        self.all_replicas_run(&["statefulset/etcd", "deployment/kube-apiserver"]);
    }

    /// An administrator's client. Connect with it from the worker.
    fn fleet(&self) -> Kubectl {
        let kubeconfig = self.keelway(&["fleet", "kubeconfig"], &self.secrets()).succeeded().stdout;
        let file = self.setting.fleet.keelway.directory().join("hosted.kubeconfig");
        fs::write(&file, kubeconfig).unwrap();
        Kubectl::new(&file)
    }

    fn within<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        self.setting.worker(WORKER).within(function)
    }

    /// From outside the pod network, the API serves the kinds of a fleet, and the status command finds nothing wrong.
    fn serves(&self, fleet: &Kubectl) {
        self.within(|| {
            let kinds = fleet.run(&["api-resources", "--api-group=fleet.keelway.dev", "-o", "name"]).succeeded();
            for kind in ["clusters", "schedulepolicies", "placements", "works"] {
                assert!(kinds.text().contains(&format!("{kind}.fleet.keelway.dev")), "{}", kinds.text());
            }
            let _ = fleet.run(&["create", "deployment", "stored", "--image=example.com/image"]).succeeded();
        });
        let kubeconfig = fs::read(fleet.file()).unwrap();
        let check = "umask 077; cat > /run/hosted.kubeconfig; keelway fleet status --kubeconfig /run/hosted.kubeconfig";
        let _ = self.setting.worker(WORKER).run(&["bash", "-ec", check], &kubeconfig).succeeded();
    }

    /// `kubectl` sends a patch for fields that the API server fills in, and calls the object configured. The object itself shows whether it changed.
    fn the_same_command_changes_nothing(&self) {
        let listed = |kinds: &str, field: &str| {
            let line = format!(
                "jsonpath={{range .items[*]}}{{.kind}}/{{.metadata.name}} {{.metadata.{field}}}{{'\\n'}}{{end}}"
            );
            self.in_namespace(&["get", kinds, "-o", &line]).succeeded().text().to_owned()
        };
        let state = || {
            [
                listed("pods", "uid"),
                listed("statefulsets,deployments,poddisruptionbudgets", "generation"),
                listed("services,secrets,serviceaccounts,roles,rolebindings", "resourceVersion"),
            ]
        };
        let before = state();
        let _ = self.apply(&self.manifests(&["--existing", "-"], &self.secrets())).succeeded();
        assert_eq!(state(), before);
    }

    /// Without the Secrets, the command makes another fleet, which the API server refuses. The running one continues.
    fn a_run_without_the_secrets_is_refused(&self, fleet: &Kubectl) {
        let refused = self.apply(&self.manifests(&[], &[]));
        assert!(refused.code() != 0 && refused.stderr.contains("immutable"), "{}", refused.stderr);
        let several = self.keelway(&["fleet", "kubeconfig"], &self.secrets());
        assert!(several.code() == 2 && several.stderr.contains("several fleets"), "{}", several.stderr);
        self.within(|| fleet.run(&["get", "deployment", "stored"]).succeeded());
    }

    /// In the order of the documentation.
    fn uninstall(&self) {
        let part = "app.kubernetes.io/part-of=keelway-fleet";
        let workloads = "deployments,statefulsets,poddisruptionbudgets,rolebindings,roles,serviceaccounts";
        for kinds in [workloads, "persistentvolumeclaims", "secrets", "services"] {
            let _ = self.in_namespace(&["delete", kinds, "-l", part]).succeeded();
        }
        let left = || self.in_namespace(&["get", "all,secrets,persistentvolumeclaims", "-o", "name"]).succeeded();
        deadline::until("nothing is left", deadline::KUBERNETES, || left().text().is_empty());
        let _ = self.kubectl.run(&["delete", "namespace", NAMESPACE]).succeeded();
        for member in 0..REPLICAS {
            let _ = self.kubectl.run(&["delete", "persistentvolume", &format!("{NAMESPACE}-{member}")]).succeeded();
        }
        let _ = self.kubectl.run(&["label", "node", WORKER, &format!("{HOST_NAME}={WORKER}")]).succeeded();
    }
}

fn volume(member: usize) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {NAMESPACE}-{member}}}
spec:
  capacity: {{storage: 8Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {{path: {VOLUMES}/{member}}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{{key: kubernetes.io/os, operator: Exists}}]
"
    )
}
