//! Annotations of a Node with which the control plane orders an upgrade of the worker's kubelet.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::duration::Span;

/// The release of Kubernetes that the kubelet of the worker is to run, such as 1.37.0.
pub const KUBELET_RELEASE: &str = "keelway.dev/kubelet-release";
/// How long pods may take to terminate before that, such as 5m.
pub const DRAIN_TIMEOUT: &str = "keelway.dev/kubelet-drain-timeout";

/// An order to upgrade the kubelet of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletOrder {
    /// The release.
    pub release: String,
    /// How long pods may take to terminate.
    pub drain_timeout: Span,
}

impl KubeletOrder {
    /// Returns the order that a Node has. A Node whose annotations cannot be read has none.
    #[must_use]
    pub fn of(node: &ObjectMeta) -> Option<Self> {
        let annotations = node.annotations.as_ref()?;
        let release = annotations.get(KUBELET_RELEASE)?.clone();
        Some(Self { release, drain_timeout: annotations.get(DRAIN_TIMEOUT)?.parse().ok()? })
    }

    /// Returns the annotations of the order.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<&'static str, String> {
        [(KUBELET_RELEASE, self.release.clone()), (DRAIN_TIMEOUT, self.drain_timeout.to_string())].into()
    }

    /// Returns whether a kubelet that reports this version, such as `v1.37.0`, follows the order.
    #[must_use]
    pub fn is_of(&self, kubelet_version: &str) -> bool {
        kubelet_version.strip_prefix('v') == Some(self.release.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let order = KubeletOrder { release: "1.37.0".to_owned(), drain_timeout: Span::minutes(5) };
        let annotations = order.annotations().into_iter().map(|(key, value)| (key.to_owned(), value));
        let mut node = ObjectMeta { annotations: Some(annotations.collect()), ..ObjectMeta::default() };
        assert_eq!(KubeletOrder::of(&node), Some(order.clone()));
        assert!(order.is_of("v1.37.0") && !order.is_of("v1.37.1") && !order.is_of("1.37.0"));
        node.annotations.as_mut().unwrap().insert(DRAIN_TIMEOUT.to_owned(), "soon".to_owned());
        assert_eq!(KubeletOrder::of(&node), None);
        assert_eq!(KubeletOrder::of(&ObjectMeta::default()), None);
    }
}
