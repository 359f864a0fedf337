//! A user that may edit one namespace of a management cluster tries to affect objects outside it.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use keelway_api::{
    Documents,
    cluster::FINALIZER,
    document::DocumentName,
    documents::SecretName,
    name::{ClusterId, ClusterRef},
    registry::PULL_SECRET,
};
use keelway_reconciler::{ChangingDocuments, Store};
use keelway_stores::kubernetes::KubernetesStore;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{kubectl::Kubectl, plane::Plane};

/// Many times longer than a change takes to arrive. The garbage collector observes a new kind only after half a minute.
const SOON: Duration = Duration::from_secs(120);
const CONDITIONS: &str = "jsonpath={.status.conditions}";
const ID: &str = "bbbbbbbbbbbbbbbb";
const OWN_ID: &str = "aaaaaaaaaaaaaaaa";
/// The documents of another tenant's cluster, as passes write them.
const OTHERS: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: team-b}
spec: {version: 1.37.0}
status: {id: bbbbbbbbbbbbbbbb, observedGeneration: 1, ingressPort: 21000}
---
apiVersion: keelway.dev/v1alpha1
kind: Component
metadata: {name: etcd-0, namespace: keelway-bbbbbbbbbbbbbbbb, labels: {keelway.dev/cluster-id: bbbbbbbbbbbbbbbb, keelway.dev/component: etcd-0}}
spec:
  cluster: {namespace: team-b, name: c1}
  clusterId: bbbbbbbbbbbbbbbb
  role: etcd
  index: 0
  version: 1.37.0
  hypervisor: hv-1
  ports: {client: 20003, peer: 20004}
  user: 1900000001
  placement: it is the only one
status: {conditions: [{type: Ready, status: 'False', reason: Starting, message: it starts, lastTransitionTime: '2026-11-21T11:00:00Z'}]}
---
apiVersion: v1
kind: Secret
metadata: {name: notes, namespace: keelway-bbbbbbbbbbbbbbbb, labels: {keelway.dev/cluster-id: bbbbbbbbbbbbbbbb}}
type: Opaque
data: {note: c2VjcmV0}
";
/// One ClusterClass for each tenant. The operator chooses the registry and its pull secret.
const CLASSES: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: ClusterClass
metadata: {name: small, annotations: {keelway.dev/is-default-class: 'true'}}
spec:
  namespaces: [team-a]
  images: {registry: registry.example.com/mirror, pullSecrets: [{namespace: team-b, name: registry}]}
  limits: {clustersPerNamespace: 1, etcdReplicas: 3, controlPlaneReplicas: 2, ingressReplicas: 1}
  allowedArguments: {kubeAPIServer: [v]}
  versions: [1.36.3, 1.37.0]
---
apiVersion: keelway.dev/v1alpha1
kind: ClusterClass
metadata: {name: large}
spec: {namespaces: [team-b]}
";

struct Tenancy<'a> {
    client: Client,
    operator: &'a Kubectl,
    /// A user that may edit `team-a`.
    tenant: Kubectl,
}

pub(crate) async fn stay_in_their_namespaces(plane: &Plane, operator: &Kubectl) {
    let tenant = Kubectl::new(plane.kubeconfig("anna", &[]));
    let tenancy = Tenancy { client: plane.admin().await, operator, tenant };
    tenancy.begin().await;
    tenancy.read_nothing_of_keelways();
    tenancy.write_no_status();
    tenancy.make_no_secret_of_keelways().await;
    tenancy.pull_with_nobody_elses_secret().await;
    tenancy.get_no_more_than_their_class().await;
    tenancy.hold_up_nobody().await;
    tenancy.hold_up_nobody_while_no_manager_looks().await;
    tenancy.keep_what_they_delete_to_themselves().await;
    tenancy.take_no_name_of_others().await;
}

fn cluster(name: &str, namespace: &str, spec: &Value) -> Value {
    let mut whole = json!({"version": "1.37.0"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({
        "apiVersion": "keelway.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": whole,
    })
}

fn reference(namespace: &str, name: &str) -> ClusterRef {
    ClusterRef { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn secret(namespace: &str, name: &str) -> SecretName {
    SecretName { namespace: namespace.to_owned(), name: name.to_owned() }
}

impl Tenancy<'_> {
    /// Creates the namespaces, the roles of the chart, the rights of the tenant, and the documents of the other tenant.
    async fn begin(&self) {
        for namespace in ["team-a", "team-b"] {
            self.operator.says(&["create", "namespace", namespace]);
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/keelway-manager.yaml");
        let all: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(path).unwrap()).unwrap();
        for role in all.iter().filter(|object| object["kind"] == "ClusterRole") {
            self.operator.does(&["apply", "-f", "-"], &role.to_string());
        }
        self.operator.says(&["create", "rolebinding", "anna", "-n", "team-a", "--clusterrole=edit", "--user=anna"]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.tenant.refuses(&["auth", "can-i", "create", "clusters.keelway.dev", "-n", "team-a"], "").is_some() {
            assert!(Instant::now() < deadline, "the roles are not aggregated");
        }
        let store = self.open();
        let mut documents = Documents::clone(&*store.load().await.unwrap());
        let others = Documents::read_partial(OTHERS.as_bytes(), keelway_api::ReadOptions::default()).unwrap();
        for name in others.all_names() {
            documents.put(&name, others.get(&name).unwrap().owned());
        }
        store.save(&documents).await.unwrap();
    }

    fn open(&self) -> KubernetesStore {
        KubernetesStore::open(self.client.clone())
    }

    fn forbidden(&self, arguments: &[&str]) {
        self.forbids(arguments, "");
    }

    fn forbids(&self, arguments: &[&str], stdin: &str) {
        let told = self.tenant.refuses(arguments, stdin);
        assert!(told.as_ref().is_some_and(|told| told.contains("forbidden")), "{arguments:?}: {told:?}");
    }

    fn apply(&self, document: &Value) {
        self.tenant.does(&["apply", "-f", "-"], &document.to_string());
    }

    /// Loads the documents until `holds` returns true.
    async fn until(&self, what: &str, store: &KubernetesStore, holds: impl Fn(&Documents) -> bool) {
        let wait = async {
            while !holds(&store.load().await.unwrap()) {
                store.changed().await;
            }
        };
        timeout(SOON, wait).await.map_err(|_| what).unwrap();
    }

    /// Loads the documents until the conditions of a Cluster contain `why`.
    async fn until_refused(&self, store: &KubernetesStore, name: &ClusterRef, why: &str) {
        let wait = async {
            loop {
                store.load().await.unwrap();
                let told = self.tenant.says(&["get", "kwc", "-n", &name.namespace, &name.name, "-o", CONDITIONS]);
                if told.contains(why) {
                    return;
                }
                store.changed().await;
            }
        };
        timeout(SOON, wait).await.map_err(|_| why).unwrap();
    }

    fn read_nothing_of_keelways(&self) {
        let namespace = format!("keelway-{ID}");
        for arguments in [
            &["get", "secret", "-n", &namespace, "notes"][..],
            &["get", "secrets", "-n", &namespace],
            &["get", "secrets", "-A"],
            &["get", "components", "-n", &namespace],
            &["get", "components", "-n", "team-a"],
            &["get", "hypervisors"],
            &["get", "clusterclasses"],
            &["get", "kwc", "-n", "team-b"],
            &["get", "kwc", "-A"],
            &["get", "namespaces"],
        ] {
            self.forbidden(arguments);
            self.operator.says(arguments);
        }
        self.tenant.says(&["get", "kwc", "-n", "team-a"]);
    }

    fn write_no_status(&self) {
        self.apply(&cluster("own", "team-a", &json!({})));
        let id = json!({"status": {"id": ID, "ingressPort": 21000}}).to_string();
        let patch = ["patch", "kwc", "own", "-n", "team-a", "--type=merge", "-p", &id];
        let status = [&patch[..], &["--subresource=status"]].concat();
        self.forbidden(&status);
        // The API server accepts such a patch without its status, so that nothing changes.
        self.tenant.says(&patch);
        let told = ["get", "kwc", "own", "-n", "team-a", "-o", "jsonpath={.status.id}"];
        assert_eq!(self.tenant.says(&told), "");
        // With a right that the roles do not grant, the write succeeds.
        let other = id.replace(ID, "cccccccccccccccc");
        let status: Vec<&str> = status.iter().map(|word| if *word == id { &*other } else { *word }).collect();
        self.operator.says(&status);
        assert_eq!(self.tenant.says(&told), "cccccccccccccccc");
        self.tenant.says(&["delete", "kwc", "own", "-n", "team-a"]);
    }

    /// Any tenant can write labels, so that a label alone does not make a Secret one of Keelway's.
    async fn make_no_secret_of_keelways(&self) {
        let labelled = |namespace: &str, name: &str, label: &str, id: &str, kind: &str| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": kind,
                "metadata": {"name": name, "namespace": namespace, "labels": {label: id}},
                "data": {".dockerconfigjson": "e30K"},
            })
        };
        let watching = self.open();
        watching.load().await.unwrap();
        for (name, label, id, kind) in [
            ("others", "keelway.dev/cluster-id", ID, "Opaque"),
            ("nobodys", "keelway.dev/cluster-id", "no id", "Opaque"),
            ("installations", "keelway.dev/installation-id", "00000000000000ff", "Opaque"),
            ("registrys", "keelway.dev/cluster-id", ID, PULL_SECRET),
        ] {
            let id = id.replace(' ', "-");
            self.apply(&labelled("team-a", name, label, &id, kind));
        }
        self.forbids(
            &["apply", "-f", "-"],
            &labelled(&format!("keelway-{ID}"), "others", "keelway.dev/cluster-id", ID, "Opaque").to_string(),
        );
        // The Cluster is written after the Secrets, so that the store has observed them once it has the Cluster.
        self.apply(&cluster("later", "team-a", &json!({})));
        let own = reference("team-a", "later");
        self.until("a Cluster", &watching, |documents| documents.clusters.contains_key(&own)).await;
        let fresh = self.open();
        for documents in [watching.load().await.unwrap(), fresh.load().await.unwrap()] {
            let names: BTreeSet<_> = documents.all_names().collect();
            assert!(names.iter().all(|name| !matches!(name, DocumentName::Secret(name) if name.namespace == "team-a")));
        }
        assert_eq!(keelway_stores::DocumentSource::refused(&fresh), 0);
        let shown = labelled(&format!("keelway-{ID}"), "shown", "keelway.dev/cluster-id", ID, "Opaque").to_string();
        self.operator.does(&["apply", "-f", "-"], &shown);
        let shown = secret(&format!("keelway-{ID}"), "shown");
        self.until("one where Keelway's own are", &fresh, |documents| documents.secrets.contains_key(&shown)).await;
        self.tenant.says(&["delete", "secrets", "-n", "team-a", "others", "nobodys", "installations", "registrys"]);
        self.tenant.says(&["delete", "kwc", "-n", "team-a", "later"]);
    }

    async fn pull_with_nobody_elses_secret(&self) {
        let content = json!({"auths": {"registry.example.com": {"username": "b", "password": "secret"}}}).to_string();
        self.operator.does(
            &["create", "-f", "-"],
            &json!({
                "apiVersion": "v1", "kind": "Secret", "type": PULL_SECRET,
                "metadata": {"name": "registry", "namespace": "team-b"},
                "stringData": {".dockerconfigjson": content},
            })
            .to_string(),
        );
        for name in ["team-b/registry", "../team-b/registry", "registry,metadata.namespace=team-b"] {
            let document = cluster("own", "team-a", &json!({"images": {"pullSecrets": [{"name": name}]}}));
            let told = self.tenant.refuses(&["apply", "-f", "-"], &document.to_string()).unwrap();
            assert!(told.contains("is not an RFC 1123 subdomain"), "{told}");
        }
        let named = json!([{"name": "registry", "namespace": "team-b"}]);
        let document = cluster("own", "team-a", &json!({"images": {"pullSecrets": named}}));
        let told = self.tenant.refuses(&["apply", "-f", "-"], &document.to_string()).unwrap();
        assert!(told.contains("unknown field"), "{told}");
        self.apply(&cluster("own", "team-a", &json!({"images": {"pullSecrets": [{"name": "registry"}]}})));
        let (own, others) = (reference("team-a", "own"), secret("team-b", "registry"));
        let store = self.open();
        self.until("the Cluster", &store, |documents| documents.clusters.contains_key(&own)).await;
        assert!(!store.load().await.unwrap().secrets.contains_key(&others));
        self.refer_to_one_after_the_other(&store).await;
        self.tenant.says(&["delete", "kwc", "-n", "team-a", "own"]);
        // Only the operator can grant this pull secret, by a ClusterClass.
        self.operator.does(&["apply", "-f", "-"], CLASSES);
        self.until("that of a class", &store, |documents| documents.secrets.contains_key(&others)).await;
    }

    /// The store watches a Secret only while a document refers to it. A tenant that refers to many Secrets in turn costs the manager one watch.
    async fn refer_to_one_after_the_other(&self, store: &KubernetesStore) {
        for name in ["first", "second"] {
            let own = json!({
                "apiVersion": "v1", "kind": "Secret", "type": PULL_SECRET,
                "metadata": {"name": name, "namespace": "team-a"}, "stringData": {".dockerconfigjson": r#"{"auths": {}}"#},
            });
            self.apply(&own);
        }
        let (first, second) = (secret("team-a", "first"), secret("team-a", "second"));
        for (name, here, gone) in [("first", &first, &second), ("second", &second, &first), ("first", &first, &second)]
        {
            self.apply(&cluster("own", "team-a", &json!({"images": {"pullSecrets": [{"name": name}]}})));
            let is_so =
                |documents: &Documents| documents.secrets.contains_key(here) && !documents.secrets.contains_key(gone);
            self.until(name, store, is_so).await;
        }
        self.tenant.says(&["delete", "secrets", "-n", "team-a", "first", "second"]);
    }

    async fn get_no_more_than_their_class(&self) {
        let store = self.open();
        store.load().await.unwrap();
        let own = reference("team-a", "own");
        let ways = [
            (
                json!({"className": "large"}),
                "spec.className: ClusterClass large is not allowed in namespace team-a; use one of: small",
            ),
            (json!({"className": "nothing"}), "ClusterClass nothing does not exist"),
            (
                json!({"etcd": {"replicas": 5}}),
                "spec.etcd.replicas: 5 is more than its ClusterClass allows; write 3 or less",
            ),
            (json!({"controlPlane": {"replicas": 3}}), "spec.controlPlane.replicas: 3 is more"),
            (
                json!({"controlPlane": {"kubeScheduler": {"replicas": 9}}}),
                "spec.controlPlane.kubeScheduler.replicas: 9 is more",
            ),
            (json!({"ingress": {"replicas": 2}}), "spec.ingress.replicas: 2 is more"),
            (json!({"version": "1.35.4"}), "spec.version: 1.35.4 is not allowed by its ClusterClass"),
            (json!({"images": {"registry": "evil.example.com"}}), "spec.images.registry: must not be set"),
            (json!({"images": {"pullSecrets": [{"name": "own"}]}}), "spec.images.pullSecrets: must not be set"),
            (
                json!({"controlPlane": {"kubeAPIServer": {"extraArgs": {"event-ttl": "1h"}}}}),
                "event-ttl is not allowed by its ClusterClass",
            ),
        ];
        for (spec, why) in &ways {
            self.apply(&cluster("own", "team-a", spec));
            self.until_refused(&store, &own, why).await;
            assert!(!store.load().await.unwrap().clusters.contains_key(&own), "{spec}");
            self.tenant.says(&["delete", "kwc", "-n", "team-a", "own"]);
        }
        // One Cluster is accepted. A later change cannot raise it above the limits, and a second Cluster is refused.
        self.apply(&cluster("own", "team-a", &json!({})));
        self.until("what is allowed", &store, |documents| documents.clusters.contains_key(&own)).await;
        self.tenant.says(&["scale", "kwc", "-n", "team-a", "own", "--replicas=9"]);
        self.until_refused(&store, &own, "spec.controlPlane.replicas: 9 is more").await;
        assert_eq!(store.load().await.unwrap().clusters[&own].spec.control_plane.replicas, 1);
        self.apply(&cluster("second", "team-a", &json!({})));
        let second = reference("team-a", "second");
        self.until_refused(&store, &second, "namespace team-a already has 1 Clusters of ClusterClass small").await;
        self.tenant.says(&["delete", "kwc", "-n", "team-a", "second"]);
        // Without classes, it is accepted.
        self.operator.does(&["delete", "-f", "-"], CLASSES);
        self.until("what no class forbids", &store, |documents| {
            documents.clusters.get(&own).is_some_and(|cluster| cluster.spec.control_plane.replicas == 9)
        })
        .await;
        self.tenant.says(&["delete", "kwc", "-n", "team-a", "own"]);
    }

    /// Neither a Cluster that is refused, nor one as large as the API server accepts, delays other tenants.
    async fn hold_up_nobody(&self) {
        let store = self.open();
        store.load().await.unwrap();
        self.apply(&cluster("broken", "team-a", &json!({"className": "nothing"})));
        let finalizers: Vec<String> = (0..6_000).map(|index| format!("example.com/{index:0>60}")).collect();
        let mut huge = cluster("huge", "team-a", &json!({}));
        huge["metadata"]["finalizers"] = json!(finalizers);
        self.tenant.does(&["create", "-f", "-"], &huge.to_string());
        self.operator.does(&["apply", "-f", "-"], &cluster("c2", "team-b", &json!({})).to_string());
        let others = reference("team-b", "c2");
        self.until("another's", &store, |documents| documents.clusters.contains_key(&others)).await;
        self.until_refused(&store, &reference("team-a", "broken"), "ClusterClass nothing does not exist").await;
        assert!(self.open().load().await.unwrap().clusters.contains_key(&others), "nor when a manager begins");
        let whole = r#"{"metadata":{"finalizers":null}}"#;
        self.tenant.says(&["patch", "kwc", "-n", "team-a", "huge", "--type=merge", "-p", whole]);
        self.tenant.says(&["delete", "kwc", "-n", "team-a", "huge", "broken"]);
    }

    /// What a pass decided is stored outside the documents that a tenant can delete or damage while no manager runs.
    async fn hold_up_nobody_while_no_manager_looks(&self) {
        self.operator.does(&["apply", "-f", "-"], CLASSES);
        self.apply(&cluster("own", "team-a", &json!({})));
        let own = reference("team-a", "own");
        let store = self.open();
        self.until("the Cluster", &store, |documents| documents.clusters.contains_key(&own)).await;
        store.save(&running(&store.load().await.unwrap(), &own)).await.unwrap();
        drop(store);
        let others: ClusterId = ID.parse().unwrap();
        let replicas = |replicas: u32| json!({"spec": {"controlPlane": {"replicas": replicas}}}).to_string();
        let patch = |patch: &str| {
            self.tenant.says(&["patch", "kwc", "-n", "team-a", "own", "--type=merge", "-p", patch]);
        };
        // The tenant asks for more than the class allows.
        patch(&replicas(9));
        let store = self.open();
        let documents = store.load().await.unwrap();
        assert!(!documents.clusters.contains_key(&own), "it waits");
        assert_eq!(documents.components_of(&others).count(), 1, "and nobody else");
        assert!(documents.components_of(&OWN_ID.parse().unwrap()).next().is_none());
        let component = ["get", "component", "-n", &format!("keelway-{OWN_ID}"), "etcd-0"];
        self.operator.says(&component);
        patch(&replicas(2));
        self.until("what is mended", &store, |documents| documents.clusters.contains_key(&own)).await;
        assert_eq!(store.load().await.unwrap().components_of(&OWN_ID.parse().unwrap()).count(), 1, "as it was");
        drop(store);
        // The tenant removes the finalizer of its Cluster and deletes it.
        patch(r#"{"metadata":{"finalizers":null}}"#);
        self.tenant.says(&["delete", "kwc", "-n", "team-a", "own"]);
        let documents = self.open().load().await.unwrap();
        assert_eq!(documents.components_of(&others).count(), 1);
        self.operator.says(&component);
        for kind in ["components", "secrets"] {
            self.operator.says(&["delete", kind, "--all", "-n", &format!("keelway-{OWN_ID}")]);
        }
    }

    async fn keep_what_they_delete_to_themselves(&self) {
        let mut document = cluster("kept", "team-a", &json!({}));
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nothing", "uid": "00000000-0000-0000-0000-000000000000"});
        document["metadata"]["finalizers"] = json!(["example.com/mine"]);
        self.apply(&document);
        let own = reference("team-a", "kept");
        let store = self.open();
        self.until("the Cluster", &store, |documents| documents.clusters.contains_key(&own)).await;
        store.save(&running(&store.load().await.unwrap(), &own)).await.unwrap();
        // The owner does not exist, so that the garbage collector deletes the Cluster.
        let patch = json!({"metadata": {"ownerReferences": [owner]}}).to_string();
        self.tenant.says(&["patch", "kwc", "-n", "team-a", "kept", "--type=merge", "-p", &patch]);
        let is_deleted = |documents: &Documents| documents.clusters.get(&own).is_some_and(|cluster| cluster.deleted());
        self.until("its deletion", &store, is_deleted).await;
        let mut documents = Documents::clone(&*store.load().await.unwrap());
        assert_eq!(documents.components_of(&OWN_ID.parse().unwrap()).count(), 1, "machines come first");
        documents.remove_cluster(&own, &OWN_ID.parse().unwrap());
        store.save(&documents).await.unwrap();
        assert!(!store.load().await.unwrap().clusters.contains_key(&own));
        let left = ["get", "kwc", "-n", "team-a", "kept", "-o", "jsonpath={.metadata.finalizers}"];
        assert_eq!(self.tenant.says(&left), r#"["example.com/mine"]"#, "the rest is their own affair");
        let fresh = self.open().load().await.unwrap();
        assert!(!fresh.clusters.contains_key(&own) && fresh.clusters.contains_key(&reference("team-b", "c1")));
        let whole = r#"{"metadata":{"finalizers":null}}"#;
        self.tenant.says(&["patch", "kwc", "-n", "team-a", "kept", "--type=merge", "-p", whole]);
    }

    async fn take_no_name_of_others(&self) {
        let inside = cluster("c1", &format!("keelway-{ID}"), &json!({})).to_string();
        self.forbids(&["apply", "-f", "-"], &inside);
        self.forbids(&["apply", "-f", "-"], &cluster("c1", "team-b", &json!({})).to_string());
        for name in ["team-b.c1", "c1.yaml"] {
            let document = cluster(name, "team-a", &json!({})).to_string();
            let told = self.tenant.refuses(&["apply", "-f", "-"], &document).unwrap();
            assert!(told.contains("is not an RFC 1123 label"), "{told}");
        }
        // A Cluster of the same name in another namespace is another cluster.
        self.apply(&cluster("c1", "team-a", &json!({})));
        let store = self.open();
        let own = reference("team-a", "c1");
        self.until("the Cluster", &store, |documents| documents.clusters.contains_key(&own)).await;
        let documents = store.load().await.unwrap();
        assert!(documents.clusters[&own].id().is_none());
        assert_eq!(documents.clusters[&reference("team-b", "c1")].id().unwrap().as_str(), ID);
    }
}

/// Returns the documents with what a pass adds when it starts a cluster.
fn running(documents: &Documents, name: &ClusterRef) -> Documents {
    let text = OTHERS
        .replace(ID, OWN_ID)
        .replace("team-b", &name.namespace)
        .replace("name: c1", &format!("name: {}", name.name))
        .replace("20003", "20005")
        .replace("20004", "20006")
        .replace("1900000001", "1900000002")
        .replace("21000", "21001");
    let own = Documents::read_partial(text.as_bytes(), keelway_api::ReadOptions::default()).unwrap();
    let mut next = documents.clone();
    for part in own.all_names().filter(|part| !matches!(part, DocumentName::Cluster(_))) {
        next.put(&part, own.get(&part).unwrap().owned());
    }
    let cluster = next.clusters.get_mut(name).unwrap();
    let mut status = own.clusters[name].status.clone().unwrap();
    status.observed_generation = cluster.metadata.generation;
    cluster.status = Some(status);
    cluster.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
    next
}
