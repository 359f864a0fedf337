//! Laws of reading and writing, on generated documents.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::{collections::BTreeMap, time::Instant};

use keelway_api::{
    ByteString, Cluster, Component, Documents, Hypervisor, Newer, ObjectMeta, Secret,
    cluster::{ClusterSpec, ClusterStatus},
    component::ComponentSpec,
    documents::SecretName,
    hypervisor::{Addresses, HypervisorEndpoint, HypervisorRole, HypervisorSpec, PortRange},
    machine::CLUSTER_LABEL,
    name::{ClusterId, ClusterRef},
    role::Role,
};
use proptest::prelude::*;

const WORLD: &str = include_str!("good/world.yaml");

fn read(text: &str) -> Documents {
    Documents::read(text.as_bytes()).unwrap()
}

/// Ids as Keelway generates them, and ids that YAML could read as numbers.
fn id() -> impl Strategy<Value = ClusterId> {
    prop_oneof!["[0-9a-f]{16}", "[0-9]{16}", "0[0-7]{15}", "[0-9]{5}e[0-9]{10}"].prop_map(|text| text.parse().unwrap())
}

/// Text of any kind, and text that YAML could read as another type.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[ -~\n\t]{0,40}",
        "( |\n|a|-|#|:|'|\"|\\||>){0,12}",
        "(word ){0,40}",
        "(line of a text\n){1,5}\n{0,2}",
        Just("---\n...\n".to_owned()),
        Just("yes".to_owned()),
        Just("1.10".to_owned()),
        Just("~".to_owned()),
    ]
}

fn metadata(name: &str, namespace: Option<String>, note: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace,
        annotations: Some(BTreeMap::from([("note".to_owned(), note)])),
        ..ObjectMeta::default()
    }
}

/// A value of a label, and values that YAML could read as another type.
fn label() -> impl Strategy<Value = String> {
    prop_oneof!["([A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?)?", Just("yes".to_owned()), Just("1.10".to_owned())]
}

fn machine(note: String, zone: String) -> Hypervisor {
    let spec = HypervisorSpec {
        role: HypervisorRole::Private,
        endpoint: HypervisorEndpoint::Unix { path: "/run/containerd/containerd.sock".to_owned() },
        addresses: Addresses { private: vec!["10.0.0.11".to_owned()], ..Addresses::default() },
        port_range: PortRange::default(),
        unschedulable: false,
        drain: false,
        newer: Newer::default(),
    };
    let mut machine = Hypervisor::new("hv-1", spec);
    machine.metadata = metadata("hv-1", None, note);
    machine.metadata.labels = Some(BTreeMap::from([("zone".to_owned(), zone)]));
    machine
}

fn cluster(name: &str, id: ClusterId, note: String) -> Cluster {
    let spec: ClusterSpec = serde_json::from_value(serde_json::json!({"version": "1.37.0"})).unwrap();
    let mut cluster = Cluster::new(name, spec);
    cluster.metadata = metadata(name, None, note);
    cluster.status = Some(ClusterStatus { id: Some(id), ..ClusterStatus::default() });
    cluster
}

fn component(of: &str, id: &ClusterId, placement: String) -> Component {
    let spec = ComponentSpec {
        cluster: ClusterRef { namespace: "default".to_owned(), name: of.to_owned() },
        cluster_id: id.clone(),
        role: Role::Etcd,
        index: 0,
        version: "1.37.0".to_owned(),
        hypervisor: "hv-1".parse().unwrap(),
        ports: BTreeMap::from([("client".to_owned(), 20000), ("peer".to_owned(), 20001)]),
        user: 900_000,
        placement,
        newer: Newer::default(),
    };
    let mut component = Component::new("etcd-0", spec);
    component.metadata.namespace = Some(id.namespace());
    component
}

fn secret(id: &ClusterId, name: &str, value: Vec<u8>, note: String) -> Secret {
    let mut metadata = metadata(name, Some(id.namespace()), note);
    metadata.labels = Some(BTreeMap::from([(CLUSTER_LABEL.to_owned(), id.to_string())]));
    let data = [("key".to_owned(), ByteString(value))].into();
    Secret { metadata: metadata.into(), data: Some(data), ..Secret::default() }
}

/// Documents with one machine, one cluster, one component and one Secret.
fn world() -> impl Strategy<Value = Documents> {
    (id(), text(), label(), text(), prop::collection::vec(any::<u8>(), 1..200)).prop_map(
        |(id, note, zone, placement, value)| {
            let mut documents = Documents::default();
            documents.hypervisors.insert("hv-1".parse().unwrap(), machine(note.clone(), zone));
            let owner = cluster("c1", id.clone(), note.clone());
            documents.clusters.insert(owner.reference(), owner);
            let part = component("c1", &id, placement);
            documents.components.insert(part.spec.pod().unwrap(), part);
            let name = SecretName::of(&id, "kubernetes-ca");
            documents.secrets.insert(name, secret(&id, "kubernetes-ca", value, note));
            documents
        },
    )
}

/// Foreign text between documents: `BARE` follows a `...` or begins the input, and `SEPARATED` has its own `---`.
const BARE: [&str; 6] = [
    "# a comment\n",
    "apiVersion: v1\nkind: X\n...\n",
    "%YAML 1.2\n---\napiVersion: v1\nkind: X\n...\n",
    "{\"apiVersion\": \"v1\", \"kind\": \"X\"}\n",
    "{\"apiVersion\": \"v1\", \"kind\": \"X\"} {\"apiVersion\": \"v1\", \"kind\": \"Y\"}\n...\n",
    "\n\n# c\n...\n",
];
const SEPARATED: [&str; 8] = [
    "---\n",
    "--- # empty\n",
    "---\r\napiVersion: v1\r\nkind: X\r\n...\r\n",
    "---\napiVersion: v1\nkind: X\ntext: |+\n  a\n\n\n",
    "--- {apiVersion: v1, kind: X, 1: [~, !t x, &a b, *a]}\n",
    "---\n{\"apiVersion\": \"v1\", \"kind\": \"X\"}\n{\"apiVersion\": \"v1\", \"kind\": \"X\"}\n",
    "---\napiVersion: v1\nkind: Secret\nmetadata: {name: not-ours}\n... # end\n",
    "---\n# only a comment\n",
];

/// Foreign texts in an order in which they can follow each other.
fn foreign() -> impl Strategy<Value = Vec<&'static str>> {
    let piece = (any::<bool>(), 0..BARE.len(), 0..SEPARATED.len());
    prop::collection::vec(piece, 0..6).prop_map(|pieces| {
        let mut texts: Vec<&str> = Vec::new();
        for (bare, at_bare, at_separated) in pieces {
            let open = texts.last().is_none_or(|text| text.lines().last().unwrap().starts_with("..."));
            texts.push(if bare && open { BARE[at_bare] } else { SEPARATED[at_separated] });
        }
        texts
    })
}

/// Foreign texts with generated documents at one position among them.
fn mixed() -> impl Strategy<Value = Documents> {
    (world(), foreign(), any::<prop::sample::Index>()).prop_map(|(world, texts, index)| {
        let at = if texts.is_empty() { 0 } else { index.index(texts.len() + 1) };
        let (before, after) = texts.split_at(at);
        // A bare text needs a `...` before it.
        let end = if after.is_empty() { "" } else { "...\n" };
        read(&format!("{}---\n{}{end}{}", before.concat(), world.write(), after.concat()))
    })
}

fn obeys(documents: &Documents) -> Result<(), TestCaseError> {
    let written = documents.write();
    let again = Documents::read(written.as_bytes()).map_err(|e| TestCaseError::fail(format!("{e}\n{written}")))?;
    prop_assert_eq!(&again, documents, "{}", written);
    prop_assert_eq!(again.write(), written);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_documents_are_read_back_the_same(world in world()) {
        obeys(&world)?;
    }

    #[test]
    fn texts_of_others_stay_byte_for_byte(texts in foreign(), cut in any::<bool>()) {
        let input = texts.concat();
        let input = if cut { input.trim_end() } else { &input };
        prop_assert_eq!(read(input).write(), input);
    }

    #[test]
    fn worlds_among_texts_of_others_obey(documents in mixed()) {
        obeys(&documents)?;
    }

    #[test]
    fn worlds_that_change_obey(mut documents in mixed(), id in id(), note in text()) {
        let (reference, old) = documents.clusters.iter().map(|(name, c)| (name.clone(), c.id().unwrap().clone())).next().unwrap();
        documents.remove_cluster(&reference, &old);
        obeys(&documents)?;
        let added = cluster("c2", id, note);
        documents.clusters.insert(added.reference(), added);
        obeys(&documents)?;
        documents.hypervisors.clear();
        obeys(&documents)?;
    }

    #[test]
    fn json_reads_as_yaml_does(world in world()) {
        let mut json = String::new();
        for document in world.hypervisors.values() {
            json += &serde_json::to_string_pretty(document).unwrap();
        }
        for document in world.clusters.values() {
            json += &serde_json::to_string(document).unwrap();
        }
        json += "\n---\n";
        for document in world.components.values() {
            json += &serde_json::to_string(document).unwrap();
        }
        for document in world.secrets.values() {
            json += &serde_json::to_string(&**document).unwrap();
        }
        prop_assert_eq!(read(&json), world);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Documents::read(&bytes);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "([ -~\n]|---\n|\\.\\.\\.\n|: |- |\\{|\\}|&a |\\*a|apiVersion: keelway.dev/v1alpha1\nkind: Cluster\n){0,60}") {
        if let Ok(documents) = Documents::read(text.as_bytes()) {
            obeys(&documents)?;
        }
    }

    #[test]
    fn a_damaged_world_is_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut bytes = WORLD.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(documents) = Documents::read(&bytes) {
            obeys(&documents)?;
        }
        bytes.truncate(cut.index(bytes.len()));
        let _ = Documents::read(&bytes);
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_document() {
    let input = format!("\u{feff}{WORLD}");
    assert_eq!(read(&input).hypervisors, read(WORLD).hypervisors);
    let theirs = "\u{feff}---\napiVersion: v1\nkind: X\n";
    assert_eq!(read(theirs).write(), theirs);
}

#[test]
fn escapes_of_json_are_read() {
    let note = r"a\/b \ud83d\ude00 \u0000 \u2028 \t";
    let input = WORLD.replace("because: it is free", note);
    let documents = read(&input);
    let component = documents.components.values().next().unwrap();
    assert_eq!(component.spec.placement, "a/b \u{1f600} \0 \u{2028} \t");
}

#[test]
fn a_large_document_is_refused_and_many_small_ones_are_not() {
    let large = format!("apiVersion: v1\nkind: X\ndata: {}\n", "x".repeat(4 << 20));
    let faults = Documents::read(large.as_bytes()).unwrap_err();
    assert!(faults.to_string().contains("reads at most 3145728"), "{faults}");
    assert_eq!(Documents::read(&vec![b'['; 4 << 20]).unwrap_err().0.len(), 1);
}

#[test]
fn the_number_of_reported_faults_is_limited() {
    let many = "---\napiVersion: keelway.dev/v2\nkind: Cluster\n".repeat(2000);
    let faults = Documents::read(many.as_bytes()).unwrap_err();
    assert_eq!(faults.0.len(), 1001);
    assert!(faults.0.last().unwrap().help.contains("did not read the rest"));
}

#[test]
fn many_documents_are_read() {
    let clusters = if cfg!(debug_assertions) { 500 } else { 5000_u64 };
    let mut documents = Documents::default();
    documents.hypervisors.insert("hv-1".parse().unwrap(), machine(String::new(), String::new()));
    for number in 0..clusters {
        let id: ClusterId = format!("{number:016x}").parse().unwrap();
        let added = cluster(&format!("c{number}"), id.clone(), String::new());
        documents.clusters.insert(added.reference(), added);
        let name = SecretName::of(&id, "kubernetes-ca");
        documents.secrets.insert(name, secret(&id, "kubernetes-ca", vec![1; 300], String::new()));
    }
    let start = Instant::now();
    let written = documents.write();
    let wrote = start.elapsed();
    let start = Instant::now();
    let again = read(&written);
    println!("{} bytes: written in {wrote:?}, read in {:?}", written.len(), start.elapsed());
    assert_eq!(again, documents);
}

#[test]
fn a_secret_of_the_users_is_read_and_written_as_it_came() {
    let theirs = "---
apiVersion: v1
kind: Secret
metadata: {name: proxies, labels: {of: me}}   # mine
stringData: {tls.crt: one, tls.key: two, ca.crt: three}
";
    let machine = "apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata:
  name: hv-9
spec:
  role: Private
  endpoint:
    cri:
      address: hv-9.example.com:7444
      secretRef:
        name: proxies
  addresses:
    private: [10.0.0.19]
";
    let documents = read(&format!("{machine}{theirs}"));
    let name = SecretName { namespace: "default".to_owned(), name: "proxies".to_owned() };
    assert_eq!(documents.user_secrets[&name].data.as_ref().unwrap()["tls.key"].0, b"two");
    assert!(documents.secrets.is_empty());
    assert!(documents.write().ends_with(theirs), "{}", documents.write());
    let endpoint = &documents.hypervisors.values().next().unwrap().spec.endpoint;
    assert!(matches!(endpoint, HypervisorEndpoint::Cri(cri) if cri.name() == "hv-9.example.com"));
    assert!(!format!("{documents:?}").contains("two"));
}

#[test]
fn a_secret_that_is_added_is_written() {
    let mut documents = read(WORLD);
    let name = SecretName { namespace: "default".to_owned(), name: "c2-source-keys".to_owned() };
    let mut added =
        Secret { data: Some([("key".to_owned(), ByteString(b"two".to_vec()))].into()), ..Secret::default() };
    added.metadata.name = Some(name.name.clone());
    added.metadata.namespace = Some(name.namespace.clone());
    documents.add_user_secret(name.clone(), added);
    let again = read(&documents.write());
    assert_eq!(again.user_secrets[&name].data.as_ref().unwrap()["key"].0, b"two");
    assert_eq!(again, documents);
}
