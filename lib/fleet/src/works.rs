//! From a Placement to Works.
//!
//! A Work is deleted only by an order with a reason: its object is deleted, or its Placement names other clusters that have taken over. They have applied
//! the object, and its pods are ready there, unless none are ready where it was. That an object, a policy or a Placement could not be read is no reason.

use alloc::collections::BTreeMap;

use keelway_api::condition::{ConditionStatus, ConditionValue, is_true};

use crate::{
    FleetObject, ManifestError, ObjectState, PlacedCluster, PlacementLink, PlacementSpec, PodKinds, ReplicasOwner,
    WORK_APPLIED, Work, WorkSpec, WorkloadRef, manifest_for,
    names::{cluster_of_namespace, placement_name, placement_namespace, work_name},
    readiness::PodReadiness,
};

/// A Work as it is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredWork {
    /// The cluster.
    pub cluster: String,
    /// The name, in the namespace of the cluster.
    pub name: String,
    /// The content.
    pub spec: WorkSpec,
}

/// A Work as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct ExistingWork {
    /// The cluster.
    pub cluster: String,
    /// The name, in the namespace of the cluster.
    pub name: String,
    /// The content.
    pub spec: WorkSpec,
    /// Whether the agent has applied this content.
    pub is_applied: bool,
    /// Whether the pods of the object are ready.
    pub pods: PodReadiness,
    /// Whether it is being deleted.
    pub is_deleting: bool,
}

/// A change of a Work.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkOrder {
    /// Creates a Work.
    Create(DesiredWork),
    /// Replaces the content of a Work.
    Update(DesiredWork),
    /// Deletes a Work.
    Delete {
        /// The cluster.
        cluster: String,
        /// The name.
        name: String,
        /// The reason.
        why: WorkRemoval,
    },
}

/// Why a Work is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkRemoval {
    /// The object is deleted.
    ObjectDeleted,
    /// The object runs in other clusters, and each of them has taken over.
    Moved,
}

/// A change that cannot be made yet.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkWait {
    /// The object or its Placement is not known, so nothing changes.
    Unknown(String),
    /// An object cannot be prepared for a cluster. What runs there stays.
    Manifest(ManifestError),
    /// A Work of another Placement has the name.
    NameTaken {
        /// The cluster.
        cluster: String,
        /// The name.
        name: String,
    },
    /// A Work of a previous object is still being deleted.
    BeingDeleted {
        /// The cluster.
        cluster: String,
        /// The name.
        name: String,
    },
    /// A cluster keeps the object until the new clusters have applied it.
    NotAppliedYet {
        /// The cluster that keeps the object.
        keeps: String,
        /// A cluster that has not applied it.
        missing: String,
    },
    /// A cluster keeps the object until its pods are ready in the new clusters.
    NotReadyYet {
        /// The cluster that keeps the object.
        keeps: String,
        /// A cluster in which pods are not ready.
        missing: String,
    },
    /// A cluster has not deleted an object yet that moved to other clusters.
    NotDeletedYet {
        /// The cluster.
        cluster: String,
    },
}

/// What to do with the Works of one Placement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkPlan {
    /// The changes, in order.
    pub orders: Vec<WorkOrder>,
    /// What waits.
    pub waiting: Vec<WorkWait>,
}

impl ExistingWork {
    /// Reads a Work, or returns `None` if it is not in the namespace of a cluster.
    #[must_use]
    pub fn read(work: &Work, kinds: &PodKinds) -> Option<Self> {
        let cluster = cluster_of_namespace(work.metadata.namespace.as_deref()?)?.to_owned();
        let status = work.status.as_ref();
        let is_current = status.is_some_and(|status| status.observed_generation == work.metadata.generation);
        let is_applied = status.is_some_and(|status| is_true(&status.conditions, WORK_APPLIED));
        Some(Self {
            cluster,
            name: work.metadata.name.clone()?,
            spec: work.spec.clone(),
            is_applied: is_current && is_applied,
            pods: PodReadiness::read(work, kinds),
            is_deleting: work.metadata.deletion_timestamp.is_some(),
        })
    }
}

/// Returns the name of an object's Placement and its namespace.
#[must_use]
pub fn placement_link(object: &WorkloadRef) -> PlacementLink {
    PlacementLink { namespace: placement_namespace(object).to_owned(), name: placement_name(object) }
}

/// Returns the Works of an object, one for each cluster of its Placement, and those that cannot be made.
#[must_use]
pub fn desired_works(
    object: &FleetObject,
    placement: &PlacementSpec,
    is_autoscaled: bool,
) -> Vec<Result<DesiredWork, ManifestError>> {
    let is_autoscaled = is_autoscaled && object.replicas().is_some();
    let one = |cluster: &PlacedCluster| {
        Ok(DesiredWork {
            cluster: cluster.name.clone(),
            name: work_name(&object.reference),
            spec: WorkSpec {
                manifest: manifest_for(object, cluster, is_autoscaled)?,
                placement: placement_link(&object.reference),
                conflict_resolution: placement.conflict_resolution,
                drift: placement.drift,
                replicas_owner: if is_autoscaled { ReplicasOwner::Autoscaler } else { ReplicasOwner::Fleet },
            },
        })
    };
    placement.clusters.iter().map(one).collect()
}

/// Returns what to do with the Works of one Placement.
///
/// `existing` are all Works in the clusters' namespaces that belong to the Placement or have its name. `placement` is the saved Placement, or `None`
/// if it could not be read or does not exist.
#[must_use]
pub fn plan_works(
    object: &ObjectState,
    is_autoscaled: bool,
    placement: Option<&PlacementSpec>,
    link: &PlacementLink,
    existing: &[ExistingWork],
) -> WorkPlan {
    match (object, placement) {
        (ObjectState::Unreadable(why), _) => WorkPlan::waits(WorkWait::Unknown(why.clone())),
        (ObjectState::Deleted, _) => WorkPlan { orders: delete_all(link, existing), waiting: Vec::new() },
        (ObjectState::Present(object), _) if object.is_deleting => {
            WorkPlan { orders: delete_all(link, existing), waiting: Vec::new() }
        }
        (ObjectState::Present(_), None) => WorkPlan::waits(WorkWait::Unknown("the object has no Placement".to_owned())),
        (ObjectState::Present(object), Some(placement)) => {
            let mut plan = WorkPlan::default();
            let desired = desired_works(object, placement, is_autoscaled);
            let missing = plan.write(desired, link, existing);
            plan.remove_moved(placement, &missing, link, existing);
            plan
        }
    }
}

fn delete_all(link: &PlacementLink, existing: &[ExistingWork]) -> Vec<WorkOrder> {
    let own = existing.iter().filter(|work| work.spec.placement == *link && !work.is_deleting);
    own.map(|work| work.delete(WorkRemoval::ObjectDeleted)).collect()
}

impl ExistingWork {
    fn delete(&self, why: WorkRemoval) -> WorkOrder {
        WorkOrder::Delete { cluster: self.cluster.clone(), name: self.name.clone(), why }
    }
}

impl WorkPlan {
    fn waits(wait: WorkWait) -> Self {
        Self { orders: Vec::new(), waiting: vec![wait] }
    }

    /// Creates and updates Works. Returns what is missing until they have taken over.
    fn write(
        &mut self,
        desired: Vec<Result<DesiredWork, ManifestError>>,
        link: &PlacementLink,
        existing: &[ExistingWork],
    ) -> MissingWorks {
        let by_place: BTreeMap<(&str, &str), &ExistingWork> =
            existing.iter().map(|work| ((work.cluster.as_str(), work.name.as_str()), work)).collect();
        let mut missing = MissingWorks::default();
        for desired in desired {
            let desired = match desired {
                Ok(desired) => desired,
                Err(error) => {
                    missing.not_applied = missing.not_applied.or_else(|| Some(error.cluster().to_owned()));
                    self.waiting.push(WorkWait::Manifest(error));
                    continue;
                }
            };
            let (cluster, name) = (desired.cluster.clone(), desired.name.clone());
            let is_applied = match by_place.get(&(cluster.as_str(), name.as_str())) {
                None => self.order(WorkOrder::Create(desired)),
                Some(found) if found.spec.placement != *link => {
                    self.wait(WorkWait::NameTaken { cluster: cluster.clone(), name })
                }
                Some(found) if found.is_deleting => {
                    self.wait(WorkWait::BeingDeleted { cluster: cluster.clone(), name })
                }
                Some(found) if found.spec != desired.spec => self.order(WorkOrder::Update(desired)),
                Some(found) => {
                    if !found.pods.is_ready {
                        missing.not_ready = missing.not_ready.or_else(|| Some(cluster.clone()));
                    }
                    found.is_applied
                }
            };
            if !is_applied {
                missing.not_applied = missing.not_applied.or(Some(cluster));
            }
        }
        missing
    }

    /// Records an order. Its Work is not applied yet.
    fn order(&mut self, order: WorkOrder) -> bool {
        self.orders.push(order);
        false
    }

    /// Records a wait. Its Work is not applied yet.
    fn wait(&mut self, wait: WorkWait) -> bool {
        self.waiting.push(wait);
        false
    }

    /// Deletes Works in clusters that the Placement left. The gates:
    ///
    /// 1. The Placement names clusters.
    /// 2. Each of them has applied the object as it is.
    /// 3. Its pods are ready in each of them, or none are ready where it was.
    fn remove_moved(
        &mut self,
        placement: &PlacementSpec,
        missing: &MissingWorks,
        link: &PlacementLink,
        existing: &[ExistingWork],
    ) {
        let stays = |work: &ExistingWork| placement.clusters.iter().any(|cluster| cluster.name == work.cluster);
        for work in existing.iter().filter(|work| work.spec.placement == *link && !stays(work)) {
            let keeps = work.cluster.clone();
            match missing {
                _ if work.is_deleting => self.waiting.push(WorkWait::NotDeletedYet { cluster: keeps }),
                _ if placement.clusters.is_empty() => (),
                MissingWorks { not_applied: Some(missing), .. } => {
                    self.waiting.push(WorkWait::NotAppliedYet { keeps, missing: missing.clone() });
                }
                MissingWorks { not_ready: Some(missing), .. } if work.pods.is_serving => {
                    self.waiting.push(WorkWait::NotReadyYet { keeps, missing: missing.clone() });
                }
                MissingWorks { .. } => self.orders.push(work.delete(WorkRemoval::Moved)),
            }
        }
    }

    /// Returns the clusters for which the object has no Work as decided, each with the reason: a condition `Applied`.
    #[must_use]
    pub fn faults(&self) -> BTreeMap<&str, ConditionValue> {
        self.waiting.iter().filter_map(WorkWait::fault).collect()
    }

    /// Returns what a move of the object waits for, if it moves.
    #[must_use]
    pub fn moving(&self) -> Option<ConditionValue> {
        let (reason, message) = self.waiting.iter().find_map(|wait| match wait {
            WorkWait::NotAppliedYet { keeps, missing } => {
                Some(("WaitsForApply", format!("the object leaves {keeps} once {missing} has applied it")))
            }
            WorkWait::NotReadyYet { keeps, missing } => {
                Some(("WaitsForReady", format!("the object leaves {keeps} once its pods are ready in {missing}")))
            }
            WorkWait::NotDeletedYet { cluster } => {
                Some(("Leaving", format!("the agent of {cluster} deletes the object there")))
            }
            WorkWait::Unknown(_)
            | WorkWait::Manifest(_)
            | WorkWait::NameTaken { .. }
            | WorkWait::BeingDeleted { .. } => None,
        })?;
        Some(ConditionValue { status: ConditionStatus::True, reason: reason.to_owned(), message })
    }
}

impl WorkWait {
    /// Returns the cluster for which the object has no Work, and why: a condition `Applied` in the place of the one that an agent reports.
    fn fault(&self) -> Option<(&str, ConditionValue)> {
        let (cluster, reason, message) = match self {
            Self::Manifest(ManifestError::Override { cluster, path, source }) => {
                (cluster, "OverrideFailed", format!("the override of {path}: {source}"))
            }
            Self::Manifest(error @ ManifestError::TooLarge { cluster, .. }) => (cluster, "TooLarge", error.to_string()),
            Self::NameTaken { cluster, name } => {
                (cluster, "NameTaken", format!("the Work {name} belongs to another Placement"))
            }
            Self::Unknown(_)
            | Self::BeingDeleted { .. }
            | Self::NotAppliedYet { .. }
            | Self::NotReadyYet { .. }
            | Self::NotDeletedYet { .. } => return None,
        };
        Some((cluster.as_str(), ConditionValue { status: ConditionStatus::False, reason: reason.to_owned(), message }))
    }
}

/// The first clusters that have not taken over yet.
#[derive(Debug, Default)]
struct MissingWorks {
    /// One has not applied the object as it is.
    not_applied: Option<String>,
    /// In one, pods of the object are not ready.
    not_ready: Option<String>,
}
