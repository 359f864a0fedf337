//! Simulated workers, and agents of fleets: which authorities each of them trusts, and which one issued its certificates.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Cluster,
    duration::Span,
    machine::{hex, sha256_hex},
    name::ClusterId,
    role::Role,
    rotation::RotatedKey,
};
use keelway_pki::CertificateFacts;
use keelway_planner::{ObservedTrust, trust::ComponentFiles};
use tokio::time::Instant;

use super::{
    bug::Bug,
    rollout_bugs::RolloutBug,
    rollout_rules::{has_authority, running_components, verifies},
    state::SimulationState,
};

/// The number of workers of a cluster, or of agents of a fleet.
const WORKERS: usize = 2;
/// The deadline of rotations in some clusters, so that some workers return before it, and some after it.
pub(super) const SHORT_DEADLINE: Span = Span::of_seconds(20);
const LONGEST_ABSENCE_MILLIS: u64 = 60_000;

/// The authority that signed each certificate.
type IssuedCertificates = BTreeMap<Vec<u8>, Vec<u8>>;

/// A worker of a cluster, or the agent of a fleet in a workload cluster.
#[derive(Debug, Clone)]
pub(super) struct SimulatedWorker {
    pub(super) name: String,
    is_ready: bool,
    /// Until when it is switched off.
    away_until: Instant,
    /// Whether a rotation continued without it. It may have to join again.
    pub(super) is_left: bool,
    /// The authorities with which its kubelet, or the agent, runs.
    pub(super) trusted: Vec<u8>,
    /// The authority that issued its certificates.
    pub(super) issuer: Vec<u8>,
}

/// What the components of a cluster give its workers, or those of a fleet its agents.
struct PublishedTrust {
    bundle: Vec<u8>,
    /// The authority by which workers are to have certificates, if it has changed.
    issuer: Option<Vec<u8>>,
    /// The authority that signs certificates of workers now. `None`: no controller manager runs.
    signer: Option<Vec<u8>>,
}

impl PublishedTrust {
    fn of(running: &[ComponentFiles], issued: &IssuedCertificates) -> Option<Self> {
        let file = |role: Role, path: &str| {
            let mut all = running.iter().filter(|one| one.role == role && connects(one, running, issued));
            all.find_map(|one| one.files.get(path).map(|content| content.to_vec()))
        };
        let publishers =
            [(Role::ClusterController, "cluster-controller.json"), (Role::FleetController, "fleet-controller.json")];
        let found = publishers.into_iter().find_map(|(role, path)| Some((role, file(role, path)?)));
        let (publisher, config) = found?;
        let config: serde_json::Value = serde_json::from_slice(&config).ok()?;
        let text = config["issuer"].as_str();
        let bundle = file(publisher, "ca.crt").filter(|bundle| key_id(bundle).is_some())?;
        let signer = file(Role::KubeControllerManager, "signer.crt").filter(|signer| key_id(signer).is_some());
        Some(Self { bundle, issuer: text.map(|text| text.as_bytes().to_vec()), signer })
    }
}

impl SimulatedWorker {
    /// Follows the cluster as a worker does: the kubelet starts again for other authorities, and then requests certificates of the one that signs now.
    fn follow(&mut self, published: &PublishedTrust) {
        self.is_left = false;
        self.trusted.clone_from(&published.bundle);
        let is_requested = published.issuer.as_ref().is_some_and(|issuer| has_authority(&self.trusted, issuer));
        if let Some(signer) = published.signer.as_ref().filter(|_| is_requested) {
            self.issuer.clone_from(signer);
        }
    }

    /// Joins again with a token.
    fn join_again(&mut self, published: &PublishedTrust) {
        if let Some(signer) = &published.signer {
            self.is_left = false;
            (self.trusted, self.issuer) = (published.bundle.clone(), signer.clone());
        }
    }

    /// Whether it and an API server verify each other.
    fn connects(&self, running: &[ComponentFiles], issued: &IssuedCertificates) -> bool {
        let mut servers = running.iter().filter(|one| one.role == Role::KubeApiserver);
        servers.any(|server| {
            let is_verified = |shown| verifies(issued, RotatedKey::KubernetesAuthority, shown, &self.trusted);
            server.files.get("server.crt").is_some_and(|shown| is_verified(shown))
                && server.files.get("ca.crt").is_some_and(|bundle| has_authority(bundle, &self.issuer))
        })
    }

    /// Whether documents name it as left behind.
    pub(super) fn is_named(&self, names: &BTreeSet<String>) -> bool {
        ["worker", "agent of cluster"].iter().any(|kind| names.contains(&format!("{kind} {}", self.name)))
    }

    fn report(&self) -> ObservedTrust {
        ObservedTrust {
            name: self.name.clone(),
            is_ready: self.is_ready,
            trusted: Some(sha256_hex(&self.trusted)),
            issuers: key_id(&self.issuer),
        }
    }
}

impl SimulationState {
    /// Lets workers and agents join, leave for a while, return, and follow their cluster or fleet.
    pub(super) fn advance_workers(&mut self) {
        if !self.rollouts.happen {
            return;
        }
        let initialized = self.saved.clusters.values().filter(|cluster| cluster.is_initialized());
        for (cluster, id) in initialized.filter_map(|cluster| Some((cluster, cluster.id()?))) {
            let now = Instant::now();
            let running = running_components(&self.machines, id, |machine, process| {
                machine.on_network(now) && self.is_well(process)
            });
            let issued = &self.rollouts.issued;
            let Some(published) = PublishedTrust::of(&running, issued) else { continue };
            let random = &mut self.rollouts.random;
            let workers = self.rollouts.workers.entry(id.clone()).or_default();
            if let Some(signer) = published.signer.as_ref().filter(|_| workers.is_empty()) {
                *workers = join(&published.bundle, signer);
            }
            let is_rotated = cluster.running_rotation(RotatedKey::KubernetesAuthority).is_some();
            for worker in workers {
                let is_calm = self.weather.calm;
                if is_rotated && !is_calm && has_short_deadline(cluster) && random.one_in(20) {
                    worker.away_until = now + random.millis(1_000, LONGEST_ABSENCE_MILLIS);
                }
                let is_on = is_calm || if worker.is_ready { !random.one_in(20) } else { random.one_in(4) };
                let connects = worker.connects(&running, issued);
                worker.is_ready = is_on && connects && worker.away_until <= now;
                let is_turn = worker.away_until <= now && random.one_in(2);
                if is_turn && worker.is_ready {
                    worker.follow(&published);
                } else if is_turn && worker.is_left && !connects && random.one_in(5) {
                    worker.join_again(&published);
                }
            }
        }
    }

    /// What the workers of a cluster, or the agents of a fleet, report.
    pub(super) fn worker_reports(&self, id: &ClusterId) -> Vec<ObservedTrust> {
        let is_skipped = |worker: &&SimulatedWorker| {
            self.bug == Some(Bug::InRollout(RolloutBug::SkipsAbsentWorkers)) && !worker.is_ready
        };
        let workers = self.rollouts.workers.get(id).into_iter().flatten();
        workers.filter(|worker| !is_skipped(worker)).map(SimulatedWorker::report).collect()
    }
}

fn has_short_deadline(cluster: &Cluster) -> bool {
    cluster.spec.certificates.rotation_deadline == SHORT_DEADLINE
}

/// Whether a component and an API server verify each other.
fn connects(one: &ComponentFiles, running: &[ComponentFiles], issued: &IssuedCertificates) -> bool {
    let is_verified = |by: &ComponentFiles, to: &ComponentFiles, path: &str| {
        let shown = by.files.get(path).zip(to.files.get("ca.crt"));
        shown.is_some_and(|(shown, trusted)| verifies(issued, RotatedKey::KubernetesAuthority, shown, trusted))
    };
    let mut servers = running.iter().filter(|other| other.role == Role::KubeApiserver);
    servers.any(|server| is_verified(server, one, "server.crt") && is_verified(one, server, "client.crt"))
}

fn join(bundle: &[u8], signer: &[u8]) -> Vec<SimulatedWorker> {
    let worker = |number: usize| SimulatedWorker {
        name: format!("w{number}"),
        is_ready: true,
        away_until: Instant::now(),
        is_left: false,
        trusted: bundle.to_vec(),
        issuer: signer.to_vec(),
    };
    (0..WORKERS).map(worker).collect()
}

/// The key identifier of an authority, in hexadecimal digits. Of a bundle, it is that of the first authority.
fn key_id(pem: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(pem).ok()?;
    let first = text.split_inclusive("-----END CERTIFICATE-----\n").next()?;
    Some(hex(&CertificateFacts::from_pem(first).ok()?.key_id?))
}
