//! How the Kubernetes components of a fleet differ from those of a cluster: a fleet stores what users apply, unchanged, and runs none of it.

use keelway_api::machine::{OnChange, PodFile};
use serde_json::json;

use super::document;

/// The controllers of kube-controller-manager in a fleet. None of them creates anything from users' objects.
///
/// The namespace, garbage collector and token controllers do what the API promises for every object. The others belong to Keelway's own needs:
/// certificates of fleet agents are signed, their requests and tokens are removed when they expire, and the roles `admin`, `edit` and `view` have
/// rules.
pub(super) const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-token-controller,\
    certificatesigningrequest-signing-controller,certificatesigningrequest-cleaner-controller,token-cleaner-controller,\
    clusterrole-aggregation-controller";

/// The admission plugins that are on by default and off in a fleet.
///
/// Each would change or refuse users' objects for reasons that are of a workload cluster, not of the fleet: defaults and limits (`DefaultIngressClass`,
/// `DefaultStorageClass`, `DefaultTolerationSeconds`, `LimitRanger`, `ResourceQuota`), classes and accounts that may exist only there
/// (`PersistentVolumeClaimResize`, `Priority`, `RuntimeClass`, `ServiceAccount`), finalizers that no controller of a fleet removes
/// (`StorageObjectInUseProtection`), and webhooks, whose configurations are stored to be placed, and whose pods run elsewhere.
pub(super) const DISABLED_ADMISSION: &str = "DefaultIngressClass,DefaultStorageClass,DefaultTolerationSeconds,LimitRanger,\
    MutatingAdmissionWebhook,PersistentVolumeClaimResize,Priority,ResourceQuota,RuntimeClass,ServiceAccount,\
    StorageObjectInUseProtection,ValidatingAdmissionWebhook";

/// The file that configures the API servers of a fleet to connect to etcd and to nothing else.
pub(super) const NO_EGRESS: &str = "no-egress.json";
/// The directory does not exist in the image, and no user can create it.
const NO_SOCKET: &str = "/nonexistent/egress.sock";

/// An `EgressSelectorConfiguration` under which connections to nodes, pods, Services, webhooks and aggregated APIs fail.
///
/// A fleet has none of these. Without this file, an administrator of a fleet could write objects, such as a Node or an APIService, that make API
/// servers connect to machines in the private network of the hypervisors.
pub(super) fn no_egress() -> PodFile {
    let nowhere = |name: &str| {
        let transport = json!({ "uds": { "udsName": NO_SOCKET } });
        json!({ "name": name, "connection": { "proxyProtocol": "HTTPConnect", "transport": transport } })
    };
    let content = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [nowhere("cluster"), nowhere("controlplane")],
    });
    document(NO_EGRESS, &content, OnChange::Restart)
}
