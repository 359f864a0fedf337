//! Decides which workers upgrade their kubelets now.

use keelway_api::{duration::Span, release::reported_minor, worker::KubeletOrder};
use serde::{Deserialize, Serialize};

/// How the kubelets of workers are upgraded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KubeletUpgrades {
    /// The release of Kubernetes of all kubelets, such as 1.37.0.
    pub version: String,
    /// The highest number of workers that are not ready or upgrade at a time.
    pub max_unavailable: u32,
    /// How long pods of a worker may take to terminate before its upgrade.
    pub drain_timeout: Span,
}

/// What a decision reads of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerKubelet {
    pub(crate) name: String,
    pub(crate) is_ready: bool,
    /// The version that the kubelet reports, such as `v1.36.3`.
    pub(crate) version: String,
    pub(crate) order: Option<KubeletOrder>,
}

/// A change of a Node's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OrderChange {
    /// The worker is to upgrade.
    Order(KubeletOrder),
    /// Its kubelet follows the order, or another one is wanted.
    Withdraw,
}

impl WorkerKubelet {
    /// Returns whether the kubelet is to be replaced. A kubelet of a newer minor version stays: Kubernetes supports no way back.
    fn is_outdated(&self, order: &KubeletOrder) -> bool {
        let is_newer = reported_minor(&self.version) > reported_minor(&format!("v{}", order.release));
        !order.is_of(&self.version) && !is_newer
    }
}

/// Returns the changes of orders, by the name of the worker. Without `wanted`, no worker upgrades.
///
/// A worker that does not follow its order, or is not ready afterwards, counts as unavailable. So an upgrade that fails stops the ones after it.
pub(crate) fn decide(wanted: Option<&KubeletUpgrades>, workers: &[WorkerKubelet]) -> Vec<(String, OrderChange)> {
    let order =
        wanted.map(|wanted| KubeletOrder { release: wanted.version.clone(), drain_timeout: wanted.drain_timeout });
    let is_outdated = |worker: &WorkerKubelet| order.as_ref().is_some_and(|order| worker.is_outdated(order));
    let is_ordered = |worker: &WorkerKubelet| worker.order.is_some() && worker.order == order && is_outdated(worker);
    let is_ended = |worker: &WorkerKubelet| match (&order, &worker.order) {
        // The kubelet reports its version when it starts, and is ready later.
        (Some(order), Some(own)) if own == order && order.is_of(&worker.version) => worker.is_ready,
        _ => worker.order.is_some() && !is_ordered(worker),
    };
    let withdrawn = workers.iter().filter(|worker| is_ended(worker));
    let withdrawn = withdrawn.map(|worker| (worker.name.clone(), OrderChange::Withdraw));

    // A worker whose order was not withdrawn yet may still be draining or starting.
    let unavailable = workers.iter().filter(|worker| !worker.is_ready || worker.order.is_some()).count();
    let most = wanted.map_or(0, |wanted| usize::try_from(wanted.max_unavailable).unwrap_or(usize::MAX));
    // An order of another release is withdrawn first, so that a worker never has half of each.
    let waits = |worker: &&WorkerKubelet| worker.is_ready && worker.order.is_none() && is_outdated(worker);
    let mut next: Vec<&WorkerKubelet> = workers.iter().filter(waits).collect();
    next.sort_by(|a, b| a.name.cmp(&b.name));
    let ordered = next.into_iter().take(most.saturating_sub(unavailable)).filter_map(|worker| {
        let order = order.clone()?;
        Some((worker.name.clone(), OrderChange::Order(order)))
    });
    withdrawn.chain(ordered).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgrades(version: &str, max_unavailable: u32) -> KubeletUpgrades {
        KubeletUpgrades { version: version.to_owned(), max_unavailable, drain_timeout: Span::minutes(5) }
    }

    fn worker(name: &str, version: &str) -> WorkerKubelet {
        WorkerKubelet { name: name.to_owned(), is_ready: true, version: version.to_owned(), order: None }
    }

    fn order(release: &str) -> KubeletOrder {
        KubeletOrder { release: release.to_owned(), drain_timeout: Span::minutes(5) }
    }

    /// Returns the names of those that are ordered, and of those whose order is withdrawn.
    fn names(wanted: Option<&KubeletUpgrades>, workers: &[WorkerKubelet]) -> (Vec<String>, Vec<String>) {
        let (ordered, withdrawn): (Vec<_>, Vec<_>) =
            decide(wanted, workers).into_iter().partition(|(_, change)| matches!(change, OrderChange::Order(_)));
        let names = |changes: Vec<(String, OrderChange)>| changes.into_iter().map(|(name, _)| name).collect();
        (names(ordered), names(withdrawn))
    }

    fn none() -> (Vec<String>, Vec<String>) {
        (Vec::new(), Vec::new())
    }

    #[test]
    fn as_many_upgrade_as_may_be_unavailable() {
        let workers = ["w3", "w1", "w2"].map(|name| worker(name, "v1.36.3"));
        assert_eq!(names(Some(&upgrades("1.37.0", 1)), &workers).0, ["w1"]);
        assert_eq!(names(Some(&upgrades("1.37.0", 2)), &workers).0, ["w1", "w2"]);
        assert_eq!(names(Some(&upgrades("1.36.3", 2)), &workers), none(), "they run it already");
        assert_eq!(names(None, &workers), none());
    }

    #[test]
    fn a_worker_that_is_not_ready_or_upgrades_leaves_no_turn() {
        let mut workers = ["w1", "w2"].map(|name| worker(name, "v1.36.3"));
        workers[0].order = Some(order("1.37.0"));
        assert_eq!(names(Some(&upgrades("1.37.0", 1)), &workers), none());
        assert_eq!(names(Some(&upgrades("1.37.0", 2)), &workers).0, ["w2"]);
        // Its upgrade failed: the Node has the new version, and is not ready.
        workers[0] = WorkerKubelet { is_ready: false, order: Some(order("1.37.0")), ..worker("w1", "v1.37.0") };
        assert_eq!(names(Some(&upgrades("1.37.0", 1)), &workers), none());
        workers[0].is_ready = true;
        assert_eq!(names(Some(&upgrades("1.37.0", 1)), &workers), (vec![], vec!["w1".to_owned()]), "not both at once");
        workers[0].order = None;
        assert_eq!(names(Some(&upgrades("1.37.0", 1)), &workers).0, ["w2"]);
    }

    #[test]
    fn an_order_that_is_followed_or_changed_is_withdrawn() {
        let with =
            |version: &str, release: &str| WorkerKubelet { order: Some(order(release)), ..worker("w1", version) };
        let withdrawn = (Vec::new(), vec!["w1".to_owned()]);
        assert_eq!(names(Some(&upgrades("1.37.0", 1)), &[with("v1.37.0", "1.37.0")]), withdrawn);
        assert_eq!(names(Some(&upgrades("1.37.1", 1)), &[with("v1.36.3", "1.37.0")]), withdrawn);
        assert_eq!(names(None, &[with("v1.36.3", "1.37.0")]), withdrawn);
        assert_eq!(names(Some(&upgrades("1.37.0", 1)), &[with("v1.36.3", "1.37.0")]), none());
    }

    /// Such a worker is ready and runs the previous kubelet between its attempts.
    #[test]
    fn a_worker_whose_drain_is_blocked_keeps_its_turn() {
        let blocked = WorkerKubelet { order: Some(order("1.37.0")), ..worker("w1", "v1.36.3") };
        let mut workers = [blocked, worker("w2", "v1.36.3"), worker("w3", "v1.36.3")];
        assert_eq!(names(Some(&upgrades("1.37.0", 1)), &workers), none());
        assert_eq!(names(Some(&upgrades("1.37.0", 2)), &workers).0, ["w2"]);

        let longer = KubeletUpgrades { drain_timeout: Span::minutes(30), ..upgrades("1.37.0", 1) };
        assert_eq!(names(Some(&longer), &workers), (vec![], vec!["w1".to_owned()]));
        workers[0].order = None;
        let [(name, OrderChange::Order(order))] = &decide(Some(&longer), &workers)[..] else { panic!("one order") };
        assert_eq!((name.as_str(), order.drain_timeout), ("w1", Span::minutes(30)), "with the time of now");
    }

    #[test]
    fn a_newer_minor_version_stays() {
        assert_eq!(names(Some(&upgrades("1.36.3", 1)), &[worker("w1", "v1.37.0")]), none());
        assert_eq!(
            names(Some(&upgrades("1.36.3", 1)), &[worker("w1", "v1.36.4")]).0,
            ["w1"],
            "a patch release may go back"
        );
    }
}
