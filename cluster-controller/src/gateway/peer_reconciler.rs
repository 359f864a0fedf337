//! Reconciles the relay's peers with the cluster, and the file with the relay's state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use keelway_base::error_chain::ErrorChain;
use keelway_vpn::{PeerChange, PeerConfig, PeerSet, PublicKey, VpnEvent};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::config::OtherGateway;
use super::gateway_peers::{Candidate, CandidateFault, GatewayPeers, PeerBounds, validate_candidates};
use super::peer_file::{PeerFile, StoredPeer};
use super::streams::is_of_stream;
use super::vpn::Vpn;
use super::write_pace::WritePace;

/// The inputs for the relay's peers: workers, and the other gateways.
pub(super) struct PeerReconciler {
    pub(super) vpn: Arc<Vpn>,
    pub(super) file: PathBuf,
    /// Seconds between keepalives to each peer.
    pub(super) keepalive: u16,
    own: PeerBounds,
    others: Vec<OtherGateway>,
    candidates: Vec<Candidate>,
    /// The endpoints of peers when the process started. Such a hint stays the same as long as its peer exists.
    first_endpoints: BTreeMap<PublicKey, SocketAddr>,
    logged: BTreeSet<CandidateFault>,
}

impl PeerReconciler {
    /// Creates a reconciler with the peers of the file, so that they are served before the API responds. `own` contains the limits for peers,
    /// including this gateway's own addresses and key.
    pub(super) fn new(
        vpn: Arc<Vpn>,
        file: PathBuf,
        own: PeerBounds,
        keepalive: u16,
        others: Vec<OtherGateway>,
    ) -> Self {
        let kept = PeerFile::read(&file).unwrap_or_else(|error| {
            tracing::error!(
                "cannot load the stored peers; peers are unknown until the API responds: {}",
                ErrorChain(&error)
            );
            PeerFile::default()
        });
        let endpoint = |peer: &StoredPeer| Some((peer.object.public_key.parse().ok()?, peer.endpoint?));
        let first_endpoints = kept.peers.iter().filter_map(endpoint).collect();
        let candidates = kept.peers.into_iter().map(|peer| peer.object).collect();
        let logged = BTreeSet::new();
        let mut keeper = Self { vpn, file, keepalive, own, others, candidates, first_endpoints, logged };
        keeper.adopt();
        keeper
    }

    /// Reconciles until `stop`, and then writes the file a last time.
    pub(super) async fn run(
        mut self,
        mut candidates: watch::Receiver<Option<Vec<Candidate>>>,
        mut others: watch::Receiver<Vec<OtherGateway>>,
        mut events: mpsc::Receiver<VpnEvent>,
        stop: CancellationToken,
    ) {
        let mut pace = WritePace::default();
        loop {
            tokio::select! {
                Ok(()) = candidates.changed() => {
                    let now = candidates.borrow_and_update().clone();
                    if let Some(now) = now {
                        self.candidates = now;
                        self.adopt();
                        pace.peers_changed(Instant::now());
                    }
                }
                Ok(()) = others.changed() => {
                    self.others.clone_from(&others.borrow_and_update());
                    self.adopt();
                }
                Some(event) = events.recv() => {
                    if matches!(event, VpnEvent::Roamed { .. }) {
                        pace.roamed(Instant::now());
                    }
                }
                () = pace.wait_until_due() => {
                    let is_kept = self.save().await;
                    pace.written(is_kept, Instant::now());
                }
                () = stop.cancelled() => break,
            }
        }
        self.save().await;
    }

    /// Makes the valid candidates the relay's peers.
    fn adopt(&mut self) {
        let (members, faults) = validate_candidates(&self.candidates, &self.bounds());
        for fault in faults.difference(&self.logged) {
            tracing::warn!("ignored: {fault}");
        }
        self.logged = faults;
        self.first_endpoints.retain(|key, _| members.by_key.contains_key(key));
        let wanted = self.wanted(&members);
        let before = self.vpn.admit_only(members);
        let changes = self.vpn.relay.set_peers(&wanted);
        for change in &changes {
            log_change(change, &before, &self.vpn.members());
        }
    }

    /// Returns the limits for peers: a worker may not have a key or an address of a gateway.
    fn bounds(&self) -> PeerBounds {
        let mut bounds = self.own.clone();
        bounds.reserved.extend(self.others.iter().flat_map(|gateway| &gateway.addresses));
        bounds.gateways.extend(self.others.iter().map(|gateway| gateway.public_key));
        bounds
    }

    fn wanted(&self, members: &GatewayPeers) -> PeerSet {
        let workers = members.by_key.iter().map(|(key, member)| PeerConfig {
            endpoint: self.first_endpoints.get(key).copied(),
            persistent_keepalive: self.keepalive,
            allowed_ips: member.prefixes.clone(),
            ..PeerConfig::new(*key)
        });
        let gateways = self.others.iter().map(|gateway| PeerConfig {
            endpoint: Some(gateway.endpoint),
            persistent_keepalive: self.keepalive,
            allowed_ips: gateway.addresses.iter().map(|address| (*address).into()).collect(),
            is_sibling: true,
            ..PeerConfig::new(gateway.public_key)
        });
        gateways.chain(workers).collect()
    }

    async fn save(&self) -> bool {
        let members = self.vpn.members();
        let stats = self.vpn.relay.stats();
        let seen: BTreeMap<String, Option<SocketAddr>> =
            stats.into_iter().map(|peer| (peer.public_key.to_string(), outside(peer.endpoint))).collect();
        let names: BTreeSet<&str> = members.by_key.values().map(|member| member.name.as_str()).collect();
        let peers = self.candidates.iter().filter(|candidate| names.contains(candidate.name.as_str()));
        let peers = peers.map(|object| StoredPeer {
            object: object.clone(),
            endpoint: seen.get(&object.public_key).copied().flatten(),
        });
        let (kept, file) = (PeerFile { peers: peers.collect() }, self.file.clone());
        let written = tokio::task::spawn_blocking(move || kept.write(&file)).await;
        match written {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::error!("cannot store the peers: {}", ErrorChain(&error));
                false
            }
            Err(error) => {
                tracing::error!("cannot store the peers: {}", ErrorChain(&error));
                false
            }
        }
    }
}

/// Returns an endpoint that outlives this process: a stream does not.
fn outside(endpoint: Option<SocketAddr>) -> Option<SocketAddr> {
    endpoint.filter(|endpoint| !is_of_stream(endpoint))
}

fn log_change(change: &PeerChange, before: &GatewayPeers, now: &GatewayPeers) {
    let name = |members: &GatewayPeers, key| members.by_key.get(key).map(|member| member.name.clone());
    match change {
        PeerChange::Add(peer) => tracing::info!(node = name(now, &peer.public_key), "peer added"),
        PeerChange::Remove(key) => tracing::info!(node = name(before, key), "peer removed"),
        PeerChange::Update(update) => tracing::info!(node = name(now, &update.public_key), "peer changed"),
    }
}
