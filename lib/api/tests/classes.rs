//! Clusters that request more than their classes allow, and the defaults of classes.

use keelway_api::{Documents, ReadOptions, fault::Faults};

const CLASSES: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: ClusterClass
metadata: {name: small, annotations: {keelway.dev/is-default-class: 'true'}}
spec:
  namespaces: [team-a]
  images: {registry: registry.example.com/mirror}
  limits: {clustersPerNamespace: 2, etcdReplicas: 3, controlPlaneReplicas: 2, ingressReplicas: 1}
  allowedArguments: {kubeAPIServer: [v], kubeScheduler: []}
  versions: [1.36.3, 1.37.0]
---
apiVersion: keelway.dev/v1alpha1
kind: ClusterClass
metadata: {name: large}
spec: {namespaces: [team-b]}
---
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-1}
spec: {role: Private, endpoint: {unix: {path: /run/1.sock}}, addresses: {private: [10.0.0.1]}}
---
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-2}
spec: {role: Public, endpoint: {unix: {path: /run/2.sock}}, addresses: {private: [10.0.0.2], public: [192.0.2.2]}}
";

fn cluster(name: &str, namespace: &str, spec: &str) -> String {
    let version = if spec.contains("version:") { "" } else { "version: 1.37.0, " };
    format!(
        "---\napiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{{version}{spec}}}\n"
    )
}

fn read(text: &str) -> Result<Documents, Faults> {
    Documents::read_with(text.as_bytes(), ReadOptions { is_complete_world: true, ..ReadOptions::default() })
}

/// Returns field, problem and help of each fault.
fn told(clusters: &str) -> Vec<String> {
    let faults = read(&format!("{CLASSES}{clusters}")).err().map(|faults| faults.0).unwrap_or_default();
    faults.into_iter().map(|fault| format!("{}: {}; {}", fault.field, fault.problem, fault.help)).collect()
}

#[test]
fn without_classes_nothing_changes() {
    let machines = CLASSES.split_once("kind: Hypervisor").unwrap().1;
    let machines = format!("apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor{machines}");
    assert!(read(&(machines.clone() + &cluster("c1", "team-c", "etcd: {replicas: 7}"))).is_ok());
    let named = read(&(machines + &cluster("c1", "team-c", "className: large"))).unwrap_err();
    assert!(named.to_string().contains("ClusterClass large does not exist"), "{named}");
}

#[test]
fn a_cluster_is_of_a_class_of_its_namespace() {
    assert_eq!(told(&cluster("c1", "team-a", "")), [""; 0]);
    assert_eq!(told(&cluster("c1", "team-b", "className: large, etcd: {replicas: 7}")), [""; 0]);
    assert_eq!(
        told(&cluster("c1", "team-a", "className: large")),
        ["spec.className: ClusterClass large is not allowed in namespace team-a; use one of: small"]
    );
    assert_eq!(
        told(&cluster("c1", "team-b", "")),
        ["spec.className: is required, because the default is not allowed in its namespace; use one of: large"]
    );
    assert_eq!(
        told(&cluster("c1", "team-c", "className: none")),
        [
            "spec.className: ClusterClass none does not exist; ask the operator of Keelway for a ClusterClass for namespace team-c"
        ]
    );
    let none = CLASSES.replace("'true'", "'false'");
    let faults = read(&(none + &cluster("c1", "team-a", ""))).unwrap_err().to_string();
    assert!(faults.contains("spec.className: is required, because there is no default; use one of: small"), "{faults}");
}

#[test]
fn a_cluster_must_not_exceed_its_class() {
    let spec = "version: 1.35.4, etcd: {replicas: 5}, ingress: {replicas: 2}, images: {registry: elsewhere.example.com}, \
                controlPlane: {replicas: 1, kubeAPIServer: {replicas: 3, extraArgs: {v: '2', event-ttl: 1h}}, \
                kubeScheduler: {extraArgs: {v: '2'}}, kubeControllerManager: {extraArgs: {v: '2'}}}";
    let mut found = told(&cluster("c1", "team-a", spec));
    found.sort();
    assert_eq!(
        found,
        [
            "spec.controlPlane.kubeAPIServer.extraArgs.event-ttl: event-ttl is not allowed by its ClusterClass; remove it; \
             allowed arguments: v",
            "spec.controlPlane.kubeAPIServer.replicas: 3 is more than its ClusterClass allows; write 2 or less",
            "spec.controlPlane.kubeScheduler.extraArgs.v: v is not allowed by its ClusterClass; remove it: the ClusterClass \
             allows no arguments here",
            "spec.etcd.replicas: 5 is more than its ClusterClass allows; write 3 or less",
            "spec.images.registry: must not be set: its ClusterClass sets the source of images; remove it",
            "spec.ingress.replicas: 2 is more than its ClusterClass allows; write 1 or less",
            "spec.version: 1.35.4 is not allowed by its ClusterClass; write one of 1.36.3, 1.37.0",
        ]
    );
}

#[test]
fn amounts_and_lives_are_within_the_limits_of_a_class() {
    let class = "apiVersion: keelway.dev/v1alpha1\nkind: ClusterClass\nmetadata: {name: bounded}\nspec:\n  limits: {cpu: '2', \
                 memory: 4Gi, etcdQuota: 2Gi, minTTL: {authorityTTL: 8760h}, maxTTL: {adminTTL: 24h}}\n";
    let told = |spec: &str| -> Vec<String> {
        let text = cluster("c1", "team-a", &format!("className: bounded, {spec}"));
        let faults = read(&format!("{CLASSES}---\n{class}{text}")).map_or_else(|faults| faults.0, |_| Vec::new());
        faults.into_iter().map(|fault| format!("{}: {}; {}", fault.field, fault.problem, fault.help)).collect()
    };
    assert_eq!(told("etcd: {quota: 2Gi, resources: {limits: {memory: 4Gi}}}"), [""; 0]);
    let mut found = told(
        "etcd: {quota: 4Gi, resources: {limits: {cpu: '4', memory: 6Gi}}}, certificates: {authorityTTL: 100h, workerTTL: 1h, \
         adminTTL: 25h, componentTTL: 1h}",
    );
    found.sort();
    assert_eq!(
        found,
        [
            "spec.certificates.adminTTL: 25h is longer than its ClusterClass allows; write 24h or less",
            "spec.certificates.authorityTTL: 100h is shorter than its ClusterClass allows; write 8760h or more",
            "spec.etcd.quota: 4Gi is more than its ClusterClass allows; write 2Gi or less",
            "spec.etcd.resources.limits.cpu: 4 is more than its ClusterClass allows; write 2 or less",
            "spec.etcd.resources.limits.memory: 6Gi is more than its ClusterClass allows; write 4Gi or less",
        ]
    );
}

#[test]
fn a_worker_cannot_renew_its_certificate_for_longer_than_its_class_allows() {
    let class = "apiVersion: keelway.dev/v1alpha1\nkind: ClusterClass\nmetadata: {name: strict}\nspec:\n  limits: \
                 {minTTL: {workerGrace: 1h}, maxTTL: {workerGrace: 720h}}\n";
    let told =
        |spec: &str| told(&format!("---\n{class}{}", cluster("c1", "team-a", &format!("className: strict{spec}"))));
    assert_eq!(told(", certificates: {workerGrace: 720h}"), [""; 0]);
    let long = "spec.certificates.workerGrace: 2160h is longer than its ClusterClass allows; write 720h or less";
    assert_eq!(told(""), [long], "the default is longer");
    let short = "spec.certificates.workerGrace: 0s is shorter than its ClusterClass allows; write 1h or more";
    assert_eq!(told(", certificates: {workerGrace: 0s}"), [short]);
}

const DIRECTORY: &str = "etcd: {snapshots: {sink: {directory: {path: /srv/snapshots/team-a}}}}";

#[test]
fn snapshots_are_stored_only_where_the_class_allows() {
    let refused = |classes: &str, spec: &str| {
        let found =
            read(&format!("{classes}{}", cluster("c1", "team-a", spec))).map_or_else(|faults| faults.0, |_| Vec::new());
        found.into_iter().map(|fault| format!("{}: {}; {}", fault.field, fault.problem, fault.help)).collect::<Vec<_>>()
    };
    let problem = "is not a place for snapshots that its ClusterClass allows";
    let none = format!(
        "spec.etcd.snapshots.sink.directory.path: {problem}; remove spec.etcd.snapshots, or ask the operator of Keelway to add the \
         place to snapshotSinks of the class"
    );
    assert_eq!(refused(CLASSES, DIRECTORY), [none], "a class without sinks allows none");
    let sinks = "spec:\n  snapshotSinks: [{directory: {path: /srv/snapshots}}, {s3: {endpoint: 'https://s3.example.com', bucket: \
                 backups, prefix: team-a}}]\n  namespaces: [team-a]\n";
    let classes = CLASSES.replacen("spec:\n  namespaces: [team-a]\n", sinks, 1);
    assert_eq!(refused(&classes, DIRECTORY), [""; 0]);
    let other = format!(
        "spec.etcd.snapshots.sink.directory.path: {problem}; use one of these, or a place below: directory /srv/snapshots, bucket \
         backups of https://s3.example.com with prefix team-a"
    );
    assert_eq!(refused(&classes, &DIRECTORY.replace("/srv/snapshots", "/etc")), [other]);
    let bucket = |prefix: &str| {
        let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: store, namespace: team-a}\nstringData: {accessKeyID: a, \
                      secretAccessKey: b}\n";
        let spec = format!(
            "etcd: {{snapshots: {{sink: {{s3: {{endpoint: 'https://s3.example.com', bucket: backups, prefix: {prefix}, \
             credentialsSecret: {{name: store}}}}}}}}}}"
        );
        refused(&format!("{classes}{secret}"), &spec)
    };
    assert_eq!(bucket("team-a/c1"), [""; 0]);
    assert_eq!(bucket("team-b").len(), 1);
}

#[test]
fn snapshots_are_stored_anywhere_without_classes() {
    let machines = CLASSES.split_once("kind: Hypervisor").unwrap().1;
    let machines = format!("apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor{machines}");
    assert!(read(&(machines + &cluster("c1", "team-a", DIRECTORY))).is_ok());
}

#[test]
fn a_namespace_has_no_more_clusters_than_its_class_allows() {
    let three: String = ["c1", "c2", "c3"].map(|name| cluster(name, "team-a", "")).concat();
    assert_eq!(
        told(&three),
        [
            "spec.className: namespace team-a already has 2 Clusters of ClusterClass small, the maximum; delete another one, \
          or ask the operator of Keelway for a higher limit"
        ]
    );
    // Clusters that already run are counted first, whatever their names.
    let running = three.replacen(
        "metadata: {name: c3, namespace: team-a}\nspec: {version: 1.37.0, }\n",
        "metadata: {name: c3, namespace: team-a}\nspec: {version: 1.37.0, }\nstatus: {id: 0123456789abcdef}\n",
        1,
    );
    assert_ne!(running, three);
    let faults = read(&format!("{CLASSES}{running}")).unwrap_err();
    assert_eq!(faults.0.len(), 1);
    assert!(faults.0[0].document.contains("team-a/c2"), "{faults}");
}

#[test]
fn a_refused_cluster_does_not_count_against_the_limit() {
    let broken = cluster("c0", "team-a", "etcd: {replicas: 5}");
    let three: String = ["c1", "c2"].map(|name| cluster(name, "team-a", "")).concat() + &broken;
    assert_eq!(told(&three), ["spec.etcd.replicas: 5 is more than its ClusterClass allows; write 3 or less"]);
}

#[test]
fn a_default_class_applies_only_in_its_namespaces() {
    let running = |namespace: &str| {
        let text = cluster("c1", namespace, "");
        let documents = Documents::read(format!("{CLASSES}{text}").as_bytes()).unwrap();
        let cluster = documents.clusters.values().next().unwrap().clone();
        documents.class_of(&cluster).and_then(|class| class.metadata.name.clone())
    };
    assert_eq!((running("team-a").as_deref(), running("team-b")), (Some("small"), None));
}

#[test]
fn only_selected_clusters_are_checked_against_their_class() {
    let text = format!("{CLASSES}{}", cluster("c1", "team-a", "etcd: {replicas: 5}"));
    let documents = Documents::read(text.as_bytes()).unwrap();
    assert_eq!(documents.faults_of_classes(|_, _| false).len(), 0);
    assert_eq!(documents.faults_of_classes(|_, _| true).len(), 1);
    assert!(documents.faults_between().is_empty());
}

#[test]
fn pull_secrets_of_a_class_must_exist() {
    let class = CLASSES.replace("/mirror}", "/mirror, pullSecrets: [{namespace: registries, name: mirror}]}");
    let told = read(&class).unwrap_err().to_string();
    assert!(told.contains("spec.images.pullSecrets[0].name: Secret registries/mirror of type"), "{told}");
}
