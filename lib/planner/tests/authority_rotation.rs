//! Rotations of authorities, on machines that fail and return, by drivers that die between any two steps. No component ever presents a certificate that
//! another one does not verify.

use keelway_api::{
    ByteString, Time,
    documents::SecretName,
    duration::Span,
    entries::CompactMap,
    jiff::{SignedDuration, Timestamp},
    rotation::{RotatedKey, RotationPhase, RotationRequest},
};
use keelway_planner::{MintRequest, ObservedTrust, Plan, WaitBlocker, invariants};
use proptest::{collection::vec, prelude::*};

use crate::{
    model::signer_of,
    rotation::{KnownPods, check_running, cluster, condition, is_settled, round, without_a_server},
    world::{Round, World, calm},
};

const MEMBERS: u32 = 3;
/// Those that only components trust.
const AUTHORITIES: [RotatedKey; 3] =
    [RotatedKey::EtcdAuthority, RotatedKey::FrontProxyAuthority, RotatedKey::InfrastructureAuthority];
const ALL: [RotatedKey; 4] = [
    RotatedKey::EtcdAuthority,
    RotatedKey::FrontProxyAuthority,
    RotatedKey::InfrastructureAuthority,
    RotatedKey::KubernetesAuthority,
];

const KUBERNETES: RotatedKey = RotatedKey::KubernetesAuthority;

fn secret(key: RotatedKey) -> &'static str {
    match key {
        RotatedKey::EtcdAuthority => "etcd-ca",
        RotatedKey::FrontProxyAuthority => "front-proxy-ca",
        RotatedKey::InfrastructureAuthority => "infrastructure-ca",
        RotatedKey::KubernetesAuthority => "kubernetes-ca",
        RotatedKey::ServiceAccount | RotatedKey::Encryption => panic!("{key} is no authority"),
    }
}

fn settled() -> World {
    let mut world = World::settled(MEMBERS);
    world.records_keys = true;
    let worker = |name: &str| ObservedTrust { name: name.to_owned(), is_ready: true, ..ObservedTrust::default() };
    world.workers = ["w1", "w2"].map(worker).to_vec();
    let _ = world.pass(&calm(MEMBERS));
    world
}

fn request(world: &mut World, key: RotatedKey, complete: bool) {
    let requested_at = match cluster(&world.documents).rotation(key) {
        Some(rotation) => rotation.requested_at.clone(),
        None => Time(world.now),
    };
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    *cluster.spec.rotations.request_mut(key) = Some(RotationRequest { requested_at, complete, immediate: false });
}

fn phase(world: &World, key: RotatedKey) -> Option<RotationPhase> {
    cluster(&world.documents).rotation(key).map(|rotation| rotation.phase)
}

fn values(world: &World, key: RotatedKey) -> CompactMap<ByteString> {
    world.documents.secrets[&SecretName::of(&world.id(), secret(key))].data.clone().unwrap()
}

fn reach(world: &mut World, key: RotatedKey, wanted: RotationPhase) -> Plan {
    for _ in 0..60 {
        let plan = world.pass(&calm(MEMBERS));
        if phase(world, key) == Some(wanted) {
            return plan;
        }
    }
    panic!("{key} does not reach {wanted}: {:?}", cluster(&world.documents).rotation(key));
}

/// The authorities that signed the certificates of the documents.
fn signers(world: &World, key: RotatedKey) -> Vec<Vec<u8>> {
    let all = world.documents.secrets.values().flat_map(|secret| secret.data.iter().flatten());
    let signers = all.filter_map(|(_, value)| signer_of(&value.0));
    let name = secret(key).as_bytes();
    signers.filter(|signer| signer.windows(name.len()).any(|window| window == name)).collect()
}

#[test]
fn an_authority_is_rotated_in_phases() {
    for key in AUTHORITIES {
        let mut world = settled();
        let first = values(&world, key)["active.crt"].clone();
        request(&mut world, key, false);
        let plan = world.pass(&calm(MEMBERS));
        assert!(plan.mint.iter().any(|minted| matches!(minted, MintRequest::NextAuthority { .. })), "{key}");
        let next = values(&world, key)["next.crt"].clone();
        let announced = values(&world, key)["bundle.crt"].clone();
        assert_eq!(announced.0, [first.0.as_slice(), &next.0].concat());

        let _ = reach(&mut world, key, RotationPhase::Activating);
        assert_eq!(values(&world, key)["active.crt"], next);
        assert_eq!(
            values(&world, key)["bundle.crt"],
            announced,
            "the same certificates, so nothing is restarted for them"
        );
        assert!(!values(&world, key).contains_key("previous.key"));
        assert_eq!(signers(&world, key), Vec::<Vec<u8>>::new(), "{key}: the first generation signed all");
        let plan = world.pass(&calm(MEMBERS));
        let waits = plan.waiting.iter().map(|waiting| waiting.blocker.to_string()).collect::<Vec<_>>();
        assert!(waits.contains(&format!("certificates to be issued by the new {key}")), "{waits:?}");

        let _ = reach(&mut world, key, RotationPhase::Prepared);
        assert!(!signers(&world, key).is_empty());
        assert!(signers(&world, key).iter().all(|signer| *signer == next.0), "{key}");
        assert!(is_settled(&world.pass(&calm(MEMBERS))), "{key}");

        request(&mut world, key, true);
        let _ = reach(&mut world, key, RotationPhase::Completed);
        let left = values(&world, key);
        assert_eq!(left.keys().collect::<Vec<_>>(), ["active.crt", "active.key", "bundle.crt"]);
        assert_eq!((&left["active.crt"], &left["bundle.crt"]), (&next, &next));
        assert!(is_settled(&world.pass(&calm(MEMBERS))), "{key}: nothing is restarted once more");
    }
}

#[test]
fn an_authority_is_rotated_again() {
    let mut world = settled();
    let key = RotatedKey::EtcdAuthority;
    for _ in 0..2 {
        request(&mut world, key, false);
        let _ = reach(&mut world, key, RotationPhase::Prepared);
        request(&mut world, key, true);
        let _ = reach(&mut world, key, RotationPhase::Completed);
        let cluster = world.documents.clusters.values_mut().next().unwrap();
        cluster.status.as_mut().unwrap().rotations = None;
    }
    let expected = b"\nnext of next of etcd-ca/active.crt";
    assert!(values(&world, key)["active.crt"].0.starts_with(expected));
}

#[test]
fn a_silent_machine_keeps_the_phase() {
    for key in ALL {
        let mut world = settled();
        request(&mut world, key, false);
        let _ = reach(&mut world, key, RotationPhase::Announcing);
        let away = without_a_server(&world, MEMBERS);
        for _ in 0..40 {
            let _ = world.pass(&away);
        }
        assert_eq!(phase(&world, key), Some(RotationPhase::Announcing), "{key}");
        let plan = world.pass(&away);
        let is_named = |blocker: &WaitBlocker| blocker.to_string().contains("kube-apiserver-1 may run there");
        assert!(plan.waiting.iter().any(|waiting| is_named(&waiting.blocker)), "{:?}", plan.waiting);
    }
}

/// Requests that a key is replaced as soon as possible, or that its rotation ends so.
fn request_now(world: &mut World, key: RotatedKey) {
    request(world, key, true);
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.rotations.request_mut(key).as_mut().unwrap().immediate = true;
}

fn left_behind(world: &World, key: RotatedKey) -> Vec<String> {
    cluster(&world.documents).rotation(key).unwrap().left_behind.iter().cloned().collect()
}

/// The components there are named, because they continue with the previous authority. The new one is in use everywhere else. What has to be restarted
/// without the previous one is restarted only while its other replicas work.
#[test]
fn an_immediate_rotation_does_not_wait_for_a_silent_machine() {
    for key in ALL {
        let mut world = settled();
        request_now(&mut world, key);
        let _ = reach(&mut world, key, RotationPhase::Announcing);
        let away = without_a_server(&world, MEMBERS);
        let mut said = Vec::new();
        for _ in 0..60 {
            said.extend(world.pass(&away).decisions.iter().map(ToString::to_string));
        }
        assert!(phase(&world, key) >= Some(RotationPhase::Retiring), "{key}: {:?}", phase(&world, key));
        assert!(!values(&world, key).contains_key("previous.crt"), "{key}");
        let left = left_behind(&world, key);
        assert!(left.iter().any(|name| name.starts_with("kube-apiserver-1 on ")), "{key}: {left:?}");
        assert!(
            said.iter().any(|text| text.contains("continues without ") && text.contains("kube-apiserver-1")),
            "{said:?}"
        );

        // It follows once its machine responds.
        for _ in 0..40 {
            let _ = world.pass(&calm(MEMBERS));
        }
        assert!(is_settled(&world.pass(&calm(MEMBERS))), "{key}");
        assert_eq!(phase(&world, key), Some(RotationPhase::Completed), "{key}");
    }
}

#[test]
fn an_immediate_rotation_waits_for_ready_workers_for_a_short_time() {
    let mut world = settled();
    world.workers.push(ObservedTrust { name: "absent".to_owned(), ..ObservedTrust::default() });
    world.stuck_worker = Some("w2".to_owned());
    request_now(&mut world, KUBERNETES);
    let at_once = Round { minutes: 0, ..calm(MEMBERS) };
    for expected in
        [RotationPhase::Announcing, RotationPhase::Activating, RotationPhase::Prepared, RotationPhase::Retiring]
    {
        let mut said = Vec::new();
        for _ in 0..60 {
            said = world.pass(&at_once).waiting.iter().map(|waiting| waiting.blocker.to_string()).collect();
        }
        assert_eq!(phase(&world, KUBERNETES), Some(expected), "{said:?}");
        assert!(said.iter().any(|text| text.starts_with("worker w2 to ")), "{expected}: {said:?}");
        world.now += SignedDuration::from_mins(5);
    }
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Completed);
    assert_eq!(left_behind(&world, KUBERNETES), ["worker absent", "worker w2"]);
}

#[test]
fn a_rotation_that_waits_for_a_person_can_be_completed_immediately() {
    let mut world = settled();
    request(&mut world, KUBERNETES, false);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Prepared);
    world.workers[0].is_ready = false;
    world.workers[0].issuers = Some("00".to_owned());
    request_now(&mut world, KUBERNETES);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Completed);
    assert!(!values(&world, KUBERNETES).contains_key("previous.key"));
    assert_eq!(left_behind(&world, KUBERNETES), ["worker w1"]);
}

#[test]
fn the_agents_of_a_fleet_follow_its_authority() {
    let mut world = World::settled_fleet(MEMBERS);
    world.records_keys = true;
    let agent = |name: &str| ObservedTrust { name: name.to_owned(), is_ready: true, ..ObservedTrust::default() };
    world.workers = ["east", "west"].map(agent).to_vec();
    let _ = world.pass(&calm(MEMBERS));
    let first = values(&world, KUBERNETES)["active.crt"].clone();

    (world.stuck_worker, world.workers[1].trusted) = (Some("west".to_owned()), None);
    request(&mut world, KUBERNETES, false);
    let waits = |world: &mut World| {
        let mut said = Vec::new();
        for _ in 0..20 {
            said = world.pass(&calm(MEMBERS)).waiting.iter().map(|waiting| waiting.blocker.to_string()).collect();
        }
        said
    };
    let said = waits(&mut world);
    let silent = "agent of cluster west to report trusted authorities: ";
    assert!(said.iter().any(|text| text.starts_with(silent)), "{said:?}");
    world.workers[1].trusted = Some("those of before".to_owned());
    let said = waits(&mut world);
    assert!(said.iter().any(|text| text == "agent of cluster west to trust the next kubernetes authority"), "{said:?}");
    world.stuck_worker = None;

    let _ = reach(&mut world, KUBERNETES, RotationPhase::Prepared);
    let config = world.configs.values().flat_map(|config| config.pods.values()).flat_map(|pod| &pod.files);
    let config = config.into_iter().find(|file| file.path == "fleet-controller.json").unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config.content).unwrap();
    let next = values(&world, KUBERNETES)["active.crt"].clone();
    assert_eq!(config["issuer"].as_str().map(str::as_bytes), Some(next.0.as_slice()));
    request(&mut world, KUBERNETES, true);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Completed);
    let left = values(&world, KUBERNETES);
    assert_eq!(left.keys().collect::<Vec<_>>(), ["active.crt", "active.key", "bundle.crt"]);
    assert_ne!(left["bundle.crt"], first);
    assert!(is_settled(&world.pass(&calm(MEMBERS))));
}

/// The leaders that workers follow may be on the machine that does not respond.
#[test]
fn an_immediate_rotation_does_not_leave_all_workers_behind() {
    let mut world = settled();
    request_now(&mut world, KUBERNETES);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Announcing);
    world.workers.retain(|worker| worker.name == "w2");
    world.workers[0].trusted = Some("only the first generation".to_owned());
    world.stuck_worker = Some("w2".to_owned());
    for _ in 0..40 {
        let _ = world.pass(&calm(MEMBERS));
    }
    assert_eq!(phase(&world, KUBERNETES), Some(RotationPhase::Announcing));
}

/// Plants a fault into the authority of the next plan.
fn is_found(
    world: &mut World,
    key: RotatedKey,
    round: &Round,
    fault: impl FnOnce(&mut CompactMap<ByteString>),
) -> bool {
    let (mut plan, seen, _) = world.decide(round);
    let name = SecretName::of(&world.id(), secret(key));
    fault(plan.documents.secrets.get_mut(&name).unwrap().data.as_mut().unwrap());
    let found = invariants::check(&world.documents, &plan.documents, &seen);
    found.iter().any(|violation| violation.invariant.contains("a key is used once all that verify run with it"))
}

fn activate(values: &mut CompactMap<ByteString>) {
    for half in ["key", "crt"] {
        let next = values.remove(&format!("next.{half}")).unwrap();
        let retired = values.insert(format!("active.{half}"), next).unwrap();
        if half == "crt" {
            values.insert("previous.crt".to_owned(), retired);
        }
    }
}

#[test]
fn an_authority_that_is_used_or_removed_too_early_is_found() {
    for key in ALL {
        let mut world = settled();
        request(&mut world, key, false);
        let _ = reach(&mut world, key, RotationPhase::Announcing);
        let away = without_a_server(&world, MEMBERS);
        assert!(is_found(&mut world, key, &away, activate), "{key} is used too early");
        let _ = reach(&mut world, key, RotationPhase::Prepared);
        let is_removed = is_found(&mut world, key, &away, |values| {
            values.remove("previous.crt");
            values.remove("previous.key");
        });
        assert!(is_removed, "{key} is removed too early");
    }
}

#[test]
fn an_authority_that_a_machine_lacks_is_not_used() {
    let mut world = settled();
    let key = RotatedKey::InfrastructureAuthority;
    request(&mut world, key, false);
    let _ = reach(&mut world, key, RotationPhase::Announcing);
    // Components read this file again without a restart.
    let files = world.machines.values_mut().flat_map(|state| &mut state.files);
    for (_, file) in files.filter(|(path, _)| path.contains("/gateway-0/files/infrastructure-ca.crt")) {
        file.sha256 = Some("0".repeat(64));
    }
    assert!(is_found(&mut world, key, &calm(MEMBERS), |values| {
        if values.contains_key("next.crt") {
            activate(values);
        }
    }));
    let (plan, ..) = world.decide(&calm(MEMBERS));
    let is_named = |blocker: &WaitBlocker| blocker.to_string().starts_with("gateway-0 to run with the next");
    assert!(plan.waiting.iter().any(|waiting| is_named(&waiting.blocker)), "{:?}", plan.waiting);
}

/// Each generation is one line of a bundle.
fn holds(bundle: &[u8], authority: &[u8]) -> bool {
    bundle.split(|byte| *byte == b'\n').any(|line| line == authority.trim_ascii())
}

/// Whether a bundle of the model has the generation that signed a certificate.
pub(super) fn is_trusted(key: RotatedKey, certificate: &[u8], bundle: &[u8]) -> bool {
    if let Some(signer) = signer_of(certificate) {
        return holds(bundle, &signer);
    }
    // Before the first rotation, the bundle is text that names the first generation.
    let first = format!("{}/active.crt, never shown to anybody", secret(key)).into_bytes();
    bundle.starts_with(format!("{}/bundle.crt", secret(key)).as_bytes()) || holds(bundle, &first)
}

/// The signers of the certificates that API servers and gateways present, and of those of clients.
fn signers_of(world: &World, names: &[&str]) -> Vec<Vec<u8>> {
    let all = world.documents.secrets.iter().filter(|(secret, _)| !secret.name.ends_with("-ca"));
    let all = all.flat_map(|(secret, values)| {
        values.data.iter().flatten().map(move |(key, value)| (format!("{}/{key}", secret.name), value))
    });
    let chosen = all.filter(|(name, _)| names.iter().any(|wanted| name.contains(wanted)));
    chosen.filter_map(|(_, value)| signer_of(&value.0)).collect()
}

const SHOWN: [&str; 2] = ["kube-apiserver-0/server.crt", "gateway-0/tunnel.crt"];
const CLIENTS: [&str; 3] = ["kube-apiserver-0/kubelet-client.crt", "driver/client.crt", "kube-scheduler-0/client.crt"];

#[test]
fn users_see_the_next_generation_only_after_the_completion() {
    let mut world = settled();
    request(&mut world, KUBERNETES, false);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Prepared);
    let (first, next) =
        (values(&world, KUBERNETES)["previous.crt"].clone(), values(&world, KUBERNETES)["active.crt"].clone());
    assert_eq!(signers_of(&world, &SHOWN), Vec::<Vec<u8>>::new(), "the first generation signed them");
    assert_eq!(signers_of(&world, &CLIENTS), vec![next.0.clone(); 3]);
    assert!(values(&world, KUBERNETES).contains_key("previous.key"), "it still signs for servers");
    assert!(is_settled(&world.pass(&calm(MEMBERS))));

    request(&mut world, KUBERNETES, true);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Retiring);
    let bundle = || values(&world, KUBERNETES)["bundle.crt"].0.clone();
    assert!(holds(&bundle(), &next.0) && bundle().starts_with(&first.0), "components and workers trust both");
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Completed);
    assert_eq!(signers_of(&world, &SHOWN), vec![next.0.clone(); 2]);
    let left = values(&world, KUBERNETES);
    assert_eq!(left.keys().collect::<Vec<_>>(), ["active.crt", "active.key", "bundle.crt"]);
    assert!(is_settled(&world.pass(&calm(MEMBERS))), "nothing is restarted once more");
}

#[test]
fn a_previous_authority_that_has_ended_signs_nothing() {
    let mut world = settled();
    request(&mut world, KUBERNETES, false);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Prepared);
    let next = values(&world, KUBERNETES)["active.crt"].clone();
    world.previous_ends = world.now;
    let _ = world.pass(&calm(MEMBERS));
    assert_eq!(signers_of(&world, &SHOWN), vec![next.0.clone(); 2], "no client could verify the previous one");
    request(&mut world, KUBERNETES, true);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Completed);
}

#[test]
fn documents_from_before_the_completion_do_not_present_the_removed_authority() {
    let mut world = settled();
    request(&mut world, KUBERNETES, false);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Prepared);
    let backup = world.documents.clone();
    request(&mut world, KUBERNETES, true);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Completed);
    let next = values(&world, KUBERNETES)["active.crt"].clone();

    let _ = world.recover(&backup, true);
    assert_eq!(phase(&world, KUBERNETES), Some(RotationPhase::Retiring));
    for _ in 0..60 {
        let _ = world.pass(&calm(MEMBERS));
        assert_eq!(signers_of(&world, &SHOWN), vec![next.0.clone(); 2]);
    }
    assert_eq!(phase(&world, KUBERNETES), Some(RotationPhase::Completed));
    assert!(!values(&world, KUBERNETES).contains_key("previous.key"));
}

/// The texts of what a pass waits for.
fn waits(world: &mut World) -> Vec<String> {
    world.pass(&calm(MEMBERS)).waiting.iter().map(|waiting| waiting.blocker.to_string()).collect()
}

#[test]
fn a_worker_that_does_not_follow_keeps_the_phase() {
    let mut world = settled();
    request(&mut world, KUBERNETES, false);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Announcing);
    // A worker of an earlier release reports nothing.
    world.workers.push(ObservedTrust { name: "w3".to_owned(), ..ObservedTrust::default() });
    for _ in 0..20 {
        let _ = world.pass(&calm(MEMBERS));
        world.workers[2] = ObservedTrust { name: "w3".to_owned(), is_ready: true, ..ObservedTrust::default() };
    }
    assert_eq!(phase(&world, KUBERNETES), Some(RotationPhase::Announcing));
    world.workers[2].is_ready = false;
    let told = waits(&mut world);
    assert!(told.iter().any(|text| text.starts_with("worker w3 to return before")), "{told:?}");
    world.now += SignedDuration::from_hours(24 * 8);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Activating);
}

/// When the current phase began.
fn since(world: &World) -> Timestamp {
    cluster(&world.documents).rotation(KUBERNETES).unwrap().since.0
}

#[test]
fn a_rotation_ends_without_a_worker_that_is_away_past_the_deadline() {
    let mut world = settled();
    let trusted = Some("those of before".to_owned());
    world.workers.push(ObservedTrust { name: "w3".to_owned(), trusted, ..ObservedTrust::default() });
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.certificates.rotation_deadline = Span::hours(48);
    request(&mut world, KUBERNETES, false);
    for (current, next) in [
        (RotationPhase::Announcing, RotationPhase::Activating),
        (RotationPhase::Activating, RotationPhase::Prepared),
        (RotationPhase::Prepared, RotationPhase::Completed),
    ] {
        let _ = reach(&mut world, KUBERNETES, current);
        request(&mut world, KUBERNETES, current == RotationPhase::Prepared);
        let until = since(&world) + SignedDuration::from_hours(48);
        for _ in 0..40 {
            let _ = world.pass(&calm(MEMBERS));
        }
        let named = format!(
            "worker w3 to return before {until}: start the worker, or delete its Node. A worker that returns later has to join again with a token"
        );
        for passed in [world.now, until - SignedDuration::from_mins(2)] {
            world.now = passed;
            assert_eq!(waits(&mut world), [named.as_str()], "{current}");
            assert_eq!(phase(&world, KUBERNETES), Some(current));
        }
        let plan = world.pass(&calm(MEMBERS));
        let decisions: Vec<String> = plan.decisions.iter().map(ToString::to_string).collect();
        let without =
            "the rotation of the kubernetes authority of c1 continues without worker w3, which has not followed";
        assert!(decisions.iter().any(|decision| decision == without), "{decisions:?}");
        let _ = reach(&mut world, KUBERNETES, next);
    }
    assert_eq!(left_behind(&world, KUBERNETES), ["worker w3"]);
    assert!(!values(&world, KUBERNETES).contains_key("previous.key"));
    assert!(is_settled(&world.pass(&calm(MEMBERS))));
}

/// It reads both authorities from the cluster, which presents certificates of the one that it knows until then.
#[test]
fn a_worker_that_returns_after_the_deadline_follows_until_the_completion() {
    let mut world = settled();
    world.workers.push(ObservedTrust { name: "w3".to_owned(), ..ObservedTrust::default() });
    request(&mut world, KUBERNETES, false);
    for next in [RotationPhase::Activating, RotationPhase::Prepared] {
        let _ = world.pass(&calm(MEMBERS));
        world.now += SignedDuration::from_hours(24 * 7);
        let _ = reach(&mut world, KUBERNETES, next);
    }
    assert_eq!(left_behind(&world, KUBERNETES), ["worker w3"]);
    world.workers[2].is_ready = true;
    request(&mut world, KUBERNETES, true);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Retiring);
    assert_eq!(world.workers[2], ObservedTrust { name: "w3".to_owned(), ..world.workers[1].clone() });
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Completed);
}

#[test]
fn a_prepared_rotation_reports_when_earlier_kubeconfigs_expire() {
    let mut world = settled();
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.certificates.admin_ttl = Span::hours(8);
    for key in [RotatedKey::EtcdAuthority, KUBERNETES] {
        request(&mut world, key, false);
    }
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Activating);
    let (_, message) = condition(&world).unwrap();
    assert!(!message.contains("kubeconfigs"), "some may still be signed by the previous authority: {message}");
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Prepared);
    let last = since(&world) + SignedDuration::from_hours(8);
    let completes = |field: &str, name: &str| {
        format!(
            "{field} is Prepared: `keelway cluster rotate --name c1 --authority {name} --complete` removes the previous key"
        )
    };
    let expected = format!(
        "{}; {}; kubeconfigs from before with the lifetime spec.certificates.adminTTL expire by {last}",
        completes("etcdAuthority", "etcd"),
        completes("kubernetesAuthority", "kubernetes")
    );
    for _ in 0..3 {
        let _ = world.pass(&Round { minutes: 60, ..calm(MEMBERS) });
        assert_eq!(condition(&world), Some(("RotationPrepared".to_owned(), expected.clone())));
    }
}

#[test]
fn workers_that_trust_something_else_are_named() {
    let mut world = behind();
    assert_eq!(waits(&mut world), ["workers w1, w2 to trust the next kubernetes authority"]);
}

#[test]
fn a_worker_with_an_earlier_certificate_keeps_the_previous_authority() {
    let mut world = settled();
    request(&mut world, KUBERNETES, false);
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Prepared);
    request(&mut world, KUBERNETES, true);
    world.workers[0].issuers = Some("00".to_owned());
    let told = waits(&mut world);
    assert_eq!(told, ["worker w1 to get certificates from the new kubernetes authority"]);
    assert_eq!(phase(&world, KUBERNETES), Some(RotationPhase::Prepared));
    let _ = reach(&mut world, KUBERNETES, RotationPhase::Completed);
}

#[test]
fn an_authority_that_a_worker_lacks_is_not_used() {
    let mut world = behind();
    assert!(is_found(&mut world, KUBERNETES, &calm(MEMBERS), |values| {
        if values.contains_key("next.crt") {
            activate(values);
        }
    }));
}

/// A rotation in which only the workers lack the next authority.
fn behind() -> World {
    let mut world = settled();
    request(&mut world, KUBERNETES, false);
    // The workers are away until everything else has both.
    for worker in &mut world.workers {
        worker.is_ready = false;
    }
    let are_waited_for = |text: &String| text.starts_with("workers w1, w2 to return");
    let is_reached = (0..60).any(|_| waits(&mut world).iter().any(are_waited_for));
    assert!(is_reached, "{:?}", waits(&mut world));
    assert_eq!(phase(&world, KUBERNETES), Some(RotationPhase::Announcing));
    for worker in &mut world.workers {
        worker.is_ready = true;
        worker.trusted = Some("only the first generation".to_owned());
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_is_presented_is_verified(rounds in vec(round(), 1..60), which in 0..ALL.len()) {
        let mut world = settled();
        let mut pods = KnownPods::new();
        let key = ALL[which];
        request(&mut world, key, true);
        for round in &rounds {
            let _ = world.pass(&Round { replicas: MEMBERS, ..round.clone() });
            check_running(&world, &mut pods);
        }
        for _ in 0..60 {
            let _ = world.pass(&calm(MEMBERS));
            check_running(&world, &mut pods);
        }
        prop_assert_eq!(phase(&world, key), Some(RotationPhase::Completed));
        prop_assert!(!values(&world, key).contains_key("previous.crt"));
    }
}
