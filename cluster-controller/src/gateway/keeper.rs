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

use super::config::OtherGateway;
use super::kept::{Kept, KeptPeer};
use super::members::{Bounds, Candidate, Fault, Members, judge};
use super::pace::Pace;
use super::vpn::Vpn;

/// What the relay's peers are made of: workers, and the other gateways.
pub(super) struct Keeper {
    pub(super) vpn: Arc<Vpn>,
    pub(super) file: PathBuf,
    /// Seconds between keepalives to each peer.
    pub(super) keepalive: u16,
    own: Bounds,
    others: Vec<OtherGateway>,
    candidates: Vec<Candidate>,
    /// Where peers were when the process started: a hint that stays the same as long as the peer does.
    first_endpoints: BTreeMap<PublicKey, SocketAddr>,
    told: BTreeSet<Fault>,
}

impl Keeper {
    /// One that has the peers of the file, so that they are served before the API answers. What peers may not have of this
    /// gateway's own is in `own`.
    pub(super) fn new(vpn: Arc<Vpn>, file: PathBuf, own: Bounds, keepalive: u16, others: Vec<OtherGateway>) -> Self {
        let kept = Kept::read(&file).unwrap_or_else(|error| {
            tracing::error!("peers are not known before the API answers: {}", Chain(&error));
            Kept::default()
        });
        let endpoint = |peer: &KeptPeer| Some((peer.object.public_key.parse().ok()?, peer.endpoint?));
        let first_endpoints = kept.peers.iter().filter_map(endpoint).collect();
        let candidates = kept.peers.into_iter().map(|peer| peer.object).collect();
        let told = BTreeSet::new();
        let mut keeper = Self { vpn, file, keepalive, own, others, candidates, first_endpoints, told };
        keeper.adopt();
        keeper
    }

    /// Does so until it is told to stop, and writes the file a last time.
    pub(super) async fn run(
        mut self,
        mut candidates: watch::Receiver<Option<Vec<Candidate>>>,
        mut others: watch::Receiver<Vec<OtherGateway>>,
        mut events: mpsc::Receiver<Event>,
        stop: CancellationToken,
    ) {
        let mut pace = Pace::default();
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
    fn adopt(&mut self) {
        let (members, faults) = judge(&self.candidates, &self.bounds());
        for fault in faults.difference(&self.told) {
            tracing::warn!("left out: {fault}");
        }
        self.told = faults;
        self.first_endpoints.retain(|key, _| members.by_key.contains_key(key));
        let wanted = self.wanted(&members);
        let before = self.vpn.admit_only(members);
        let changes = self.vpn.relay.set_peers(&wanted);
        for change in &changes {
            tell(change, &before, &self.vpn.members());
        }
    }

    /// What is a gateway's is no worker's.
    fn bounds(&self) -> Bounds {
        let mut bounds = self.own.clone();
        bounds.reserved.extend(self.others.iter().flat_map(|gateway| &gateway.addresses));
        bounds.gateways.extend(self.others.iter().map(|gateway| gateway.public_key));
        bounds
    }

    fn wanted(&self, members: &Members) -> Peers {
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
            ..PeerConfig::new(gateway.public_key)
        });
        gateways.chain(workers).collect()
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
