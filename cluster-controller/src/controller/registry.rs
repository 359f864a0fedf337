//! The list of workers that may have a Node, which admission policies read.
//!
//! It is a ConfigMap. For up to half a minute after its start, an API server does not know custom kinds in policies, and refuses every request that
//! such a policy matches. It always knows its own kinds.

use std::{collections::BTreeMap, future::ready, sync::Arc, time::Duration};

use futures::{StreamExt, stream::select};
use k8s_openapi::api::core::v1::ConfigMap;
use keelway_api::worker::{WireGuardPeer, WorkerIdentity};
use keelway_component::{requests::ignore_conflict, watching::watch_backoff};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    core::ObjectMeta,
    runtime::{WatchStreamExt, reflector, watcher},
};
use tokio::time::timeout;

use super::{ControllerContext, ControllerError, MANAGER};

/// The namespace and the name of the ConfigMap.
pub(super) const ALLOCATION: (&str, &str) = ("kube-system", "keelway-node-allocation");
/// The prefix of keys whose value is the addresses of the Node with the name after it, separated by commas.
pub(super) const NODE: &str = "node.";
/// The prefix of keys for a certificate that is revoked. The digits of its fingerprint follow, and the value is its expiry.
pub(super) const REVOKED: &str = "revoked.";

/// The pause before a failed write of the list is retried.
const AGAIN: Duration = Duration::from_secs(1);

enum RegistryEvent {
    Peers,
    List(Option<Box<ConfigMap>>),
}

/// Logs the first of consecutive failures of a watch. The watch is retried with growing pauses.
pub(super) struct WatchFailureLog {
    what: &'static str,
    is_failing: bool,
}

impl WatchFailureLog {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, is_failing: false }
    }

    pub(super) fn passed<T>(&mut self, event: Result<T, watcher::Error>) -> Option<T> {
        match event {
            Ok(event) => {
                self.is_failing = false;
                Some(event)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::warn!(error, what = self.what, "cannot watch; retrying");
                }
                None
            }
        }
    }
}

/// Keeps the list up to date.
pub(super) async fn run(context: Arc<ControllerContext>) {
    let (peers, writer) = reflector::store::<WireGuardPeer>();
    let changes = watcher(Api::all(context.client.clone()), watcher::Config::default()).backoff(watch_backoff());
    let mut peers_said = WatchFailureLog::new("peers");
    let changes =
        changes.reflect(writer).filter_map(move |event| ready(peers_said.passed(event).map(|_| RegistryEvent::Peers)));
    let (identities, writer) = reflector::store::<WorkerIdentity>();
    let others = watcher(Api::all(context.client.clone()), watcher::Config::default()).backoff(watch_backoff());
    let mut identities_said = WatchFailureLog::new("identities");
    let others = others
        .reflect(writer)
        .filter_map(move |event| ready(identities_said.passed(event).map(|_| RegistryEvent::Peers)));
    let changes = select(changes, others);
    let lists = Api::<ConfigMap>::namespaced(context.client.clone(), ALLOCATION.0);
    let list = watcher::watch_object(lists.clone(), ALLOCATION.1).backoff(watch_backoff());
    let mut list_said = WatchFailureLog::new("the list of workers");
    let list = list
        .filter_map(move |event| ready(list_said.passed(event).map(|list| RegistryEvent::List(list.map(Box::new)))));
    let mut notices = Box::pin(select(changes, list));
    let mut seen: Option<Option<Box<ConfigMap>>> = None;
    let mut is_behind = false;
    loop {
        let next = if is_behind { timeout(AGAIN, notices.next()).await } else { Ok(notices.next().await) };
        match next {
            Ok(Some(RegistryEvent::List(list))) => seen = Some(list),
            Ok(Some(RegistryEvent::Peers)) | Err(_) => {}
            Ok(None) => return,
        }
        // An incomplete list would revoke the rights of workers that have them.
        let Some(current) = &seen else { continue };
        if is_whole(&peers).await.is_err() || is_whole(&identities).await.is_err() {
            continue;
        }
        let (peers, identities) = (peers.state(), identities.state());
        let wanted = entries(peers.iter().map(AsRef::as_ref), identities.iter().map(AsRef::as_ref));
        is_behind = current.as_ref().is_none_or(|list| list.data.as_ref().unwrap_or(&BTreeMap::new()) != &wanted);
        if is_behind && let Err(error) = write(&lists, current.as_deref(), wanted, &context).await {
            context.metrics.count_failure();
            let error = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!(error, "cannot write the list of workers");
        }
    }
}

/// Whether the first list is complete.
pub(super) async fn is_whole<K>(store: &reflector::Store<K>) -> Result<(), ()>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    timeout(Duration::ZERO, store.wait_until_ready()).await.map_err(|_| ())?.map_err(|_| ())
}

/// Returns the peers with addresses, and the certificates of workers that left.
fn entries<'a>(
    peers: impl IntoIterator<Item = &'a WireGuardPeer>,
    identities: impl IntoIterator<Item = &'a WorkerIdentity>,
) -> BTreeMap<String, String> {
    let node = |peer: &WireGuardPeer| {
        let addresses = &peer.status.as_ref()?.addresses;
        (!addresses.is_empty()).then(|| (format!("{NODE}{}", peer.name_any()), addresses.join(",")))
    };
    let revoked = identities.into_iter().flat_map(|identity| &identity.spec.revoked);
    let revoked = revoked.filter_map(|one| Some((format!("{REVOKED}{}", one.id.as_ref()?), one.until.0.to_string())));
    peers.into_iter().filter_map(node).chain(revoked).collect()
}

async fn write(
    lists: &Api<ConfigMap>,
    current: Option<&ConfigMap>,
    wanted: BTreeMap<String, String>,
    context: &ControllerContext,
) -> Result<(), ControllerError> {
    context.fence.check()?;
    let list = ConfigMap {
        metadata: ObjectMeta {
            name: Some(ALLOCATION.1.to_owned()),
            resource_version: current.and_then(ResourceExt::resource_version),
            ..ObjectMeta::default()
        },
        data: Some(wanted),
        ..ConfigMap::default()
    };
    let (parameters, patch) = (PatchParams::apply(MANAGER).force(), Patch::Apply(&list));
    let written = lists.patch(ALLOCATION.1, &parameters, &patch);
    Ok(ignore_conflict("write the list", written).await.map(drop)?)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use keelway_api::worker::{ApprovedCertificate, WireGuardPeerSpec, WireGuardPeerStatus, WorkerIdentitySpec};

    use super::*;

    #[test]
    fn a_peer_is_listed_once_it_has_addresses() {
        let peer = |name: &str, addresses: &[&str]| {
            let mut peer = WireGuardPeer::new(name, WireGuardPeerSpec { public_key: String::new() });
            let addresses = addresses.iter().map(|&address| address.to_owned()).collect();
            peer.status = Some(WireGuardPeerStatus { addresses, ..WireGuardPeerStatus::default() });
            peer
        };
        let peers = [peer("w1", &["100.80.0.17", "fd00::11"]), peer("w2", &[])];
        let listed = entries(&peers, []);
        assert_eq!(listed, BTreeMap::from([("node.w1".to_owned(), "100.80.0.17,fd00::11".to_owned())]));
    }

    #[test]
    fn certificates_of_workers_that_left_are_listed() {
        let certificate = |key: &str, id: Option<&str>| ApprovedCertificate {
            key: key.to_owned(),
            id: id.map(str::to_owned),
            until: Time(Timestamp::UNIX_EPOCH),
        };
        let spec = WorkerIdentitySpec {
            certificates: vec![certificate("k2", Some("current"))],
            revoked: vec![certificate("k1", Some("former")), certificate("k0", None)],
            ..WorkerIdentitySpec::default()
        };
        let listed = entries([], [&WorkerIdentity::new("w1", spec)]);
        assert_eq!(listed.into_keys().collect::<Vec<_>>(), ["revoked.former"]);
    }
}
