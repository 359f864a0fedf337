//! Reports on the worker's Node which authorities the worker trusts, and which issued its certificates. A rotation waits for that.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use keelway_api::{
    machine::sha256_hex,
    worker::{CERTIFICATE_ISSUERS, TRUSTED_AUTHORITIES},
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Map, Value, json};

use crate::{
    api::ApiError,
    certificate::{self, CLIENT, SERVING},
    files::NodeFileError,
    kubelet::KubeletTrust,
    process::ProcessId,
    settings::Layout,
};

/// The annotations of a Node about its trust. `None`: absent or, of the worker itself, not confirmed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TrustReport {
    authorities: Option<String>,
    issuers: Option<String>,
}

impl TrustReport {
    /// Returns the report that the Node has.
    pub(crate) fn of(node: &Node) -> Self {
        let value = |key| node.annotations().get(key).cloned();
        Self { authorities: value(TRUSTED_AUTHORITIES), issuers: value(CERTIFICATE_ISSUERS) }
    }

    /// Returns what the running kubelet confirms. `authorities` are those that the daemon trusts, in PEM.
    pub(crate) fn read(layout: &Layout, kubelet: Option<ProcessId>, authorities: &str) -> Result<Self, NodeFileError> {
        let record = kubelet.map(|kubelet| KubeletTrust::load(layout, kubelet)).transpose()?.flatten();
        let issuers = [CLIENT, SERVING].map(|file| certificate::issuer(layout, file));
        Ok(Self::confirmed(record.as_ref(), authorities, issuers))
    }

    /// A kubelet that has to be restarted confirms nothing: it does not use the files yet.
    fn confirmed(record: Option<&KubeletTrust>, authorities: &str, issuers: [Option<String>; 2]) -> Self {
        if !record.is_some_and(|record| record.is_of(authorities)) {
            return Self::default();
        }
        let issuers: Option<BTreeSet<String>> = issuers.into_iter().collect();
        let issuers = issuers.map(|issuers| issuers.into_iter().collect::<Vec<_>>().join(","));
        Self { authorities: Some(sha256_hex(authorities.as_bytes())), issuers }
    }

    /// Returns the annotations to set on a Node that has the report `before`.
    fn changes(&self, before: &Self) -> Map<String, Value> {
        let values = [
            (TRUSTED_AUTHORITIES, &self.authorities, &before.authorities),
            (CERTIFICATE_ISSUERS, &self.issuers, &before.issuers),
        ];
        let changed = values.into_iter().filter(|(_, now, before)| now != before);
        changed.filter_map(|(key, now, _)| Some((key.to_owned(), json!(now.as_ref()?)))).collect()
    }

    /// Whether a Node with the report `before` needs a write.
    pub(crate) fn differs(&self, before: &Self) -> bool {
        !self.changes(before).is_empty()
    }

    /// Sets the annotations of the Node.
    pub(crate) async fn write(&self, client: Client, node: &str, before: &Self) -> Result<(), ApiError> {
        let patch = json!({ "metadata": { "annotations": self.changes(before) } });
        let nodes: Api<Node> = Api::all(client);
        let patched = nodes.patch(node, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.map(drop).map_err(ApiError::request("report on the Node which authorities the worker trusts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBELET: ProcessId = ProcessId { pid: 7, started: 1 };

    fn issuers(client: Option<&str>, serving: Option<&str>) -> [Option<String>; 2] {
        [client, serving].map(|issuer| issuer.map(str::to_owned))
    }

    #[test]
    fn a_kubelet_confirms_only_the_authorities_with_which_it_was_started() {
        let record = KubeletTrust::started_with(KUBELET, "one");
        let all = || issuers(Some("b"), Some("b"));
        let confirmed = TrustReport::confirmed(Some(&record), "one", all());
        assert_eq!(confirmed.authorities, Some(sha256_hex(b"one")));
        assert_eq!(confirmed.issuers.as_deref(), Some("b"));
        for record in [None, Some(&KubeletTrust::outdated(KUBELET)), Some(&record)] {
            assert_eq!(TrustReport::confirmed(record, "two", all()), TrustReport::default());
        }
    }

    #[test]
    fn issuers_are_sorted_and_need_both_certificates() {
        let record = KubeletTrust::started_with(KUBELET, "one");
        let of = |client, serving| TrustReport::confirmed(Some(&record), "one", issuers(client, serving)).issuers;
        assert_eq!(of(Some("b"), Some("a")).as_deref(), Some("a,b"));
        assert_eq!(of(Some("b"), None), None);
        assert_eq!(of(None, Some("b")), None);
    }

    #[test]
    fn only_confirmed_values_that_differ_are_written() {
        let report = |authorities: Option<&str>, issuers: Option<&str>| TrustReport {
            authorities: authorities.map(str::to_owned),
            issuers: issuers.map(str::to_owned),
        };
        let now = report(Some("1"), Some("a"));
        let names = |before| now.changes(&before).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert!(!now.differs(&now.clone()));
        assert_eq!(names(report(Some("1"), Some("b"))), [CERTIFICATE_ISSUERS]);
        assert_eq!(names(report(None, Some("a"))), [TRUSTED_AUTHORITIES]);
        assert!(!report(None, None).differs(&now), "a restart of the kubelet keeps what the Node has");
        let node: Node = serde_json::from_value(json!({
            "metadata": { "annotations": { TRUSTED_AUTHORITIES: "1", CERTIFICATE_ISSUERS: "a" } },
        }))
        .unwrap();
        assert_eq!(TrustReport::of(&node), now);
    }
}
