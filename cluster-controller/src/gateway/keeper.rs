//! Keeps the relay's peers what they should be, and the file what the relay knows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use keelway_vpn::error::Chain;
use keelway_vpn::{Change, Event, PeerConfig, Peers, PublicKey};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::kept::{Kept, KeptPeer};
use super::members::{Bounds, Candidate, Fault, Members, judge};
use super::pace::Pace;
use super::vpn::Vpn;

/// What peers are made of.
pub(super) struct Keeper {
    pub(super) vpn: Arc<Vpn>,
    pub(super) file: PathBuf,
    pub(super) bounds: Bounds,
    /// Seconds between keepalives to each peer.
    pub(super) keepalive: u16,
    /// The other gateways.
    pub(super) gateways: Vec<PeerConfig>,
    candidates: Vec<Candidate>,
    /// Where peers were when the process started: a hint that stays the same as long as the peer does.
    first_endpoints: BTreeMap<PublicKey, SocketAddr>,
    told: BTreeSet<Fault>,
}

impl Keeper {
    /// One that has the peers of the file, so that they are served before the API answers.
    pub(super) fn new(vpn: Arc<Vpn>, file: PathBuf, bounds: Bounds, keepalive: u16, gateways: Vec<PeerConfig>) -> Self {
        let kept = Kept::read(&file).unwrap_or_else(|error| {
            tracing::error!("peers are not known before the API answers: {}", Chain(&error));
            Kept::default()
        });
        let endpoint = |peer: &KeptPeer| Some((peer.object.public_key.parse().ok()?, peer.endpoint?));
        let first_endpoints = kept.peers.iter().filter_map(endpoint).collect();
        let mut keeper = Self {
            vpn,
            file,
            bounds,
            keepalive,
            gateways,
            candidates: Vec::new(),
            first_endpoints,
            told: BTreeSet::new(),
        };
        keeper.adopt(kept.peers.into_iter().map(|peer| peer.object).collect());
        keeper
    }

    /// Does so until it is told to stop, and writes the file a last time.
    pub(super) async fn run(
        mut self,
        mut candidates: watch::Receiver<Option<Vec<Candidate>>>,
        mut events: mpsc::Receiver<Event>,
        stop: CancellationToken,
    ) {
        let mut pace = Pace::default();
        loop {
            tokio::select! {
                Ok(()) = candidates.changed() => {
                    let now = candidates.borrow_and_update().clone();
                    if let Some(now) = now {
                        self.adopt(now);
                        pace.peers_changed(Instant::now());
                    }
                }
                Some(event) = events.recv() => {
                    if matches!(event, Event::Roamed { .. }) {
                        pace.roamed(Instant::now());
                    }
                }
                () = pace.due() => {
                    let is_kept = self.save().await;
                    pace.written(is_kept, Instant::now());
                }
                () = stop.cancelled() => break,
            }
        }
        self.save().await;
    }

    /// Makes the members among candidates the peers.
    fn adopt(&mut self, candidates: Vec<Candidate>) {
        let (members, faults) = judge(&candidates, &self.bounds);
        for fault in faults.difference(&self.told) {
            tracing::warn!("left out: {fault}");
        }
        self.told = faults;
        self.candidates = candidates;
        self.first_endpoints.retain(|key, _| members.by_key.contains_key(key));
        let wanted = self.wanted(&members);
        let before = self.vpn.admit_only(members);
        let changes = self.vpn.relay.set_peers(&wanted);
        for change in &changes {
            tell(change, &before, &self.vpn.members());
        }
    }

    fn wanted(&self, members: &Members) -> Peers {
        let workers = members.by_key.iter().map(|(key, member)| PeerConfig {
            endpoint: self.first_endpoints.get(key).copied(),
            persistent_keepalive: self.keepalive,
            allowed_ips: member.prefixes.clone(),
            ..PeerConfig::new(*key)
        });
        self.gateways.iter().cloned().chain(workers).collect()
    }

    async fn save(&self) -> bool {
        let members = self.vpn.members();
        let stats = self.vpn.relay.stats();
        let seen: BTreeMap<String, Option<SocketAddr>> =
            stats.into_iter().map(|peer| (peer.public_key.to_string(), peer.endpoint)).collect();
        let names: BTreeSet<&str> = members.by_key.values().map(|member| member.name.as_str()).collect();
        let peers = self.candidates.iter().filter(|candidate| names.contains(candidate.name.as_str()));
        let peers = peers.map(|object| KeptPeer {
            object: object.clone(),
            endpoint: seen.get(&object.public_key).copied().flatten(),
        });
        let (kept, file) = (Kept { peers: peers.collect() }, self.file.clone());
        let written = tokio::task::spawn_blocking(move || kept.write(&file)).await;
        match written {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::error!("peers are not kept: {}", Chain(&error));
                false
            }
            Err(error) => {
                tracing::error!("peers are not kept: {}", Chain(&error));
                false
            }
        }
    }
}

fn tell(change: &Change, before: &Members, now: &Members) {
    let name = |members: &Members, key| members.by_key.get(key).map(|member| member.name.clone());
    match change {
        Change::Add(peer) => tracing::info!(node = name(now, &peer.public_key), "peer added"),
        Change::Remove(key) => tracing::info!(node = name(before, key), "peer removed"),
        Change::Update(update) => tracing::info!(node = name(now, &update.public_key), "peer changed"),
    }
}
