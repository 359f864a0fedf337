//! Simulated workers, and agents of fleets: which authorities each of them trusts, and which one issued its certificates.

use keelway_api::{
    machine::{hex, sha256_hex},
    name::ClusterId,
    role::Role,
};
use keelway_pki::CertificateFacts;
use keelway_planner::{ObservedTrust, trust::ComponentFiles};

use super::{
    rollout_rules::{has_authority, running_components},
    state::SimulationState,
};

/// The number of workers of a cluster, or of agents of a fleet.
const WORKERS: usize = 2;

/// A worker of a cluster, or the agent of a fleet in a workload cluster.
#[derive(Debug, Clone)]
pub(super) struct SimulatedWorker {
    name: String,
    is_ready: bool,
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
    fn of(running: &[ComponentFiles]) -> Option<Self> {
        let file = |role: Role, path: &str| {
            let mut all = running.iter().filter(|one| one.role == role);
            all.find_map(|one| one.files.get(path).map(|content| content.to_vec()))
        };
        let publishers =
            [(Role::ClusterController, "cluster-controller.json"), (Role::FleetController, "fleet-controller.json")];
        let found = publishers.into_iter().find_map(|(role, path)| Some((role, file(role, path)?)));
        let (publisher, config) = found?;
        let config: serde_json::Value = serde_json::from_slice(&config).ok()?;
        let issuer = config["issuer"].as_str().map(|issuer| issuer.as_bytes().to_vec());
        let bundle = file(publisher, "ca.crt").filter(|bundle| key_id(bundle).is_some())?;
        let signer = file(Role::KubeControllerManager, "signer.crt").filter(|signer| key_id(signer).is_some());
        Some(Self { bundle, issuer, signer })
    }
}

impl SimulatedWorker {
    /// Follows the cluster as a worker does: the kubelet starts again for other authorities, and then requests certificates of the one that signs now.
    fn follow(&mut self, published: &PublishedTrust) {
        self.trusted.clone_from(&published.bundle);
        let is_requested = published.issuer.as_ref().is_some_and(|issuer| has_authority(&self.trusted, issuer));
        if let Some(signer) = published.signer.as_ref().filter(|_| is_requested) {
            self.issuer.clone_from(signer);
        }
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
        for id in initialized.filter_map(|cluster| cluster.id()) {
            let running = running_components(&self.machines, id, |process| self.is_well(process));
            let has_api = running.iter().any(|one| one.role == Role::KubeApiserver);
            let Some(published) = PublishedTrust::of(&running).filter(|_| has_api) else { continue };
            let random = &mut self.rollouts.random;
            let workers = self.rollouts.workers.entry(id.clone()).or_default();
            if let Some(signer) = published.signer.as_ref().filter(|_| workers.is_empty()) {
                *workers = join(&published.bundle, signer);
            }
            for worker in workers {
                worker.is_ready =
                    self.weather.calm || if worker.is_ready { !random.one_in(20) } else { random.one_in(4) };
                if worker.is_ready && random.one_in(2) {
                    worker.follow(&published);
                }
            }
        }
    }

    /// What the workers of a cluster, or the agents of a fleet, report.
    pub(super) fn worker_reports(&self, id: &ClusterId) -> Vec<ObservedTrust> {
        self.rollouts.workers.get(id).into_iter().flatten().map(SimulatedWorker::report).collect()
    }
}

fn join(bundle: &[u8], signer: &[u8]) -> Vec<SimulatedWorker> {
    let worker = |number: usize| SimulatedWorker {
        name: format!("w{number}"),
        is_ready: true,
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
