//! Watches the peers in the cluster's API.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use keelway_api::worker::WireGuardPeer;
use keelway_base::error_chain::ErrorChain;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;

use keelway_tls::FilesVersion;

use super::gateway_peers::Candidate;
use keelway_component::{kubeconfig::files_of, watching::watch_backoff};

/// The pause before the kubeconfig is read again.
const AGAIN: Duration = Duration::from_secs(2);
/// The duration of one watch, in seconds, and therefore the longest time for which a connection to a dead server goes unnoticed.
const WATCH: u32 = 20;
/// How long a response, or the next part of one, may take.
const ANSWER: Duration = Duration::from_secs(WATCH as u64 + 5);
/// How long a connection may take to be established.
const CONNECT: Duration = Duration::from_secs(5);

/// A client of the cluster's API cannot be built.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterClientError {
    #[error("cannot read the kubeconfig")]
    Kubeconfig(#[source] KubeconfigError),
    #[error("cannot create an API client from the kubeconfig")]
    Client(#[source] kube::Error),
}

/// Sends the candidates after the first complete list and after each change. It never returns.
///
/// After an error, it reads the kubeconfig again if it or a file that it names has changed, because credentials are renewed in place.
pub(super) async fn watch(kubeconfig: PathBuf, candidates: watch::Sender<Option<Vec<Candidate>>>) {
    loop {
        let files = files_of(&kubeconfig);
        let stamp = FilesVersion::of(&files);
        match client(&kubeconfig).await {
            Ok(client) => follow(client, &candidates, || FilesVersion::of(&files) != stamp).await,
            Err(error) => {
                tracing::warn!("cannot watch peers: {}", ErrorChain(&error));
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

pub(super) async fn client(kubeconfig: &Path) -> Result<Client, ClusterClientError> {
    let read = Kubeconfig::read_from(kubeconfig).map_err(ClusterClientError::Kubeconfig)?;
    let options = KubeConfigOptions::default();
    let mut config =
        kube::Config::from_custom_kubeconfig(read, &options).await.map_err(ClusterClientError::Kubeconfig)?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(ANSWER);
    Client::try_from(config).map_err(ClusterClientError::Client)
}

async fn follow(client: Client, candidates: &watch::Sender<Option<Vec<Candidate>>>, is_outdated: impl Fn() -> bool) {
    let api: Api<WireGuardPeer> = Api::all(client);
    let mut events = pin!(watcher(api, Config::default().timeout(WATCH)).backoff(watch_backoff()));
    let mut known = CandidateCache::default();
    let mut is_well = true;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                is_well = true;
                if known.take(event) {
                    candidates.send_replace(Some(known.present.values().cloned().collect()));
                }
            }
            Err(error) => {
                if std::mem::replace(&mut is_well, false) {
                    tracing::warn!("the watch of peers failed; retrying: {}", ErrorChain(&error));
                }
                if is_outdated() {
                    return;
                }
            }
        }
    }
}

/// The objects that the watch has reported so far.
#[derive(Default)]
struct CandidateCache {
    present: BTreeMap<String, Candidate>,
    /// A list that is not complete yet.
    coming: BTreeMap<String, Candidate>,
}

impl CandidateCache {
    /// Applies an event. Returns `true` if the present candidates may have changed.
    fn take(&mut self, event: Event<WireGuardPeer>) -> bool {
        match event {
            Event::Init => self.coming.clear(),
            Event::InitApply(object) => _ = self.coming.insert(object.name_any(), candidate(&object)),
            Event::InitDone => {
                self.present = std::mem::take(&mut self.coming);
                return true;
            }
            Event::Apply(object) => {
                let candidate = candidate(&object);
                return self.present.insert(object.name_any(), candidate.clone()) != Some(candidate);
            }
            Event::Delete(object) => return self.present.remove(&object.name_any()).is_some(),
        }
        false
    }
}

fn candidate(peer: &WireGuardPeer) -> Candidate {
    let status = peer.status.clone().unwrap_or_default();
    Candidate {
        name: peer.name_any(),
        created: peer.metadata.creation_timestamp.as_ref().map(|time| time.0),
        public_key: peer.spec.public_key.clone(),
        addresses: status.addresses,
        pod_cidrs: status.pod_cidrs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, address: &str) -> WireGuardPeer {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "keelway.dev/v1alpha1",
            "kind": "WireGuardPeer",
            "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"publicKey": "key"},
            "status": {"addresses": [address], "podCIDRs": ["10.244.3.0/24"]},
        }))
        .unwrap()
    }

    #[test]
    fn a_list_takes_effect_once_it_is_complete() {
        let mut known = CandidateCache::default();
        assert!(!known.take(Event::Init));
        assert!(!known.take(Event::InitApply(object("w1", "100.80.0.1"))));
        assert!(known.present.is_empty());
        assert!(known.take(Event::InitDone));
        let read = &known.present["w1"];
        assert_eq!((read.public_key.as_str(), &read.addresses[..]), ("key", &["100.80.0.1".to_owned()][..]));
        assert_eq!(read.created.map(jiff::Timestamp::as_second), Some(1_767_225_600));
        assert!(!known.take(Event::Apply(object("w1", "100.80.0.1"))), "nothing changed that counts");
        assert!(known.take(Event::Apply(object("w1", "100.80.0.2"))));
        assert!(!known.take(Event::Init) && !known.present.is_empty(), "until the new list is whole");
        assert!(known.take(Event::InitDone));
        assert!(known.present.is_empty());
        assert!(!known.take(Event::Delete(object("w1", "100.80.0.2"))));
    }
}
