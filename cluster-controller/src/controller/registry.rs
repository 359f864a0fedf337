//! The list of workers that may have a Node, which an admission policy reads.

use std::{future::ready, sync::Arc, time::Duration};

use futures::{StreamExt, stream::select};
use keelway_api::worker::{
    ALLOCATION, CERTIFICATE_ID, NodeAllocation, NodeAllocationSpec, WireGuardPeer, WorkerIdentity,
};
use keelway_component::requests::ignore_conflict;
use kube::{
    Api, ResourceExt,
    api::PostParams,
    runtime::{WatchStreamExt, reflector, watcher},
};
use tokio::time::timeout;

use super::{ControllerContext, ControllerError};

/// The pause before a failed write of the list is retried.
const AGAIN: Duration = Duration::from_secs(1);

enum RegistryEvent {
    Peers,
    List(Option<Box<NodeAllocation>>),
}

/// Logs the first of consecutive failures of a watch. The watch is retried with growing pauses.
struct WatchFailureLog {
    what: &'static str,
    is_failing: bool,
}

impl WatchFailureLog {
    fn new(what: &'static str) -> Self {
        Self { what, is_failing: false }
    }

    fn passed<T>(&mut self, event: Result<T, watcher::Error>) -> Option<T> {
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
    let changes = watcher(Api::all(context.client.clone()), watcher::Config::default()).default_backoff();
    let mut peers_said = WatchFailureLog::new("peers");
    let changes =
        changes.reflect(writer).filter_map(move |event| ready(peers_said.passed(event).map(|_| RegistryEvent::Peers)));
    let (identities, writer) = reflector::store::<WorkerIdentity>();
    let others = watcher(Api::all(context.client.clone()), watcher::Config::default()).default_backoff();
    let mut identities_said = WatchFailureLog::new("identities");
    let others = others
        .reflect(writer)
        .filter_map(move |event| ready(identities_said.passed(event).map(|_| RegistryEvent::Peers)));
    let changes = select(changes, others);
    let lists = Api::<NodeAllocation>::all(context.client.clone());
    let list = watcher::watch_object(lists.clone(), ALLOCATION).default_backoff();
    let mut list_said = WatchFailureLog::new("the list of workers");
    let list = list
        .filter_map(move |event| ready(list_said.passed(event).map(|list| RegistryEvent::List(list.map(Box::new)))));
    let mut notices = Box::pin(select(changes, list));
    let mut seen: Option<Option<Box<NodeAllocation>>> = None;
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
        is_behind = current.as_ref().is_none_or(|list| list.spec != wanted);
        if is_behind && let Err(error) = write(&lists, current.as_deref(), wanted, &context).await {
            context.metrics.count_failure();
            let error = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!(error, "cannot write the list of workers");
        }
    }
}

/// Whether the first list is complete.
async fn is_whole<K>(store: &reflector::Store<K>) -> Result<(), ()>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    timeout(Duration::ZERO, store.wait_until_ready()).await.map_err(|_| ())?.map_err(|_| ())
}

/// Returns the peers with addresses, and the certificates of workers that left.
fn entries<'a>(
    peers: impl IntoIterator<Item = &'a WireGuardPeer>,
    identities: impl IntoIterator<Item = &'a WorkerIdentity>,
) -> NodeAllocationSpec {
    let entry = |peer: &WireGuardPeer| {
        let addresses = &peer.status.as_ref()?.addresses;
        (!addresses.is_empty()).then(|| (peer.name_any(), addresses.clone()))
    };
    let revoked = identities.into_iter().flat_map(|identity| &identity.spec.revoked);
    let revoked = revoked.filter_map(|one| {
        let id = one.id.as_ref()?;
        Some((format!("{CERTIFICATE_ID}{id}"), one.until.0.to_string()))
    });
    NodeAllocationSpec { nodes: peers.into_iter().filter_map(entry).collect(), revoked: revoked.collect() }
}

async fn write(
    lists: &Api<NodeAllocation>,
    current: Option<&NodeAllocation>,
    wanted: NodeAllocationSpec,
    context: &ControllerContext,
) -> Result<(), ControllerError> {
    context.fence.check()?;
    let parameters = PostParams::default();
    let written = async {
        match current {
            Some(current) => {
                let list = NodeAllocation { spec: wanted, ..current.clone() };
                lists.replace(ALLOCATION, &parameters, &list).await
            }
            None => lists.create(&parameters, &NodeAllocation::new(ALLOCATION, wanted)).await,
        }
    };
    Ok(ignore_conflict("write the list", written).await.map(drop)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        let addresses = vec!["100.80.0.17".to_owned(), "fd00::11".to_owned()];
        assert_eq!(listed.nodes, BTreeMap::from([("w1".to_owned(), addresses)]));
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
        assert_eq!(listed.revoked.into_keys().collect::<Vec<_>>(), ["X509SHA256=former"]);
    }
}
