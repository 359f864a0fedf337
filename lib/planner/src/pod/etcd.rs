//! etcd.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use keelway_api::{
    machine::{CertificateFiles, ContainerCheck, OnChange},
    name::ComponentName,
    role::{CLIENT, PEER},
};

use super::{MissingKey, PodInputs, PodTemplate, at, flag};
use crate::{rebuild, secret_names, store_start};

/// etcd's own compaction is a second line behind that of kube-apiserver, which compacts every five minutes.
const COMPACTION: &str = "30m";
/// The argument by which a member with data becomes the only one of its store. etcd discards the entries of its log of which it does not know that
/// they are committed (`bootstrappedWAL.CommitedEntries` of `go.etcd.io/etcd/server/v3/etcdserver`).
const FORCE_NEW_CLUSTER: &str = "force-new-cluster";
/// etcd defragments the store when it starts, if that frees at least this many megabytes.
const DEFRAGMENT_MEGABYTES: u32 = 200;

impl PodInputs<'_> {
    pub(super) fn etcd(&self) -> Result<PodTemplate, MissingKey> {
        let [server, server_key] = self.certificate("server")?;
        let [peer, peer_key] = self.certificate("peer")?;
        // etcd reads an authority once, and certificates at each handshake.
        let authority = self.shared("ca.crt", secret_names::ETCD, "bundle.crt", OnChange::Restart)?;
        let (initial_cluster, state) = self.first_start()?;
        let members: Vec<_> = initial_cluster
            .iter()
            .flat_map(|(name, urls)| urls.iter().map(move |url| format!("{name}={url}")))
            .collect();
        let mut pod = PodTemplate {
            files: vec![server, server_key, peer, peer_key, authority],
            check: self.liveness(),
            // A member serves no requests until it finds a quorum, which can take any time.
            startup_seconds: None,
            beside: vec![],
            data: vec![(store_start::DATA, "/var/lib/etcd")],
            servers: None,
            image: self.release().etcd_image(self.cluster.registry.as_deref()),
            command: vec![
                "etcd".to_string(),
                flag("name", self.replica_name()),
                flag("data-dir", "/var/lib/etcd"),
                flag("listen-client-urls", self.listen_url(CLIENT)),
                flag("advertise-client-urls", self.member_url(CLIENT)),
                flag("listen-peer-urls", self.listen_url(PEER)),
                flag("initial-advertise-peer-urls", self.member_url(PEER)),
                flag("initial-cluster", members.join(",")),
                flag("initial-cluster-token", self.tenant.id),
                flag("initial-cluster-state", state),
                flag("cert-file", at("server.crt")),
                flag("key-file", at("server.key")),
                flag("trusted-ca-file", at("ca.crt")),
                flag("client-cert-auth", true),
                flag("peer-cert-file", at("peer.crt")),
                flag("peer-key-file", at("peer.key")),
                flag("peer-trusted-ca-file", at("ca.crt")),
                flag("peer-client-cert-auth", true),
                flag("tls-min-version", "TLS1.2"),
                flag("feature-gates", "InitialCorruptCheck=true,CompactHashCheck=true"),
                flag("quota-backend-bytes", self.cluster.bounds.quota.bytes()),
                flag("auto-compaction-mode", "periodic"),
                flag("auto-compaction-retention", COMPACTION),
                flag("bootstrap-defrag-threshold-megabytes", DEFRAGMENT_MEGABYTES),
                // kube-apiserver's watch cache needs progress notifications (kubeadm's default for etcd).
                flag("watch-progress-notify-interval", "5s"),
            ],
        };
        if rebuild::is_forced(self.tenant.document, &self.pod.component) {
            pod.command.push(flag(FORCE_NEW_CLUSTER, true));
        }
        pod.command.extend(self.store_metrics_flag());
        Ok(pod)
    }

    /// etcd's own health path checks the local store and needs no quorum. etcd requires a client certificate there, too.
    fn liveness(&self) -> ContainerCheck {
        if let Some(check) = self.store_metrics_check() {
            return check;
        }
        let identity = CertificateFiles { certificate: "peer.crt".to_string(), key: "peer.key".to_string() };
        let name = self.pod.component.as_str();
        self.https(self.machine.private.first(), CLIENT, "/livez", (name, "ca.crt"), Some(identity))
    }

    /// The members with which this one starts for the first time, and whether they form a new store. The arguments never change, so a change of the
    /// members restarts none.
    fn first_start(&self) -> Result<(&BTreeMap<ComponentName, Vec<String>>, &'static str), MissingKey> {
        let first = self.first_members()?;
        let name = &self.pod.component;
        let store = self.tenant.document.status.as_ref().and_then(|status| status.etcd.as_ref());
        match store.and_then(|store| store.members.get(name)?.started_with.as_ref()) {
            Some(start) => Ok((&start.initial_cluster, "existing")),
            None if first.contains_key(name) => Ok((first, "new")),
            // etcd does not list it yet.
            None => Err(MissingKey::new("status.etcd.members (its id)")),
        }
    }

    /// The members of the static initial cluster. The error: they are not recorded yet.
    pub(super) fn first_members(&self) -> Result<&BTreeMap<ComponentName, Vec<String>>, MissingKey> {
        let store = self.tenant.document.status.as_ref().and_then(|status| status.etcd.as_ref());
        store.map(|store| &store.initial_cluster).ok_or_else(|| MissingKey::new("status.etcd (its first members)"))
    }
}
