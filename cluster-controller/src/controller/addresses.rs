//! Addresses of the VPN: each peer has one of each range, and no two peers have the same.
//!
//! A peer owns an address once a claim with the name of that address exists. The API server creates only one object of a name, whichever
//! replica requests it.

mod claims;
mod decision;
mod pool;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use futures::{StreamExt, TryFutureExt, join, try_join};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
use keelway_api::worker::{AddressClaim, AddressClaimSpec, Tombstone, WireGuardPeer, address_name};
use keelway_component::{
    requests::{KubeRequestError, call, has_code, ignore_conflict, only},
    watching::controller_of,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    runtime::{
        controller::Action,
        events::EventType,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde_json::json;
use tokio::sync::{Mutex, watch};

use self::decision::{
    AllocationOutcome, PeerEligibility, claimed, is_of, is_spent, peer_eligibility, pods, reserved_addresses, status,
};
pub(crate) use self::pool::Pool;
use super::{
    ControllerContext, ControllerError, MANAGER,
    context::{log_outcome, now, on_error},
};

/// The state of the controller of peers.
struct AddressController {
    context: Arc<ControllerContext>,
    peers: Store<WireGuardPeer>,
    claims: Store<AddressClaim>,
    /// Whether the store contains the complete first list of claims.
    whole: watch::Receiver<bool>,
    /// Held while a peer without addresses is reconciled.
    joining: Mutex<()>,
}

/// Assigns addresses to peers, releases them, and records the pod ranges of peers.
pub(super) async fn run(context: Arc<ControllerContext>) {
    let client = context.client.clone();
    let claims = controller_of(Api::<AddressClaim>::all(client.clone()));
    let peers = controller_of(Api::<WireGuardPeer>::all(client.clone()));
    let (tell, whole) = watch::channel(false);
    let (joining, all_claims) = (Mutex::default(), claims.store());
    let state = Arc::new(AddressController {
        context: Arc::clone(&context),
        peers: peers.store(),
        claims: claims.store(),
        whole,
        joining,
    });
    // A store wakes only one waiter, and the controller of claims is one of them. The reconciler of peers therefore waits for this
    // channel instead.
    let first_claims = async {
        if all_claims.wait_until_ready().await.is_ok() {
            tell.send_replace(true);
        }
    };
    let (by_claim, by_node, by_tombstone) = (peers.store(), peers.store(), peers.store());
    let peers = peers
        .watches(Api::<AddressClaim>::all(client.clone()), watcher::Config::default(), move |claim| {
            affected_peers(&by_claim, |peer| peer.name_any() == claim.spec.node || lacks(peer))
        })
        .watches(Api::<Node>::all(client.clone()), watcher::Config::default(), move |node| {
            let ranges = ranges_of(&node);
            affected_peers(&by_node, |peer| peer.name_any() == node.name_any() || shares(peer, &ranges))
        })
        .watches(Api::<Tombstone>::all(client.clone()), watcher::Config::default(), move |tombstone| {
            affected_peers(&by_tombstone, |peer| {
                peer_eligibility(peer, [], std::slice::from_ref(&tombstone)) == PeerEligibility::Evicted
            })
        })
        // One at a time: the claims of one peer count for the next one.
        .with_config(kube::runtime::controller::Config::default().concurrency(1))
        .run(
            reconcile,
            |peer, error, state: Arc<AddressController>| on_error(peer, error, Arc::clone(&state.context)),
            state,
        )
        .for_each(|outcome| log_outcome("peers", outcome));
    join!(peers, claims::run(claims, context), first_claims);
}

fn affected_peers(peers: &Store<WireGuardPeer>, is: impl Fn(&WireGuardPeer) -> bool) -> Vec<ObjectRef<WireGuardPeer>> {
    peers.state().iter().filter(|peer| is(peer)).map(|peer| ObjectRef::from_obj(&**peer)).collect()
}

fn lacks(peer: &WireGuardPeer) -> bool {
    peer.status.as_ref().is_none_or(|status| status.addresses.is_empty())
}

fn shares(peer: &WireGuardPeer, ranges: &[String]) -> bool {
    peer.status.iter().flat_map(|status| &status.pod_cidrs).any(|range| ranges.contains(range))
}

fn ranges_of(node: &Node) -> Vec<String> {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
    if all.is_empty() { spec.and_then(|spec| spec.pod_cidr.clone()).into_iter().collect() } else { all }
}

async fn reconcile(peer: Arc<WireGuardPeer>, state: Arc<AddressController>) -> Result<Action, ControllerError> {
    let context = &state.context;
    if peer.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    // While either list is incomplete, an address that is in use would look free. The controller of peers has already waited for its
    // list of peers.
    if state.whole.clone().wait_for(|whole| *whole).await.is_err() {
        return Ok(Action::await_change());
    }
    let (name, all) = (peer.name_any(), ListParams::default());
    let tombstones = Api::<Tombstone>::all(context.client.clone());
    // If two peers with one key arrive concurrently, the second must observe the addresses of the first. A watch would report them too late.
    let alone = if lacks(&peer) { Some(state.joining.lock().await) } else { None };
    let peers = async {
        if alone.is_none() {
            return Ok(state.peers.state());
        }
        let peers = Api::<WireGuardPeer>::all(context.client.clone());
        Ok(call("list peers", peers.list(&all)).await?.items.into_iter().map(Arc::new).collect())
    };
    let tombstones = call("list tombstones", tombstones.list(&all)).map_err(ControllerError::from);
    let (tombstones, peers, own) = try_join!(tombstones, peers, node_ranges(&name, context))?;
    let tombstones = tombstones.items;
    let mut new = Vec::new();
    match peer_eligibility(&peer, peers.iter().map(AsRef::as_ref), &tombstones) {
        PeerEligibility::Evicted => evict(&peer, context).await?,
        PeerEligibility::KeyTaken(by) => write(&peer, AllocationOutcome::KeyTaken(by), &own, context).await?,
        PeerEligibility::Good(given) => {
            let outcome = allocate(&peer, &given, &peers, &tombstones, &mut new, &state).await?;
            write(&peer, outcome, &own, context).await?;
        }
    }
    drop(alone);
    // These events come last, because the worker waits for its addresses.
    for address in new {
        let note = format!("the worker's address in the VPN is {address}");
        context.publish(&*peer, EventType::Normal, "Allocated", &note).await;
    }
    Ok(Action::await_change())
}

async fn evict(peer: &WireGuardPeer, context: &ControllerContext) -> Result<(), ControllerError> {
    context.fence.check()?;
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    ignore_conflict("delete the peer", peers.delete(&peer.name_any(), &only(peer))).await?;
    tracing::info!(peer = peer.name_any(), "deleted the peer of an evicted worker");
    context.publish(peer, EventType::Warning, "Evicted", "the worker was evicted").await;
    Ok(())
}

/// Returns one address of each range: those that the peer has, and a new claim for each that it lacks. New claims are added to `new`.
async fn allocate(
    peer: &WireGuardPeer,
    given: &[IpAddr],
    peers: &[Arc<WireGuardPeer>],
    tombstones: &[Tombstone],
    new: &mut Vec<IpAddr>,
    state: &AddressController,
) -> Result<AllocationOutcome, ControllerError> {
    let context = &state.context;
    let claims = state.claims.state();
    let claims = || claims.iter().map(AsRef::as_ref);
    let mut taken = reserved_addresses(claims(), peers.iter().map(AsRef::as_ref), tombstones);
    let mut addresses = Vec::new();
    for pool in context.configuration.pools() {
        let held = given.iter().copied().find(|address| pool.holds(*address));
        let address = match held.or_else(|| claimed(peer, &pool, claims())) {
            Some(address) => ensure(peer, address, context).await?.then_some(address),
            None => None,
        };
        let address = match address {
            Some(address) => Some(address),
            None if held.is_some() => return Err(ControllerError::Stolen),
            None if is_spent(peer, &pool, claims()) => return Ok(AllocationOutcome::Spent),
            None => {
                let lowest = claim_lowest(peer, &pool, &mut taken, context).await?;
                new.extend(lowest);
                lowest
            }
        };
        match address {
            Some(address) => addresses.push(address),
            None => return Ok(AllocationOutcome::Exhausted),
        }
    }
    // Existing addresses stay, even if their range is no longer configured.
    Ok(AllocationOutcome::Given(if given.is_empty() { addresses } else { given.to_vec() }))
}

/// Claims the lowest free address. If another replica claims it first, it tries the next one.
async fn claim_lowest(
    peer: &WireGuardPeer,
    pool: &Pool,
    taken: &mut BTreeSet<IpAddr>,
    context: &ControllerContext,
) -> Result<Option<IpAddr>, ControllerError> {
    while let Some(address) = pool.lowest_free(taken) {
        if claim(peer, address, context).await? {
            context.metrics.count_allocation();
            tracing::info!(peer = peer.name_any(), %address, "claimed an address");
            return Ok(Some(address));
        }
        context.metrics.count_conflict();
        taken.insert(address);
    }
    Ok(None)
}

/// Ensures that the claim of an address exists. Returns whether the address belongs to this peer.
async fn ensure(peer: &WireGuardPeer, address: IpAddr, context: &ControllerContext) -> Result<bool, ControllerError> {
    match read_claim(address, context).await? {
        Some(found) => Ok(is_of(&found, peer)),
        None => claim(peer, address, context).await,
    }
}

/// Creates the claim of an address for a peer. Returns whether the address belongs to this peer afterwards.
async fn claim(peer: &WireGuardPeer, address: IpAddr, context: &ControllerContext) -> Result<bool, ControllerError> {
    context.fence.check()?;
    let claims = Api::<AddressClaim>::all(context.client.clone());
    let spec = AddressClaimSpec { node: peer.name_any(), public_key: peer.spec.public_key.clone(), rests_until: None };
    match claims.create(&PostParams::default(), &AddressClaim::new(&address_name(address), spec)).await {
        Ok(_) => Ok(true),
        Err(error) if has_code(&error, 409) => {
            Ok(read_claim(address, context).await?.is_some_and(|found| is_of(&found, peer)))
        }
        Err(source) => Err(KubeRequestError { what: "claim an address", source: Box::new(source) }.into()),
    }
}

async fn read_claim(address: IpAddr, context: &ControllerContext) -> Result<Option<AddressClaim>, ControllerError> {
    let claims = Api::<AddressClaim>::all(context.client.clone());
    Ok(call("read the claim", claims.get_opt(&address_name(address))).await?)
}

/// Writes the status of a peer. `own` are the ranges of its Node.
async fn write(
    peer: &WireGuardPeer,
    outcome: AllocationOutcome,
    own: &[String],
    context: &ControllerContext,
) -> Result<(), ControllerError> {
    context.fence.check()?;
    let name = peer.name_any();
    let had = peer.status.as_ref().map(|status| status.pod_cidrs.clone()).unwrap_or_default();
    // The ranges of other Nodes matter only while this peer has no Node.
    let others = if own.is_empty() { others(&name, &had, context).await? } else { BTreeSet::new() };
    let pods = pods(&had, own, &others);
    let wanted = status(peer, &outcome, pods, &Time(now()));
    if peer.status.as_ref() == Some(&wanted) {
        return Ok(());
    }
    let patch = json!({
        "apiVersion": "keelway.dev/v1alpha1",
        "kind": "WireGuardPeer",
        // The decision is valid for this version of the peer only, so it is written to this version only.
        "metadata": { "name": name, "uid": peer.uid(), "resourceVersion": peer.resource_version() },
        "status": wanted,
    });
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    let (parameters, patch) = (PatchParams::apply(MANAGER).force(), Patch::Apply(&patch));
    ignore_conflict("write the peer's status", peers.patch_status(&name, &parameters, &patch)).await?;
    if !matches!(outcome, AllocationOutcome::Given(_)) {
        let ready = wanted.conditions.first();
        let (reason, note) = ready.map(|ready| (ready.reason.as_str(), ready.message.as_str())).unwrap_or_default();
        tracing::warn!(peer = name, reason, note, "cannot allocate an address for the peer");
        context.publish(peer, EventType::Warning, reason, note).await;
    }
    Ok(())
}

async fn node_ranges(name: &str, context: &ControllerContext) -> Result<Vec<String>, ControllerError> {
    let nodes = Api::<Node>::all(context.client.clone());
    Ok(call("read the Node", nodes.get_opt(name)).await?.as_ref().map(ranges_of).unwrap_or_default())
}

/// Returns the ranges of other Nodes. It lists Nodes only if the peer has ranges.
async fn others(name: &str, had: &[String], context: &ControllerContext) -> Result<BTreeSet<String>, ControllerError> {
    if had.is_empty() {
        return Ok(BTreeSet::new());
    }
    let nodes = Api::<Node>::all(context.client.clone());
    let nodes = call("list Nodes", nodes.list(&ListParams::default())).await?;
    Ok(nodes.items.iter().filter(|node| node.name_any() != name).flat_map(ranges_of).collect())
}
