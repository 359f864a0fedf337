//! Rotations of keys, on machines that fail and return, by drivers that die between any two steps. No component ever uses a key that another one does
//! not verify.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    ByteString, Cluster, Documents, Time,
    documents::SecretName,
    entries::CompactMap,
    jiff::{SignedDuration, Timestamp},
    machine::Pod,
    name::PodName,
    rotation::{KeyRotation, RotatedKey, RotationPhase, RotationRequest},
};
use keelway_planner::{
    MintRequest, Plan, SecretRewrite, WaitBlocker, invariants,
    trust::{ComponentFiles, encryption_keys, unverified},
};
use proptest::{collection::vec, prelude::*};

use crate::{
    authority_rotation::is_trusted,
    world::{DriverFate, Round, World, calm},
};

const KEY: RotatedKey = RotatedKey::ServiceAccount;
const ENCRYPTION: RotatedKey = RotatedKey::Encryption;
const MEMBERS: u32 = 1;

fn settled() -> World {
    let mut world = World::settled(MEMBERS);
    world.records_keys = true;
    let _ = world.pass(&calm(MEMBERS));
    world
}

pub(super) fn cluster(documents: &Documents) -> &Cluster {
    documents.clusters.values().next().unwrap()
}

fn request(world: &mut World, requested_at: Timestamp, complete: bool) {
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    *cluster.spec.rotations.request_mut(KEY) =
        Some(RotationRequest { requested_at: Time(requested_at), complete, immediate: false });
}

fn request_encryption(world: &mut World, requested_at: Timestamp, complete: bool) {
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    *cluster.spec.rotations.request_mut(ENCRYPTION) =
        Some(RotationRequest { requested_at: Time(requested_at), complete, immediate: false });
}

fn rotation(world: &World) -> Option<KeyRotation> {
    cluster(&world.documents).rotation(KEY).cloned()
}

fn encryption_phase(world: &World) -> Option<RotationPhase> {
    cluster(&world.documents).rotation(ENCRYPTION).map(|rotation| rotation.phase)
}

/// The generations of the encryption key.
fn encryption(documents: &Documents) -> CompactMap<ByteString> {
    let name = SecretName::of(cluster(documents).id().unwrap(), "encryption");
    documents.secrets[&name].data.clone().unwrap()
}

fn reach_encryption(world: &mut World, wanted: RotationPhase) -> Plan {
    for _ in 0..60 {
        let plan = world.pass(&calm(MEMBERS));
        if encryption_phase(world) == Some(wanted) {
            return plan;
        }
    }
    panic!("it does not reach {wanted}: {:?}", cluster(&world.documents).rotation(ENCRYPTION));
}

fn phase(world: &World) -> Option<RotationPhase> {
    rotation(world).map(|rotation| rotation.phase)
}

fn value(documents: &Documents, entry: &str) -> Option<String> {
    let name = SecretName::of(cluster(documents).id().unwrap(), "service-account");
    let value = documents.secrets[&name].data.as_ref().unwrap().get(entry)?;
    Some(String::from_utf8(value.0.clone()).unwrap())
}

pub(super) fn condition(world: &World) -> Option<(String, String)> {
    let conditions = &cluster(&world.documents).status.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|condition| condition.type_ == "KeysRotating")?;
    Some((found.reason.clone(), found.message.clone()))
}

/// Passes without a fault, until a phase begins.
fn reach(world: &mut World, wanted: RotationPhase) -> Plan {
    for _ in 0..40 {
        let plan = world.pass(&calm(MEMBERS));
        if phase(world) == Some(wanted) {
            return plan;
        }
    }
    panic!("it does not reach {wanted}: {:?}", rotation(world));
}

fn blockers(plan: &Plan) -> Vec<String> {
    let blockers = plan.waiting.iter().map(|waiting| &waiting.blocker);
    blockers.filter(|blocker| matches!(blocker, WaitBlocker::Rotation(_))).map(ToString::to_string).collect()
}

pub(super) fn is_settled(plan: &Plan) -> bool {
    plan.decisions.is_empty() && plan.waiting.is_empty() && plan.mint.is_empty()
}

#[test]
fn a_key_is_rotated_in_phases_and_waits_for_a_person() {
    let mut world = settled();
    let first = value(&world.documents, "active.key").unwrap();
    let begun = world.now;
    request(&mut world, begun, false);
    let plan = world.pass(&calm(MEMBERS));
    assert!(plan.mint.iter().any(|minted| matches!(minted, MintRequest::NextServiceAccountKey { .. })));
    assert_eq!(phase(&world), Some(RotationPhase::Announcing));
    assert!(rotation(&world).unwrap().next.is_some(), "the next key is recorded in the pass that mints it");
    let next = value(&world.documents, "next.key").unwrap();
    let _ = reach(&mut world, RotationPhase::Activating);
    assert_eq!(value(&world.documents, "active.key"), Some(next.clone()));
    assert_eq!((value(&world.documents, "next.key"), value(&world.documents, "previous.key")), (None, None));
    let bundle = value(&world.documents, "bundle.pub").unwrap();
    assert!(bundle.contains(&value(&world.documents, "active.pub").unwrap()));
    assert!(bundle.contains(&value(&world.documents, "previous.pub").unwrap()));

    let _ = reach(&mut world, RotationPhase::Prepared);
    for _ in 0..5 {
        let plan = world.pass(&calm(MEMBERS));
        assert!(is_settled(&plan), "{:?} {:?}", plan.decisions, plan.waiting);
    }
    let (reason, message) = condition(&world).unwrap();
    assert_eq!(reason, "RotationPrepared");
    assert!(message.contains("keelway cluster rotate --name c1 --service-account-key --complete"), "{message}");

    request(&mut world, begun, true);
    let _ = reach(&mut world, RotationPhase::Completed);
    assert_eq!((condition(&world), value(&world.documents, "previous.pub")), (None, None));
    assert_eq!(value(&world.documents, "active.key"), Some(next));
    assert_ne!(value(&world.documents, "active.key"), Some(first));
    assert!(is_settled(&world.pass(&calm(MEMBERS))), "a request is executed once");
}

#[test]
fn a_key_is_rotated_again_and_again() {
    let mut world = settled();
    for _ in 0..3 {
        let begun = world.now;
        let before = value(&world.documents, "active.key");
        request(&mut world, begun, true);
        let _ = reach(&mut world, RotationPhase::Announcing);
        let _ = reach(&mut world, RotationPhase::Completed);
        assert_ne!(value(&world.documents, "active.key"), before);
    }
}

#[test]
fn a_request_that_is_removed_completes_nothing() {
    let mut world = settled();
    let begun = world.now;
    request(&mut world, begun, false);
    let _ = reach(&mut world, RotationPhase::Prepared);
    world.documents.clusters.values_mut().next().unwrap().spec.rotations.service_account_key = None;
    assert!(is_settled(&world.pass(&calm(MEMBERS))));
    assert!(value(&world.documents, "previous.pub").is_some());
}

#[test]
fn another_request_waits_for_the_end_of_the_first() {
    let mut world = settled();
    let begun = world.now;
    request(&mut world, begun, false);
    let _ = reach(&mut world, RotationPhase::Prepared);
    request(&mut world, begun + SignedDuration::from_hours(1), true);
    let plan = world.pass(&calm(MEMBERS));
    assert!(blockers(&plan)[0].contains("spec.rotations.serviceAccountKey.requestedAt"), "{:?}", blockers(&plan));
    assert_eq!(phase(&world), Some(RotationPhase::Prepared));
    assert!(value(&world.documents, "previous.pub").is_some(), "nothing is removed by the other request");
}

/// The number of the machine of an API server.
fn machine_of(world: &World, server: &str) -> usize {
    let mut all = world.documents.components.iter();
    let (_, component) = all.find(|(pod, _)| pod.component.as_str() == server).unwrap();
    world.number_of(&component.spec.hypervisor)
}

/// The round in which the machine of an API server does not respond.
pub(super) fn without_a_server(world: &World, members: u32) -> Round {
    Round { silent: 1 << machine_of(world, "kube-apiserver-1"), ..calm(members) }
}

#[test]
fn a_machine_that_is_away_keeps_each_phase() {
    for (last, wanted) in [
        (RotationPhase::Announcing, "with the next service account key"),
        (RotationPhase::Activating, "with the new service account key"),
        (RotationPhase::Retiring, "without the previous service account key"),
    ] {
        let mut world = settled();
        let begun = world.now;
        request(&mut world, begun, true);
        let away = without_a_server(&world, MEMBERS);
        let _ = reach(&mut world, last);
        for _ in 0..20 {
            let plan = world.pass(&away);
            assert_eq!(phase(&world), Some(last));
            let found = blockers(&plan);
            assert!(found.iter().any(|blocker| blocker.contains(wanted)), "{last}: {found:?}");
        }
        let (reason, message) = condition(&world).unwrap();
        assert_eq!(reason, "RotationInProgress");
        assert!(message.contains("kube-apiserver-1") && message.contains("to respond"), "{message}");
        let _ = reach(&mut world, RotationPhase::Completed);
    }
}

#[test]
fn a_phase_ends_in_the_pass_that_finds_an_api_server_gone() {
    for passes in 0..12 {
        let mut world = settled();
        let begun = world.now;
        request(&mut world, begun, true);
        for _ in 0..passes {
            let _ = world.pass(&calm(MEMBERS));
        }
        world.documents.clusters.values_mut().next().unwrap().spec.control_plane.replicas = 1;
        let _ = reach(&mut world, RotationPhase::Completed);
    }
}

#[test]
fn a_save_that_ends_after_the_secret_is_continued() {
    let mut world = settled();
    let begun = world.now;
    request(&mut world, begun, true);
    for _ in 0..40 {
        // The driver dies after it has saved the Secrets, and before it saves the Cluster.
        let clusters = world.documents.clusters.clone();
        let _ = world.pass(&Round { fate: DriverFate::DiesAfterTheSave, ..calm(MEMBERS) });
        world.documents.clusters = clusters;
        let plan = world.pass(&calm(MEMBERS));
        let blocked: Vec<String> = plan.waiting.iter().map(ToString::to_string).collect();
        assert!(!blocked.iter().any(|wait| wait.contains("different key")), "{blocked:?}");
        if phase(&world) == Some(RotationPhase::Completed) {
            return;
        }
    }
    panic!("it does not end: {:?}", rotation(&world));
}

#[test]
fn a_paused_cluster_keeps_its_keys() {
    let mut world = settled();
    let begun = world.now;
    request(&mut world, begun, false);
    let _ = reach(&mut world, RotationPhase::Announcing);
    let secrets = world.documents.secrets.clone();
    world.documents.clusters.values_mut().next().unwrap().spec.paused = true;
    for _ in 0..10 {
        let _ = world.pass(&calm(MEMBERS));
    }
    assert!(world.documents.secrets == secrets);
    assert_eq!(phase(&world), Some(RotationPhase::Announcing));
}

#[test]
fn documents_in_each_phase_are_recovered_as_they_are() {
    for wanted in [RotationPhase::Announcing, RotationPhase::Activating, RotationPhase::Prepared] {
        let mut world = settled();
        let begun = world.now;
        request(&mut world, begun, false);
        let _ = reach(&mut world, wanted);
        let backup = world.documents.clone();
        let _ = world.recover(&backup, true);
        let secret = SecretName::of(cluster(&backup).id().unwrap(), "service-account");
        assert!(world.documents.secrets[&secret] == backup.secrets[&secret]);
        let minted = |documents: &Documents| cluster(documents).status.as_ref().unwrap().minted.clone();
        assert_eq!(minted(&world.documents), minted(&backup), "{wanted}");
    }
}

/// Plants a fault into the documents of the next plan.
fn is_found(world: &mut World, round: &Round, fault: impl FnOnce(&mut CompactMap<ByteString>)) -> bool {
    let (mut plan, seen, _) = world.decide(round);
    let name = SecretName::of(&world.id(), "service-account");
    fault(plan.documents.secrets.get_mut(&name).unwrap().data.as_mut().unwrap());
    let found = invariants::check(&world.documents, &plan.documents, &seen);
    found.iter().any(|violation| violation.invariant.contains("a key is used once all that verify run with it"))
}

fn activate(values: &mut CompactMap<ByteString>) {
    for half in ["key", "pub"] {
        let Some(next) = values.remove(&format!("next.{half}")) else { continue };
        let retired = values.insert(format!("active.{half}"), next).unwrap();
        if half == "pub" {
            values.insert("previous.pub".to_owned(), retired);
        }
    }
}

#[test]
fn a_key_that_is_used_too_early_is_found() {
    let mut world = settled();
    let begun = world.now;
    request(&mut world, begun, false);
    let _ = reach(&mut world, RotationPhase::Announcing);
    assert!(is_found(&mut world, &calm(MEMBERS), activate));
}

#[test]
fn a_key_that_is_removed_too_early_is_found() {
    let mut world = settled();
    let begun = world.now;
    request(&mut world, begun, false);
    let _ = reach(&mut world, RotationPhase::Activating);
    let away = without_a_server(&world, MEMBERS);
    assert!(is_found(&mut world, &away, |values| drop(values.remove("previous.pub"))));
}

#[test]
fn a_key_that_is_used_or_removed_in_time_is_no_fault() {
    let mut world = settled();
    let begun = world.now;
    request(&mut world, begun, true);
    for _ in 0..40 {
        assert!(!is_found(&mut world, &calm(MEMBERS), |_| ()));
        let _ = world.pass(&calm(MEMBERS));
    }
    assert_eq!(phase(&world), Some(RotationPhase::Completed));
}

#[test]
fn secrets_are_written_again_before_the_previous_key_is_removed() {
    let mut world = settled();
    let first = encryption(&world.documents)["active.key"].clone();
    let begun = world.now;
    request_encryption(&mut world, begun, false);
    let _ = reach_encryption(&mut world, RotationPhase::Reencrypting);
    assert_eq!(encryption(&world.documents)["previous.key"], first);
    let plan = world.pass(&calm(MEMBERS));
    assert_eq!(plan.rewrites.len(), 1);
    let _ = world.pass(&calm(MEMBERS));
    let rotation = cluster(&world.documents).rotation(ENCRYPTION).unwrap();
    assert_eq!(rotation.rewritten, Some(500), "the progress is in the status");
    let _ = reach_encryption(&mut world, RotationPhase::Prepared);
    assert!(is_settled(&world.pass(&calm(MEMBERS))));

    request_encryption(&mut world, begun, true);
    let _ = reach_encryption(&mut world, RotationPhase::Completed);
    let left = encryption(&world.documents);
    assert_eq!(left.keys().collect::<Vec<_>>(), ["active.key"]);
    assert_ne!(left["active.key"], first);
    assert!(is_settled(&world.pass(&calm(MEMBERS))), "nothing is restarted once more");
}

/// An API server that is not observed may run, and write Secrets that no other one could read without the previous key.
#[test]
fn an_immediate_rotation_of_the_encryption_key_waits_for_a_silent_machine() {
    let mut world = settled();
    let begun = world.now;
    request_encryption(&mut world, begun, true);
    let requested = world.documents.clusters.values_mut().next().unwrap().spec.rotations.request_mut(ENCRYPTION);
    requested.as_mut().unwrap().immediate = true;
    let _ = reach_encryption(&mut world, RotationPhase::Activating);
    let away = without_a_server(&world, MEMBERS);
    for _ in 0..30 {
        let _ = world.pass(&away);
    }
    assert_eq!(encryption_phase(&world), Some(RotationPhase::Activating));
    assert!(encryption(&world.documents).contains_key("previous.key"));
    let _ = reach_encryption(&mut world, RotationPhase::Completed);
}

#[test]
fn a_restored_store_is_written_again_before_the_previous_key_is_removed() {
    let mut world = settled();
    let begun = world.now;
    request_encryption(&mut world, begun, false);
    let _ = reach_encryption(&mut world, RotationPhase::Prepared);
    // The store is of a time before the rotation, and so is its record.
    world.rewrite = SecretRewrite::default();
    request_encryption(&mut world, begun, true);
    let plan = world.pass(&calm(MEMBERS));
    assert_eq!(plan.rewrites.len(), 1);
    assert!(encryption(&world.documents).contains_key("previous.key"));
    let _ = reach_encryption(&mut world, RotationPhase::Completed);
}

#[test]
fn a_key_of_another_cluster_is_replaced_before_a_rotation_activates_another_one() {
    let mut world = settled();
    let name = SecretName::of(&world.id(), "encryption");
    let source = ByteString(b"of the cluster whose snapshot this one began with".to_vec());
    world.documents.put_secret_values(&name, [("previous.key".to_owned(), source)]);
    for _ in 0..5 {
        let _ = world.pass(&calm(MEMBERS));
    }
    let begun = world.now;
    request_encryption(&mut world, begun, false);
    let _ = reach_encryption(&mut world, RotationPhase::Announcing);
    let mut was_written = false;
    for _ in 0..40 {
        let plan = world.pass(&calm(MEMBERS));
        was_written |= !plan.rewrites.is_empty();
        if encryption_phase(&world) == Some(RotationPhase::Activating) {
            assert!(was_written);
            return;
        }
    }
    panic!("it does not end: {:?}", encryption_phase(&world));
}

#[test]
fn an_encryption_key_that_is_used_or_removed_too_early_is_found() {
    let mut world = settled();
    let begun = world.now;
    request_encryption(&mut world, begun, false);
    let _ = reach_encryption(&mut world, RotationPhase::Announcing);
    let is_found = |world: &mut World, fault: fn(&mut CompactMap<ByteString>)| {
        let (mut plan, seen, _) = world.decide(&calm(MEMBERS));
        let name = SecretName::of(&world.id(), "encryption");
        fault(plan.documents.secrets.get_mut(&name).unwrap().data.as_mut().unwrap());
        let found = invariants::check(&world.documents, &plan.documents, &seen);
        found.iter().any(|violation| violation.invariant.contains("a key is used once all that verify run with it"))
    };
    assert!(is_found(&mut world, |values| {
        let next = values.remove("next.key").unwrap();
        let retired = values.insert("active.key".to_owned(), next).unwrap();
        values.insert("previous.key".to_owned(), retired);
    }));
    let _ = reach_encryption(&mut world, RotationPhase::Reencrypting);
    assert!(is_found(&mut world, |values| drop(values.remove("previous.key"))));
}

fn fate() -> impl Strategy<Value = DriverFate> {
    prop_oneof![
        3 => Just(DriverFate::Lives),
        1 => Just(DriverFate::DiesBeforeTheSave),
        1 => Just(DriverFate::DiesAfterTheSave),
        1 => Just(DriverFate::LosesTheOrder),
    ]
}

pub(super) fn round() -> impl Strategy<Value = Round> {
    let bits = || prop_oneof![3 => Just(0), 1 => any::<u8>()];
    (bits(), bits(), fate()).prop_map(|(silent, dead, fate)| Round { silent, dead, fate, ..calm(MEMBERS) })
}

/// The pods of every config, by their digests: a pod that is held runs with an earlier one.
pub(super) type KnownPods = BTreeMap<(PodName, String), Pod>;

/// Whether a file of the model verifies what a key or an authority signs.
fn verifies(key: RotatedKey, shown: &[u8], trusted: &[u8]) -> bool {
    if key != KEY {
        return is_trusted(key, shown, trusted);
    }
    let (key, bundle) = (String::from_utf8_lossy(shown), String::from_utf8_lossy(trusted));
    match key.strip_suffix(", next key") {
        Some(before) => bundle.contains(&format!("{before}, next pub")),
        None => bundle.contains(&format!("{key}, public")) || bundle.starts_with("service-account/bundle.pub"),
    }
}

/// The keys of an API server, the one that encrypts first.
fn keys_of(pod: &Pod) -> Option<Vec<String>> {
    encryption_keys(&pod.files.iter().find(|file| file.path == "encryption.json")?.content)
}

/// Every API server decrypts whatever any of them has encrypted. `used` has the keys of stored Secrets.
fn check_encrypted(world: &World, pods: &KnownPods, used: &mut BTreeSet<String>) {
    let sandboxes = world.machines.values().flat_map(|state| &state.sandboxes);
    let running = sandboxes.filter_map(|sandbox| pods.get(&(sandbox.pod.clone(), sandbox.digest.clone())));
    let keys: Vec<Vec<String>> = running.filter_map(keys_of).collect();
    let writes: BTreeSet<String> = keys.iter().filter_map(|keys| keys.first().cloned()).collect();
    if world.rewrite.is_complete {
        used.retain(|key| *key == world.rewrite.key);
    }
    used.extend(writes);
    for keys in &keys {
        assert!(used.iter().all(|key| keys.contains(key)), "an API server has {keys:?} of {used:?}");
    }
}

/// Notes the pods of all configs, and returns those that run.
fn running<'a>(world: &'a World, pods: &'a mut KnownPods) -> Vec<(&'a PodName, &'a Pod)> {
    let held = world.configs.values().flat_map(|config| &config.pods);
    pods.extend(held.map(|(name, pod)| ((name.clone(), pod.digest()), pod.clone())));
    let sandboxes = world.machines.values().flat_map(|state| &state.sandboxes);
    sandboxes
        .filter_map(|sandbox| Some((&sandbox.pod, pods.get(&(sandbox.pod.clone(), sandbox.digest.clone()))?)))
        .collect()
}

/// Every component verifies what the others present.
pub(super) fn check_running(world: &World, pods: &mut KnownPods) {
    let running = running(world, pods).into_iter().filter_map(|(name, pod)| {
        let role = world.documents.components.get(name)?.spec.role;
        let files = pod.files.iter().map(|file| (file.path.as_str(), file.content.as_slice())).collect();
        Some(ComponentFiles { name, role, files })
    });
    assert_eq!(unverified(&running.collect::<Vec<_>>(), verifies), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_is_signed_is_verified(rounds in vec(round(), 1..60)) {
        let mut world = settled();
        let mut pods = KnownPods::new();
        let begun = world.now;
        request(&mut world, begun, true);
        for round in &rounds {
            let _ = world.pass(round);
            check_running(&world, &mut pods);
        }
        for _ in 0..40 {
            let _ = world.pass(&calm(MEMBERS));
            check_running(&world, &mut pods);
        }
        prop_assert_eq!(phase(&world), Some(RotationPhase::Completed));
        prop_assert_eq!(value(&world.documents, "previous.pub"), None);
    }

    #[test]
    fn whatever_is_encrypted_is_decrypted(rounds in vec(round(), 1..60)) {
        let mut world = settled();
        let (mut pods, mut used) = (KnownPods::new(), BTreeSet::new());
        let begun = world.now;
        request_encryption(&mut world, begun, true);
        for round in rounds.iter().chain(&vec![calm(MEMBERS); 60]) {
            let _ = world.pass(round);
            check_running(&world, &mut pods);
            check_encrypted(&world, &pods, &mut used);
        }
        prop_assert_eq!(encryption_phase(&world), Some(RotationPhase::Completed));
        prop_assert_eq!(encryption(&world.documents).len(), 1);
    }
}
