//! Recordings of earlier releases (`e2e/compatibility/RELEASE/README.md`): this version reads all of them, and an upgrade makes only intended
//! changes.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "this is all test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use keelway_agent_api::{client::HypervisorAgentClient, wire};
use keelway_api::{
    Condition, Documents, Observation,
    crd::crds,
    document::DocumentName,
    hypervisor::Applied,
    machine::{
        ConfigFormat, FormatRange, MachineConfig, MachineState, ObservedValue, STATE_DIRECTORY, ServerAdmin,
        ServerState, Start,
    },
    name::{HypervisorName, PodName},
    newer::{FORMAT, FORMAT_ANNOTATION},
};
use keelway_base::root_socket::RootSocket;
use keelway_cri::{Deadlines, fake::Fake};
use keelway_hypervisor_agent::agent::run;
use keelway_machine::converge::{converge, model::MachineModel};
use keelway_machine_io::{access::MachineAccess, local::LocalMachine};
use keelway_node::NodeOptions;
use keelway_planner::{FirstBindings, MintRequest, check_config, machine_configs};
use keelway_reconciler::{PkiMinter, PlanPreview, preview_offline};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const WITHIN: Duration = Duration::from_secs(60);
/// More passes than any change needs.
const MOST_PASSES: usize = 40;

/// A release, and the expected results for its recordings.
struct Release {
    name: &'static str,
    /// The formats that its agents report, and the format of the configs that they receive.
    formats: (FormatRange, ConfigFormat),
    /// Components that are replaced once after an upgrade, and why.
    replaced: &'static [(&'static str, &'static str)],
    /// The format of its documents. 0 means that the release rejects fields that it does not know.
    document_format: u32,
    /// Why bindings and definitions are applied in managed clusters once more after an upgrade.
    binds_again: Option<&'static str>,
    /// Certificates that are minted once after an upgrade, and why.
    minted: &'static [(&'static str, &'static str)],
    /// Fields that are written once after an upgrade, by kind, and why.
    written: &'static [(&'static str, &'static str)],
}

const RELEASES: [Release; 1] = [Release {
    name: "v0.1.0",
    formats: (FormatRange::OF_V0_1_0, ConfigFormat::One),
    replaced: &[
        ("etcd-0", "its memory holds its quota"),
        ("etcd-1", "its memory holds its quota"),
        ("etcd-2", "its memory holds its quota"),
        ("gateway-0", "it accepts tunnels over TLS"),
        ("gateway-1", "it accepts tunnels over TLS"),
        ("ingress-0", "its haproxy logs fewer connections, limits each source, and forwards tunnels over TLS"),
        ("ingress-1", "its haproxy logs fewer connections, limits each source, and forwards tunnels over TLS"),
        ("kube-apiserver-0", "it names the issuer where the keys of tokens are"),
    ],
    document_format: 0,
    binds_again: Some("the definitions in managed clusters have other descriptions"),
    minted: &[("tunnel", "workers verify it on tunnels over TLS")],
    written: &[
        ("Secret data.tunnel", "the gateways' certificates for tunnels over TLS"),
        ("Cluster status.minted", "keys are minted once in a cluster's life, which shows in their digests"),
        ("Cluster status.birth", "what a cluster was born with stays"),
        ("Cluster status.version", "it shows which release every component runs"),
        (
            "Hypervisor status.issued",
            "machines with an ingress, an etcd member or an API server are given another config",
        ),
        ("Hypervisor status.applied", "which they take"),
        ("Cluster status.conditions", "messages are in other words"),
        ("Component status.conditions", "messages are in other words"),
    ],
}];

/// The recording of one machine.
struct Recorded {
    state: MachineState,
    config: MachineConfig,
    digest: String,
    /// The directory with the files of its agent, from `STATE_DIRECTORY`.
    disk: PathBuf,
}

impl Release {
    fn directory(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("compatibility").join(self.name)
    }

    fn read(&self, path: impl AsRef<Path>) -> Vec<u8> {
        let path = self.directory().join(path);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn machines(&self) -> BTreeMap<HypervisorName, Recorded> {
        let entries = fs::read_dir(self.directory().join("machines")).unwrap();
        let machine = |name: String| {
            let place = Path::new("machines").join(&name);
            let (config, digest) = wire::decode_request(&self.read(place.join("apply-request.pb"))).unwrap();
            let state = wire::decode_state(&self.read(place.join("state.pb"))).unwrap();
            (name.parse().unwrap(), Recorded { state, config, digest, disk: self.directory().join(place).join("disk") })
        };
        entries.map(|entry| machine(entry.unwrap().file_name().into_string().unwrap())).collect()
    }
}

/// Returns the id and the digest of the sandbox of each pod.
fn sandboxes(state: &MachineState) -> BTreeMap<PodName, (String, String)> {
    let all = state.sandboxes.iter().map(|found| (found.pod.clone(), (found.id.clone(), found.digest.clone())));
    all.collect()
}

#[test]
fn an_upgraded_agent_restarts_nothing_and_digests_stay() {
    for release in &RELEASES {
        let machines = release.machines();
        assert_eq!(machines.len(), 5);
        for (name, Recorded { state, config, digest, disk }) in machines {
            assert_eq!((state.formats, config.format), release.formats, "{name}");
            assert_eq!(config.digest(), digest, "{name}");
            assert_eq!(wire::decode_config(&fs::read(disk.join("config")).unwrap()).unwrap(), config, "{name}");
            for (pod, wanted) in &config.pods {
                assert_eq!(sandboxes(&state)[pod].1, wanted.digest(), "{pod} would be replaced");
            }
            assert_eq!(converge(&config, &state), Ok(Vec::new()), "{name}");
        }
    }
}

#[tokio::test]
async fn an_agent_continues_from_the_disk_of_an_earlier_release() {
    for (name, recorded) in RELEASES.iter().flat_map(Release::machines) {
        goes_on(&name, &recorded).await;
    }
}

async fn goes_on(name: &HypervisorName, Recorded { state, config, disk, .. }: &Recorded) {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().join(STATE_DIRECTORY.trim_start_matches('/'));
    for path in [&place, &root.path().join("var/log"), &root.path().join("run")] {
        fs::create_dir_all(path).unwrap();
    }
    for file in fs::read_dir(disk).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), place.join(file.file_name())).unwrap();
    }
    let fake = Fake::new();
    for pod in config.pods.values() {
        fake.add_image(&pod.pause_image);
        pod.containers.iter().for_each(|container| fake.add_image(&container.image));
    }
    let access = MachineAccess::of_root(fs::File::open(root.path()).unwrap().into());
    let machine = LocalMachine::new(access, fake.runtime(Deadlines::default()), None);
    let socket = root.path().join("run/agent.sock");
    let (listener, stop) = (RootSocket::bind(&socket).unwrap(), CancellationToken::new());
    let running = tokio::spawn(run(machine, listener, stop.clone()));
    let client = HypervisorAgentClient::on_socket(&socket);

    let found = client.state(WITHIN).await.unwrap();
    let applied = state.applied.as_ref().unwrap();
    assert_eq!((found.applied.as_ref(), found.failures.len()), (Some(applied), 0), "{name}");
    assert_eq!(found.term, applied.term + 1, "{name} knows the leader that it heard of last");
    // The runtime is new and empty. Pods that may start without data are started again, with the same digest.
    let _ = tokio::time::timeout(WITHIN, client.apply(config, &|_| {})).await.unwrap().unwrap();
    let (before, after) = (sandboxes(state), sandboxes(&client.state(WITHIN).await.unwrap()));
    let stateless = config.pods.iter().filter(|(_, pod)| pod.start == Start::Always);
    assert_eq!(after.keys().collect::<BTreeSet<_>>(), stateless.map(|(pod, _)| pod).collect(), "{name}");
    assert!(after.iter().all(|(pod, (_, digest))| before[pod].1 == *digest), "{name}");
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[test]
fn a_worker_knows_its_settings() {
    for release in &RELEASES {
        let bytes = release.read("worker/node.json");
        let options: NodeOptions = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(serde_json::to_vec_pretty(&options).unwrap(), bytes);
    }
}

/// Documents and machines on which this version runs passes.
struct World {
    documents: Documents,
    observation: Observation,
    machines: BTreeMap<HypervisorName, MachineModel>,
    passes: u64,
}

impl World {
    /// The recorded state, with other formats reported by the agents.
    fn recorded(release: &Release, formats: FormatRange) -> Self {
        let observation = Observation::read(&release.read("observation.yaml")).unwrap();
        let model = |state| {
            let mut model = MachineModel::empty();
            model.state = MachineState { formats, ..state };
            model
        };
        Self {
            documents: Documents::read(&release.read("documents.yaml")).unwrap(),
            machines: release.machines().into_iter().map(|(name, recorded)| (name, model(recorded.state))).collect(),
            observation,
            passes: 0,
        }
    }

    fn look(&self) -> Observation {
        let mut seen = self.observation.clone();
        let known = self.machines.iter().map(|(name, model)| (name.clone(), ObservedValue::Known(model.state.clone())));
        seen.hypervisors = known.collect();
        seen
    }

    fn preview(&self) -> PlanPreview {
        preview_offline(&self.documents, self.look(), &mut PkiMinter::new(StdRng::seed_from_u64(self.passes))).unwrap()
    }

    /// Saves a plan and executes it. Configs for an agent are in a format that the agent reported.
    fn pass(&mut self) {
        let preview = self.preview();
        self.passes += 1;
        let bound =
            preview.plan.bindings.iter().map(|id| (id.clone(), ObservedValue::Known(FirstBindings::Cluster.digest())));
        self.observation.bindings.extend(bound);
        let seen = keelway_planner::PassObservation::of(self.look(), BTreeMap::new());
        let configs = machine_configs(&preview.plan.documents, &seen).unwrap();
        self.documents = preview.plan.documents;
        for (name, actions) in preview.machines {
            let (machine, config) = (self.machines.get_mut(&name).unwrap(), &configs[&name]);
            assert_eq!(Some(config.format), ConfigFormat::understood_by(machine.state.formats), "{name}");
            let has = |pod: &PodName| config.pods.contains_key(pod);
            assert_eq!(check_config(&self.documents, (&name, &machine.state), config, has), []);
            machine.execute(&actions.unwrap());
            let running: BTreeSet<_> = machine.state.sandboxes.iter().map(|found| found.pod.clone()).collect();
            machine.state.servers.retain(|pod, _| running.contains(pod));
            for (pod, servers) in config.pods.iter().filter_map(|(pod, wanted)| Some((pod, wanted.servers.as_ref()?))) {
                let serves = |address| ServerState { address, admin: ServerAdmin::Serves, sessions: 0, ready: true };
                let started = servers.addresses.iter().map(|(name, at)| (name.clone(), serves(*at))).collect();
                machine.state.servers.entry(pod.clone()).or_insert(started);
            }
        }
    }
}

/// An upgrade makes only the intended changes, whether the driver or the agents are upgraded first.
#[test]
fn an_upgrade_changes_only_what_is_listed() {
    for release in &RELEASES {
        let (of_the_release, _) = release.formats;
        for formats in [of_the_release, FormatRange::OWN] {
            upgrade(release, World::recorded(release, formats));
        }
    }
}

fn upgrade(release: &Release, mut world: World) {
    let before = world.documents.clone();
    let first = world.preview();
    assert!(first.refused.is_empty() && first.plan.decisions.is_empty());
    let is_minted = |wanted: &MintRequest| matches!(wanted, MintRequest::Certificate { name, .. } if release.minted.iter().any(|(minted, _)| minted == name));
    assert!(first.plan.mint.iter().all(is_minted), "{:?}", first.plan.mint);
    assert!(first.plan.agents.is_empty());
    assert_eq!(!first.plan.bindings.is_empty(), release.binds_again.is_some(), "{:?}", first.plan.bindings);
    let replaced: Vec<&str> = release.replaced.iter().map(|(component, _)| *component).collect();
    let has_none =
        |state: &MachineState| state.sandboxes.iter().all(|found| !replaced.contains(&found.pod.component.as_str()));
    let others: BTreeSet<_> =
        world.machines.iter().filter(|(_, model)| has_none(&model.state)).map(|(name, _)| name.clone()).collect();
    let issued = |documents: &Documents, name: &HypervisorName| -> Option<Applied> {
        documents.hypervisors[name].status.as_ref().and_then(|status| status.issued.clone())
    };
    for name in others {
        assert_eq!(first.machines[&name], Ok(Vec::new()), "{name}");
        assert_eq!(issued(&first.plan.documents, &name), issued(&before, &name), "{name} is sent another config");
    }

    let sandboxes_before: BTreeMap<_, _> = world.machines.values().flat_map(|model| sandboxes(&model.state)).collect();
    let mut ever: BTreeMap<PodName, BTreeSet<String>> = BTreeMap::new();
    for _ in 0..MOST_PASSES {
        for (pod, (id, _)) in world.machines.values().flat_map(|model| sandboxes(&model.state)) {
            ever.entry(pod).or_default().insert(id);
        }
        if world.preview().settled() {
            break;
        }
        world.pass();
    }
    assert!(world.preview().settled(), "{:?}", world.preview().plan.waiting);
    let changed = ever.iter().filter(|(_, ids)| ids.len() > 1);
    let changed: Vec<_> = changed.map(|(pod, ids)| (pod.component.as_str(), ids.len())).collect();
    assert_eq!(changed, replaced.iter().map(|component| (*component, 2)).collect::<Vec<_>>());
    assert_eq!(ever.len(), sandboxes_before.len());

    let lines = differences(&before, &world.documents);
    let is_meant = |line: &&String| release.written.iter().any(|(field, _)| line.starts_with(field));
    let surprising: Vec<&String> = lines.iter().filter(|line| !is_meant(line)).collect();
    assert!(surprising.is_empty(), "{surprising:#?}");
    let is_written = |field: &str| lines.iter().any(|line| line.starts_with(field));
    assert!(release.written.iter().all(|(field, _)| is_written(field)), "{lines:#?}");
}

/// Returns each field that differs, as `Kind path`.
fn differences(before: &Documents, after: &Documents) -> Vec<String> {
    let (before, after) = (values(before), values(after));
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let mut lines = Vec::new();
    for (kind, name) in names {
        let of = |all: &BTreeMap<(&str, String), Value>| all.get(&(*kind, name.clone())).cloned().unwrap_or_default();
        compare(format!("{kind} "), &of(&before), &of(&after), &mut lines);
    }
    lines
}

/// Returns the documents as JSON, by kind and name.
fn values(documents: &Documents) -> BTreeMap<(&'static str, String), Value> {
    let value = |name: DocumentName| ((name.kind(), name.to_string()), documents.get(&name).unwrap().json());
    documents.names().map(value).collect()
}

fn compare(path: String, before: &Value, after: &Value, lines: &mut Vec<String>) {
    if let (Some(one), Some(other)) = (before.as_object(), after.as_object()) {
        let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
        for name in names {
            let dot = if path.ends_with(' ') { "" } else { "." };
            compare(format!("{path}{dot}{name}"), &before[name], &after[name], lines);
        }
    } else if before != after {
        lines.push(path);
    }
}

/// A newer release wrote fields that this version does not know, and the user then went back to this version.
#[test]
fn fields_of_a_newer_release_are_kept_reported_and_change_nothing() {
    for release in &RELEASES {
        let mut world = World::recorded(release, FormatRange::OWN);
        for _ in 0..MOST_PASSES {
            if world.preview().settled() {
                break;
            }
            world.pass();
        }
        // This pass records the configs that machines applied last.
        world.pass();
        after_a_rollback(world);
    }
}

fn after_a_rollback(mut world: World) {
    let written = of_next_release(&world.documents, FORMAT + 1);
    let refused = Documents::read(of_next_release(&world.documents, FORMAT).as_bytes()).unwrap_err().to_string();
    assert!(refused.contains("unknown field") && refused.contains("spec.ofNextRelease"), "{refused}");

    world.documents = Documents::read(written.as_bytes()).unwrap();
    let before = world.documents.clone();
    let preview = world.preview();
    assert!(preview.refused.is_empty() && preview.plan.mint.is_empty() && preview.plan.decisions.is_empty());
    assert!(preview.machines.values().all(|actions| *actions == Ok(Vec::new())), "{:?}", preview.machines);
    world.pass();
    assert!(world.preview().settled(), "{:?}", world.preview().plan.waiting);

    let lines = differences(&before, &world.documents);
    let is_report = |line: &String| line == "Cluster status.conditions" || line == "Hypervisor status.conditions";
    assert!(lines.iter().all(is_report), "{lines:#?}");
    let saved = Documents::read(world.documents.write().as_bytes()).unwrap();
    assert_eq!(saved, world.documents);
    for name in before.names() {
        let of = |documents: &Documents| {
            let json = documents.get(&name).unwrap().json();
            ["/spec/ofNextRelease", "/status/ofNextRelease"].map(|at| json.pointer(at).map(Value::to_string))
        };
        assert_eq!(of(&saved), of(&before), "{name}");
        assert_eq!(of(&saved).iter().flatten().count(), if name.kind() == "Secret" { 0 } else { 2 }, "{name}");
    }
    let says = |conditions: &[Condition]| {
        let found = conditions.iter().find(|condition| condition.type_ == "FieldsKnown");
        found.map(|found| (found.status.clone(), found.message.clone())).unwrap_or_default()
    };
    for (name, machine) in &saved.hypervisors {
        let (status, message) = says(&machine.status.as_ref().unwrap().conditions);
        let fields = ["spec", "status"].map(|part| format!("{part}.ofNextRelease of Hypervisor {name}"));
        assert!(status == "False" && fields.iter().all(|field| message.contains(field)), "{message}");
    }
    for (name, cluster) in &saved.clusters {
        let (status, message) = says(&cluster.status.as_ref().unwrap().conditions);
        let fields = [
            format!("spec.ofNextRelease of {}", DocumentName::Cluster(name.clone())),
            "of Component keelway-".to_owned(),
        ];
        assert!(status == "False" && fields.iter().all(|field| message.contains(field)), "{message}");
    }
}

/// Returns the same documents with this format annotation and additional fields.
fn of_next_release(documents: &Documents, format: u32) -> String {
    let document = |name: DocumentName| {
        let mut json = documents.get(&name).unwrap().json();
        if name.kind() != "Secret" {
            json["metadata"]["annotations"][FORMAT_ANNOTATION] = json!(format.to_string());
            for part in ["spec", "status"] {
                json[part]["ofNextRelease"] =
                    json!({ "list": [1, 2.5, null, { "name": "x" }], "text": "10", "is": true });
            }
        }
        format!("---\n{json}\n")
    };
    documents.names().map(document).collect()
}

/// If this version has fields that a release does not have, its documents have a newer format. Otherwise that release would reject the fields.
#[test]
fn documents_with_more_fields_have_a_format_of_their_own() {
    let own = fields();
    for release in &RELEASES {
        let recorded = String::from_utf8(release.read("fields.txt")).unwrap();
        let recorded: BTreeSet<&str> = recorded.lines().collect();
        let added: Vec<&String> = own.iter().filter(|field| !recorded.contains(field.as_str())).collect();
        assert!(
            FORMAT > release.document_format || added.is_empty(),
            "{} has no {added:?}: give FORMAT of lib/api/src/newer.rs the next number",
            release.name
        );
    }
}

/// Returns the fields of documents, each as a line of `fields.txt`.
fn fields() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for definition in crds() {
        let version = serde_json::to_value(&definition.spec.versions[0]).unwrap();
        for part in ["spec", "status"] {
            let path = format!("{} {part}", definition.spec.names.kind);
            walk(&path, &version["schema"]["openAPIV3Schema"]["properties"][part], &mut all);
        }
    }
    all
}

fn walk(path: &str, schema: &Value, all: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        walk(&path, field, all);
        all.insert(path);
    }
    for (key, within) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let Some(schema) = schema.get(key) {
            walk(&format!("{path}{within}"), schema, all);
        }
    }
}
