//! What an upgrade of a cluster changes, in which order. For people: a pass decides only about the next component.

use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use keelway_api::{
    Documents,
    component::ComponentSpec,
    fault::Faults,
    name::{ClusterRef, ComponentName, PodName},
    release::{Release, find},
};

use crate::{
    Decision, PassObservation, Plan,
    pod::PodInputs,
    tenant::Tenant,
    text::joined,
    versions::{in_order, is_upgradable},
    world::ValidatedDocuments,
};

/// An upgrade of one cluster by at most one minor version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeOrder {
    /// The cluster.
    pub cluster: ClusterRef,
    /// The release that all components ran before.
    pub from: Release,
    /// The release that all components run afterwards.
    pub to: Release,
    /// The components that are replaced, in this order.
    pub replaced: Vec<ComponentName>,
    /// The components that run the same in both releases.
    pub unchanged: Vec<ComponentName>,
    /// The release of the kubelets, if the workers are upgraded after the control plane.
    pub workers: Option<String>,
}

/// Returns the upgrades that these decisions begin or continue, and those that follow.
///
/// # Errors
/// A document is invalid. Documents that [`Documents::read`] returned are valid.
pub fn upgrade_orders(plan: &Plan, seen: &PassObservation) -> Result<Vec<UpgradeOrder>, Faults> {
    // Such a pass decides nothing.
    if seen.stale() {
        return Ok(Vec::new());
    }
    let documents = before_the_decisions(plan);
    let world = ValidatedDocuments::of_pass(&documents, seen)?;
    let tenants = Tenant::all(&documents, &world).filter(|tenant| is_upgradable(&documents, tenant));
    Ok(tenants.flat_map(|tenant| orders(&tenant, &world, seen)).collect())
}

fn before_the_decisions(plan: &Plan) -> Documents {
    let mut documents = plan.documents.clone();
    for decision in &plan.decisions {
        if let Decision::UpgradeComponent { component, from, .. } = decision
            && let Some(id) = documents.clusters.get(&component.cluster).and_then(|cluster| cluster.id().cloned())
            && let Some(document) =
                documents.components.get_mut(&PodName { cluster: id, component: component.component.clone() })
        {
            document.spec.version.clone_from(from);
        }
    }
    documents
}

fn orders(tenant: &Tenant<'_>, world: &ValidatedDocuments, seen: &PassObservation) -> Vec<UpgradeOrder> {
    let wanted = tenant.cluster.release;
    let mut components: Vec<(&PodName, ComponentSpec)> =
        in_order(tenant, seen).into_iter().map(|(pod, spec)| (pod, spec.clone())).collect();
    let recorded = tenant.document.status.as_ref().and_then(|status| find(status.version.as_deref()?));
    let mut orders: Vec<UpgradeOrder> = Vec::new();
    while let Some(oldest) = components.iter().filter_map(|(_, spec)| find(&spec.version)).min() {
        let to = oldest.next_towards(&wanted);
        // An upgrade to a minor version on the way may end before its release is recorded.
        let begun = recorded.filter(|recorded| recorded.next_towards(&wanted) == to).unwrap_or(oldest);
        let from = orders.last().map_or(begun, |before| before.to);
        let is_past = |runs: Release| runs == to || (to != wanted && runs.minor() >= to.minor());
        let mut order = UpgradeOrder {
            cluster: tenant.cluster.reference.clone(),
            from,
            to,
            replaced: Vec::new(),
            unchanged: Vec::new(),
            workers: None,
        };
        for (pod, spec) in &mut components {
            if find(&spec.version).is_some_and(is_past) {
                continue;
            }
            let before = replacement(tenant, world, pod, spec);
            spec.version = to.to_string();
            let is_same = before.is_some() && before == replacement(tenant, world, pod, spec);
            if is_same { &mut order.unchanged } else { &mut order.replaced }.push(pod.component.clone());
        }
        if order.replaced.is_empty() && order.unchanged.is_empty() {
            break;
        }
        orders.push(order);
    }
    let workers = tenant.document.spec.workers.version.as_deref().and_then(find);
    // Kubelets are upgraded once the whole control plane runs their minor version, and the release of the cluster if that is of the same minor version.
    // Those that ran their release before stay.
    let reaches = |order: &&mut UpgradeOrder, kubelet: Release| {
        let is_first_of_minor = order.from.minor() < kubelet.minor() && order.to.minor() >= kubelet.minor();
        is_first_of_minor || order.to == kubelet
    };
    if let Some(kubelet) = workers
        && let Some(order) = orders.iter_mut().find(|order| reaches(order, kubelet))
    {
        order.workers = Some(kubelet.to_string());
    }
    orders
}

/// The digest of all that requires a new pod. None: a key is missing.
fn replacement(tenant: &Tenant<'_>, world: &ValidatedDocuments, pod: &PodName, spec: &ComponentSpec) -> Option<String> {
    Some(PodInputs::of(tenant, world, pod, spec)?.pod().ok()?.digest())
}

impl fmt::Display for UpgradeOrder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, from, to, replaced, unchanged, workers } = self;
        write!(out, "{cluster} from {from} to {to}, one component at a time: ")?;
        match replaced.as_slice() {
            [] => out.write_str("no component is replaced")?,
            replaced => out.write_str(&joined(replaced, ", "))?,
        }
        if !unchanged.is_empty() {
            write!(out, "; not restarted: {}", joined(unchanged, ", "))?;
        }
        match workers {
            Some(version) => write!(out, "; then the kubelets of the workers, to {version}"),
            None => Ok(()),
        }
    }
}
