//! Input that reading accepts, and how it is written.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use keelway_api::{Documents, ReadOptions};

const WORLD: &str = include_str!("good/world.yaml");

fn read(text: &str) -> Documents {
    Documents::read(text.as_bytes()).unwrap()
}

#[test]
fn a_placement_in_a_status_is_moved_to_the_spec() {
    let placement = "  placement: \"because: it is free\"\n";
    let before = WORLD.replace(&format!("{placement}status:\n"), &format!("status:\n{placement}"));
    assert_ne!(before, WORLD);
    assert_eq!(read(&before).components, read(WORLD).components);
}

#[test]
fn a_world_is_written_in_canonical_form() {
    insta::assert_snapshot!(read(WORLD).write());
}

#[test]
fn written_documents_are_read_back_unchanged() {
    let world = read(WORLD);
    let written = world.write();
    let again = read(&written);
    assert_eq!(again, world);
    assert_eq!(again.write(), written);
}

#[test]
fn keys_are_in_no_debug_output_and_no_fault() {
    let world = read(WORLD);
    let key = &world.secrets.values().next().unwrap().data.as_ref().unwrap()["tls.key"];
    let forms = ["c2VjcmV0".to_owned(), "secret\"".to_owned(), format!("{:?}", key.0)];
    let debug = format!("{world:?}");
    assert!(forms.iter().all(|form| !debug.contains(form)), "{debug}");
    for damaged in ["[c2VjcmV0", "{c2VjcmV0", "*c2VjcmV0", "!c2VjcmV0 x", "c2VjcmV0-", "'c2VjcmV0", "[c2VjcmV0]"] {
        let input = WORLD.replace("tls.key: c2VjcmV0", &format!("tls.key: {damaged}"));
        let faults = Documents::read(input.as_bytes()).unwrap_err().to_string();
        assert!(!faults.contains("c2VjcmV0"), "{faults}");
    }
}

#[test]
fn new_documents_follow_and_removed_ones_leave_their_place() {
    let mut world = read(WORLD);
    let before = world.write();
    let name = world.hypervisors.keys().next().unwrap().clone();
    let machine = world.hypervisors.remove(&name).unwrap();
    let without = world.write();
    assert!(!without.contains("name: hv-1\n"));
    world.hypervisors.insert(name, machine.clone());
    assert_eq!(world.write(), before, "what comes back takes its old place");
    world.hypervisors.insert("hv-0".parse().unwrap(), machine);
    assert!(world.write().starts_with(&before));
}

/// Reads the world with a cluster whose etcd has started and served.
fn born(change: impl Fn(String) -> String) -> Result<Documents, keelway_api::fault::Faults> {
    let status = r#""status": {"id": "0123456789abcdef", "etcd": {"bornAt": "2026-11-21T11:00:00Z",
      "initialCluster": {"etcd-0": ["https://10.0.0.11:20001"]}, "members": {"etcd-0": {"id": "a", "phase": "Started"}}}}"#;
    let text = WORLD.replace(r#""status": {"id": "0123456789abcdef"}"#, status);
    let text = text.replace("  conditions:\n  - {type: Ready", "  stage: Serving\n  conditions:\n  - {type: Ready");
    let key = "metadata:\n  name: encryption\n  namespace: keelway-0123456789abcdef\n  labels: {keelway.dev/cluster-id: 0123456789abcdef}";
    let text = format!("{text}\n---\napiVersion: v1\nkind: Secret\n{key}\ndata: {{active.key: c2VjcmV0}}\n");
    Documents::read_with(change(text).as_bytes(), ReadOptions { is_complete_world: true, ..ReadOptions::default() })
}

#[test]
fn missing_documents_of_a_store_are_errors() {
    assert!(born(|text| text).is_ok());
    let problems = |change: &dyn Fn(String) -> String| -> Vec<String> {
        let faults = born(change).unwrap_err().0;
        assert!(faults.iter().all(|fault| fault.document == "document 4 (Cluster c1)" && !fault.help.is_empty()));
        faults.into_iter().map(|fault| format!("{}: {}", fault.field, fault.problem)).collect()
    };
    assert_eq!(
        problems(&|text| text.replace(r#""members": {"etcd-0": {"#, r#""members": {"etcd-1": {"#)),
        [
            "status.etcd: etcd-0 served requests, but this status does not record it",
            "status.etcd.members.etcd-1: Component etcd-1 does not exist, and Keelway cannot recreate its data",
        ]
    );
    assert_eq!(
        problems(&|text| text.replace("Started", "Pending")),
        ["status.etcd: etcd-0 served requests, but this status does not record it"]
    );
    assert_eq!(
        problems(&|text| text.replace("name: encryption", "name: other")),
        [
            "status.id: Secret keelway-0123456789abcdef/encryption does not exist, but the Secrets in the cluster are encrypted with its key"
        ]
    );
    let ingress = "metadata: {name: ingress-0, namespace: keelway-0123456789abcdef}
spec:
  cluster: {namespace: default, name: c1}
  clusterId: 0123456789abcdef
  role: ingress
  index: 0
  version: 1.37.0
  hypervisor: hv-2
  ports: {api: 20000}
  user: 900001";
    assert_eq!(
        problems(&|text| format!("{text}---\napiVersion: keelway.dev/v1alpha1\nkind: Component\n{ingress}\n")),
        ["status.ingressPort: ingress-0 has port 20000"]
    );
}

#[test]
fn items_of_a_list_are_documents() {
    let list = "apiVersion: v1\nkind: List\nmetadata: {resourceVersion: ''}\nitems:\n- apiVersion: keelway.dev/v1alpha1\n  kind: \
                Cluster\n  metadata: {name: c1, namespace: default, uid: 1b-2, resourceVersion: '7'}\n  spec: {version: 1.37.0}\n- \
                {apiVersion: v1, kind: Secret, metadata: {name: mine}, data: {a: Yg==}}\n";
    let documents = read(list);
    assert_eq!((documents.clusters.len(), documents.user_secrets.len()), (1, 1));
    let written = documents.write();
    assert!(written.contains("\n---\n{\"apiVersion\":\"v1\",\"kind\":\"Secret\""), "{written}");
    assert_eq!(read(&written), documents);
}
