//! Clusters leave a fleet.

use keelway_e2e::{Kubectl, deadline};

use crate::{Member, guestbook};

const REFUSAL: &str = "the fleet refuses this agent";

/// A cluster leaves with its workloads: its agent deletes them, and then has no rights. The other cluster keeps its own.
pub(crate) fn with_its_workloads(leaving: &Member, other: &Member, remove: impl FnOnce()) {
    let before = guestbook::running(other);
    remove();
    let placed = "deployments,services,configmaps,jobs,horizontalpodautoscalers,persistentvolumeclaims";
    let managed = "fleet.keelway.dev/managed-by=keelway-fleet-agent";
    let left = leaving.cluster.kubectl.run(&["get", placed, "--all-namespaces", "-l", managed, "-o", "name"]);
    assert_eq!(left.succeeded().text(), "", "the Cluster is gone once all of it is deleted");
    is_refused(leaving);
    assert_eq!(guestbook::running(other), before);
}

/// A cluster leaves without its workloads: they stay as they are.
pub(crate) fn without_its_workloads(fleet: &Kubectl, leaving: &Member) {
    let before = guestbook::running(leaving);
    let _ = fleet.run(&["delete", &cluster(leaving), "--timeout=170s"]).succeeded();
    is_refused(leaving);
    assert_eq!(guestbook::running(leaving), before);
}

fn cluster(member: &Member) -> String {
    format!("clusters.fleet.keelway.dev/{}", member.name)
}

/// The log of the agent names the cause.
fn is_refused(member: &Member) {
    let kubectl = &member.cluster.kubectl;
    let agent = "deployment/keelway-fleet-agent";
    deadline::until(&format!("{} logs that it is refused", member.name), deadline::KUBERNETES, || {
        kubectl.run(&["logs", agent, "-n", "keelway-fleet"]).text().contains(REFUSAL)
    });
}
