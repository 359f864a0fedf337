//! Finds changes that only affect conditions. No decision depends on them: the next observation yields the same conditions.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    Cluster, Component, Documents,
    component::ComponentStatus,
    document::{DocumentChange, DocumentName},
};

impl Documents {
    /// Returns whether a change since `before` affects conditions only. Decisions do not depend on them, so the change may be saved at any
    /// time: it has no order relative to other effects.
    #[must_use]
    pub fn changes_only_conditions(&self, before: &Self, change: &DocumentChange) -> bool {
        match change {
            DocumentChange::Put(DocumentName::Cluster(name)) => {
                let known = |of: &Self| of.clusters.get(name).map(|cluster| cluster.without_conditions());
                known(self) == known(before)
            }
            DocumentChange::Put(DocumentName::Component(name)) => {
                let known = |of: &Self| of.components.get(name).map(|component| component.without_conditions());
                known(self) == known(before)
            }
            DocumentChange::Introduce(_) | DocumentChange::Put(_) | DocumentChange::Remove(_) => false,
        }
    }

    /// Returns whether a change since `before` affects only the text of conditions, and no status.
    #[must_use]
    pub fn changes_only_condition_text(&self, before: &Self, change: &DocumentChange) -> bool {
        let is_as_true = match change {
            DocumentChange::Put(DocumentName::Cluster(name)) => {
                let statuses = |of: &Self| {
                    let status = of.clusters.get(name)?.status.as_ref()?;
                    Some((condition_statuses(&status.conditions), status.observed_generation))
                };
                statuses(self) == statuses(before)
            }
            DocumentChange::Put(DocumentName::Component(name)) => {
                let statuses =
                    |of: &Self| Some(condition_statuses(&of.components.get(name)?.status.as_ref()?.conditions));
                let is_never_true =
                    |of: &Self| of.components.get(name).is_some_and(|known| known.has_no_true_condition());
                statuses(self) == statuses(before) || (statuses(before).is_none() && is_never_true(self))
            }
            DocumentChange::Introduce(_) | DocumentChange::Put(_) | DocumentChange::Remove(_) => false,
        };
        is_as_true && self.changes_only_conditions(before, change)
    }
}

fn condition_statuses(conditions: &[Condition]) -> BTreeSet<(String, String)> {
    conditions.iter().map(|condition| (condition.type_.clone(), condition.status.clone())).collect()
}

impl Cluster {
    fn without_conditions(&self) -> Self {
        let mut cluster = self.clone();
        if let Some(status) = &mut cluster.status {
            status.conditions.clear();
            status.observed_generation = None;
        }
        cluster
    }
}

impl Component {
    /// Returns whether no condition is true and nothing else is recorded. Such a status has no more information than none.
    #[must_use]
    pub fn has_no_true_condition(&self) -> bool {
        let conditions = self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        self.without_conditions().status.is_none() && conditions.iter().all(|condition| condition.status == "False")
    }

    fn without_conditions(&self) -> Self {
        let mut component = self.clone();
        if let Some(status) = &mut component.status {
            status.conditions.clear();
        }
        component.status.take_if(|status| *status == ComponentStatus::default());
        component
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        component::ComponentStage,
        condition::{self, ConditionStatus, ConditionValue},
    };

    const CLUSTER: &str = "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c1, namespace: team-a}\nspec: {version: \
                           1.37.0}\nstatus: {id: aaaaaaaaaaaaaaaa}\n";

    const MACHINE: &str = "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: hv-1}\nspec: {role: Private, \
                           endpoint: {unix: {path: /run/1.sock}}, addresses: {private: [10.0.0.1]}}\n";
    const COMPONENT: &str = "---\napiVersion: keelway.dev/v1alpha1\nkind: Component\nmetadata: {name: etcd-0, namespace: \
                             keelway-aaaaaaaaaaaaaaaa}\nspec: {cluster: {namespace: team-a, name: c1}, clusterId: aaaaaaaaaaaaaaaa, \
                             role: etcd, index: 0, version: 1.37.0, hypervisor: hv-1, ports: {client: 20000, peer: 20001}, user: \
                             900000}\n";

    /// Returns a machine, a cluster and one of its components.
    fn world() -> String {
        [CLUSTER, COMPONENT, MACHINE].concat()
    }

    fn only_tells(change: impl FnOnce(&mut Cluster)) -> Vec<bool> {
        let before = Documents::read(CLUSTER.as_bytes()).unwrap();
        let mut after = before.clone();
        change(after.clusters.values_mut().next().unwrap());
        after.changes_since(&before).iter().map(|change| after.changes_only_conditions(&before, change)).collect()
    }

    #[test]
    fn a_change_of_texts_alone_is_no_decision() {
        let says = |before: &Documents, status, message: &str, generation| {
            let mut after = before.clone();
            let cluster = after.clusters.values_mut().next().unwrap().status.get_or_insert_default();
            let verdict = ConditionValue { status, reason: "Changing".to_owned(), message: message.to_owned() };
            let now = crate::Time(crate::jiff::Timestamp::UNIX_EPOCH);
            condition::set(&mut cluster.conditions, "Progressing", verdict, Some(generation), &now);
            cluster.observed_generation = Some(generation);
            let only = after
                .changes_since(before)
                .iter()
                .map(|change| after.changes_only_condition_text(before, change))
                .collect();
            (after, only)
        };
        let nothing = Documents::read(CLUSTER.as_bytes()).unwrap();
        let (first, only): (_, Vec<bool>) = says(&nothing, ConditionStatus::True, "etcd-0 starts", 1);
        assert_eq!(only, [false], "the first time");
        assert_eq!(says(&first, ConditionStatus::True, "etcd-1 starts", 1).1, [true]);
        assert_eq!(says(&first, ConditionStatus::True, "etcd-0 starts", 2).1, [false], "of another generation");
        assert_eq!(says(&first, ConditionStatus::False, "all is well", 1).1, [false]);
    }

    #[test]
    fn a_missing_condition_equals_one_that_is_not_true_yet() {
        let told = |stage, status| {
            let mut component =
                Documents::read(world().as_bytes()).unwrap().components.values().next().unwrap().clone();
            component.status = Some(ComponentStatus { stage, ..ComponentStatus::default() });
            let verdict = ConditionValue { status, reason: "NotReady".to_owned(), message: "it starts".to_owned() };
            let now = crate::Time(crate::jiff::Timestamp::UNIX_EPOCH);
            condition::set(&mut component.status.get_or_insert_default().conditions, "Ready", verdict, None, &now);
            component
        };
        assert!(told(ComponentStage::Joining, ConditionStatus::False).has_no_true_condition());
        assert!(!told(ComponentStage::Joining, ConditionStatus::True).has_no_true_condition());
        assert!(!told(ComponentStage::Joining, ConditionStatus::Unknown).has_no_true_condition());
        assert!(!told(ComponentStage::Leaving, ConditionStatus::False).has_no_true_condition());
    }

    #[test]
    fn a_change_of_conditions_is_told_from_a_change_that_others_depend_on() {
        let says = || ConditionValue {
            status: ConditionStatus::True,
            reason: "Changing".to_owned(),
            message: "it changes".to_owned(),
        };
        let told = only_tells(|cluster| {
            let status = cluster.status.get_or_insert_default();
            condition::set(
                &mut status.conditions,
                "Progressing",
                says(),
                Some(2),
                &crate::Time(crate::jiff::Timestamp::UNIX_EPOCH),
            );
            status.observed_generation = Some(2);
        });
        assert_eq!(told, [true]);
        assert_eq!(
            only_tells(|cluster| cluster.status.get_or_insert_default().ingress_port = Some(20000)),
            [false, false]
        );
        assert_eq!(only_tells(|cluster| cluster.spec.control_plane.replicas = 3), [false]);
    }
}
