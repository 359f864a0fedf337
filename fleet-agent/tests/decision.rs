//! What the agent decides, without a cluster.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use keelway_fleet_agent::{
    decision::{
        AppliedRecord, ConflictStep, LiveFacts, LiveObject, OrderedObject, ReleaseReason, WorkAction, decide,
        needs_read, resolve,
    },
    manifest::{AppliedForm, AppliedName, applied_form},
    ownership::{FieldConflict, FieldPaths, REPLICAS, owned_by_agent},
};
use proptest::prelude::*;
use serde_json::json;

fn object(group: &str, kind: &str) -> AppliedName {
    let [group, version, kind, name] = [group, "v1", kind, "web"].map(str::to_owned);
    AppliedName { group, version, kind, namespace: None, name }
}

fn order() -> OrderedObject {
    OrderedObject {
        work: "deployment.apps.shop.web".to_owned(),
        uid: "w1".to_owned(),
        generation: 3,
        object: object("apps", "Deployment"),
        overwrites: false,
        corrects_drift: true,
        is_deletion: false,
        was_applied: false,
    }
}

fn paths(fields: &[&str]) -> FieldPaths {
    fields.iter().map(|&field| field.to_owned()).collect()
}

fn record() -> AppliedRecord {
    AppliedRecord {
        work_uid: "w1".to_owned(),
        generation: 3,
        object_uid: "o1".to_owned(),
        owned: paths(&[".spec.a", ".spec.b"]),
        is_autoscaled: false,
        is_created: false,
    }
}

fn live() -> LiveFacts {
    LiveFacts { uid: "o1".to_owned(), owned: record().owned, is_labelled: true, is_created: false, is_deleting: false }
}

fn conflict(field: &str) -> FieldConflict {
    FieldConflict { field: field.to_owned(), manager: "kubectl-edit".to_owned() }
}

#[test]
fn a_first_apply_reads_nothing() {
    assert!(!needs_read(&order(), None));
    let changed = OrderedObject { generation: 4, ..order() };
    assert!(!needs_read(&changed, Some(&record())));
    for (order, record) in [(order(), None), (changed, Some(&record()))] {
        let action = decide(&order, record, &LiveObject::Unread);
        assert!(matches!(action, WorkAction::Apply { ref lost, .. } if lost.is_empty()), "{action:?}");
    }
}

#[test]
fn an_unchanged_object_is_left_alone() {
    assert_eq!(decide(&order(), Some(&record()), &LiveObject::Present(live())), WorkAction::Keep);
    let more = LiveFacts { owned: paths(&[".spec.a", ".spec.b", ".spec.c"]), ..live() };
    assert_eq!(decide(&order(), Some(&record()), &LiveObject::Present(more)), WorkAction::Keep);
}

#[test]
fn drift_is_corrected_or_reported() {
    let changed = LiveObject::Present(LiveFacts { owned: paths(&[".spec.a"]), ..live() });
    let lost = paths(&[".spec.b"]);
    let corrected = WorkAction::Apply { is_created: false, lost: lost.clone() };
    assert_eq!(decide(&order(), Some(&record()), &changed), corrected);
    let reports = OrderedObject { corrects_drift: false, ..order() };
    assert_eq!(decide(&reports, Some(&record()), &changed), WorkAction::ReportDrift(lost));
    assert_eq!(decide(&reports, Some(&record()), &LiveObject::Absent), WorkAction::ReportMissing);
    let again = decide(&order(), Some(&record()), &LiveObject::Absent);
    assert!(matches!(again, WorkAction::Apply { is_created: true, .. }), "{again:?}");
}

#[test]
fn only_an_order_deletes_and_only_the_agents_own_object() {
    let deletion = OrderedObject { is_deletion: true, ..order() };
    let decided = |order: &OrderedObject, record: Option<&AppliedRecord>, live: LiveFacts| {
        decide(order, record, &LiveObject::Present(live))
    };
    let foreign = WorkAction::Release(ReleaseReason::Foreign);
    assert_eq!(decided(&deletion, Some(&record()), live()), WorkAction::Delete("o1".to_owned()));
    assert_eq!(decided(&deletion, None, live()), WorkAction::Delete("o1".to_owned()));
    assert_eq!(decided(&deletion, Some(&record()), LiveFacts { uid: "o2".to_owned(), ..live() }), foreign);
    assert_eq!(decided(&deletion, None, LiveFacts { is_labelled: false, ..live() }), foreign);
    assert_eq!(decided(&deletion, None, LiveFacts { owned: paths(&[]), ..live() }), foreign);
    assert_eq!(decided(&deletion, None, LiveFacts { is_deleting: true, ..live() }), WorkAction::AwaitDeletion);
    assert_eq!(decide(&deletion, None, &LiveObject::Absent), WorkAction::Release(ReleaseReason::Absent));
    assert_eq!(decide(&deletion, None, &LiveObject::Unread), WorkAction::AwaitDeletion);
}

#[test]
fn a_namespace_that_existed_before_is_not_deleted() {
    let definition = object("apiextensions.k8s.io", "CustomResourceDefinition");
    for object in [object("", "Namespace"), definition] {
        let deletion = OrderedObject { is_deletion: true, object, ..order() };
        let adopted = decide(&deletion, None, &LiveObject::Present(live()));
        assert_eq!(adopted, WorkAction::Release(ReleaseReason::Adopted));
        let created = LiveObject::Present(LiveFacts { is_created: true, ..live() });
        assert_eq!(decide(&deletion, None, &created), WorkAction::Delete("o1".to_owned()));
        // Whether it existed before is read before the first apply, and stays known.
        let first = OrderedObject { is_deletion: false, ..deletion };
        assert!(needs_read(&first, None));
        let foreign = LiveObject::Present(LiveFacts { is_labelled: false, ..live() });
        assert!(matches!(decide(&first, None, &foreign), WorkAction::Apply { is_created: false, .. }));
        assert!(matches!(decide(&first, None, &created), WorkAction::Apply { is_created: true, .. }));
    }
}

#[test]
fn conflicts_are_reported_unless_the_policy_overwrites() {
    let others = vec![conflict(".spec.c")];
    assert_eq!(resolve(&order(), None, others.clone(), false), ConflictStep::Report(others.clone()));
    assert_eq!(resolve(&order(), Some(&record()), others.clone(), false), ConflictStep::Report(others.clone()));
    let overwrites = OrderedObject { overwrites: true, ..order() };
    let forced = ConflictStep::Again { force: true, is_autoscaled: false };
    assert_eq!(resolve(&overwrites, None, others.clone(), false), forced);
    // A field that the agent owned is drift.
    assert_eq!(resolve(&order(), Some(&record()), vec![conflict(".spec.b")], false), forced);
    let both = vec![conflict(".spec.b"), conflict(".spec.c")];
    assert_eq!(resolve(&order(), Some(&record()), both.clone(), false), ConflictStep::Report(both.clone()));
    let reports = OrderedObject { corrects_drift: false, ..order() };
    let drifted = vec![conflict(".spec.b")];
    assert_eq!(resolve(&reports, Some(&record()), drifted.clone(), false), ConflictStep::Report(drifted));
    // Without a record, the status of the Work shows that the agent owned everything.
    let known = OrderedObject { was_applied: true, ..order() };
    assert_eq!(resolve(&known, None, others, false), forced);
}

#[test]
fn an_autoscaler_keeps_its_replicas() {
    let left = ConflictStep::Again { force: false, is_autoscaled: true };
    assert_eq!(resolve(&order(), None, vec![conflict(REPLICAS)], true), left);
    let overwrites = OrderedObject { overwrites: true, ..order() };
    assert_eq!(resolve(&overwrites, None, vec![conflict(REPLICAS)], true), left);
    let both = vec![conflict(REPLICAS), conflict(".spec.b")];
    let forced = ConflictStep::Again { force: true, is_autoscaled: true };
    assert_eq!(resolve(&order(), Some(&record()), both, true), forced);
    // The autoscaler is gone: the fleet decides again.
    let autoscaled = AppliedRecord { is_autoscaled: true, ..record() };
    let taken = ConflictStep::Again { force: true, is_autoscaled: false };
    assert_eq!(resolve(&order(), Some(&autoscaled), vec![conflict(REPLICAS)], false), taken);
}

#[test]
fn ownership_is_that_of_applied_fields() {
    let entry = |manager: &str, operation: &str, subresource: Option<&str>, fields| ManagedFieldsEntry {
        manager: Some(manager.to_owned()),
        operation: Some(operation.to_owned()),
        subresource: subresource.map(str::to_owned),
        fields_v1: Some(FieldsV1(fields)),
        ..ManagedFieldsEntry::default()
    };
    let fields = json!({
        "f:metadata": { "f:labels": { "f:fleet.keelway.dev/managed-by": {} }, "f:finalizers": { "v:\"a/b\"": {} } },
        "f:spec": {
            "f:replicas": {},
            "f:containers": { "k:{\"name\":\"web\"}": { ".": {}, "f:image": {}, "f:ports": {
                "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": { ".": {} } } } },
        },
    });
    let entries = [
        entry("keelway-fleet-agent", "Apply", None, fields),
        entry("keelway-fleet-agent", "Update", None, json!({ "f:spec": { "f:no": {} } })),
        entry("keelway-fleet-agent", "Apply", Some("status"), json!({ "f:status": { "f:no": {} } })),
        entry("kubectl", "Apply", None, json!({ "f:spec": { "f:no": {} } })),
    ];
    let wanted = [
        ".metadata.finalizers[=\"a/b\"]",
        ".metadata.labels.fleet.keelway.dev/managed-by",
        ".spec.containers[name=\"web\"]",
        ".spec.containers[name=\"web\"].image",
        ".spec.containers[name=\"web\"].ports[containerPort=80,protocol=\"TCP\"]",
        ".spec.replicas",
    ];
    assert_eq!(owned_by_agent(&entries), wanted.into_iter().map(str::to_owned).collect::<BTreeSet<_>>());
}

#[test]
fn a_manifest_is_applied_without_the_fields_of_the_fleet() {
    let manifest = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web", "uid": "f", "resourceVersion": "7", "ownerReferences": [{}], "labels": { "a": "b" } },
        "spec": { "replicas": 3, "paused": true },
        "status": { "replicas": 3 },
    });
    let applied = applied_form(&manifest, AppliedForm { is_created: false, is_autoscaled: true });
    assert_eq!(
        applied,
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": "web", "labels": { "a": "b", "fleet.keelway.dev/managed-by": "keelway-fleet-agent" } },
            "spec": { "paused": true },
        })
    );
}

#[test]
fn objects_of_the_agent_are_refused() {
    let own = AppliedName { namespace: Some("keelway-fleet".to_owned()), ..object("", "Secret") };
    assert!(own.refuse_namespace("keelway-fleet").is_err());
    let namespace = AppliedName { name: "keelway-fleet".to_owned(), ..object("", "Namespace") };
    assert!(namespace.refuse_namespace("keelway-fleet").is_err());
    assert!(object("apps", "Deployment").refuse_namespace("keelway-fleet").is_ok());
}

prop_compose! {
    fn any_paths()(fields in prop::collection::btree_set(prop::sample::select(vec![".a", ".b", REPLICAS]), 0..4)) -> FieldPaths {
        fields.into_iter().map(str::to_owned).collect()
    }
}

prop_compose! {
    fn any_order()(kind in 0..3_usize, flags in prop::array::uniform4(any::<bool>()), generation in 1..3_i64) -> OrderedObject {
        let kinds = [("apps", "Deployment"), ("", "Namespace"), ("apiextensions.k8s.io", "CustomResourceDefinition")];
        let [overwrites, corrects_drift, is_deletion, was_applied] = flags;
        let object = object(kinds[kind].0, kinds[kind].1);
        OrderedObject { generation, object, overwrites, corrects_drift, is_deletion, was_applied, ..order() }
    }
}

prop_compose! {
    fn any_record()(
        is_there in any::<bool>(),
        ids in prop::array::uniform2(0..2_u8),
        generation in 1..3_i64,
        owned in any_paths(),
        flags in prop::array::uniform2(any::<bool>()),
    ) -> Option<AppliedRecord> {
        is_there.then(|| AppliedRecord {
            work_uid: format!("w{}", ids[0]),
            generation,
            object_uid: format!("o{}", ids[1]),
            owned,
            is_autoscaled: flags[0],
            is_created: flags[1],
        })
    }
}

prop_compose! {
    fn any_live()(which in 0..4_u8, uid in 0..2_u8, owned in any_paths(), flags in prop::array::uniform3(any::<bool>())) -> LiveObject {
        let [is_labelled, is_created, is_deleting] = flags;
        match which {
            0 => LiveObject::Unread,
            1 => LiveObject::Absent,
            _ => LiveObject::Present(LiveFacts { uid: format!("o{uid}"), owned, is_labelled, is_created, is_deleting }),
        }
    }
}

proptest! {
    /// A deletion is always ordered, and always names the object that the agent observed as its own.
    #[test]
    fn a_deletion_has_an_order_and_an_own_object(order in any_order(), record in any_record(), live in any_live()) {
        let action = decide(&order, record.as_ref(), &live);
        if let WorkAction::Delete(uid) = &action {
            prop_assert!(order.is_deletion);
            let LiveObject::Present(live) = &live else { return Err(TestCaseError::fail("nothing was observed")) };
            prop_assert_eq!(uid, &live.uid);
            prop_assert!(live.is_labelled && !live.owned.is_empty() && !live.is_deleting);
            prop_assert!(record.is_none_or(|record| record.object_uid == live.uid));
            prop_assert!(live.is_created || !order.object.is_container());
        } else if order.is_deletion {
            prop_assert!(matches!(action, WorkAction::Release(_) | WorkAction::AwaitDeletion), "an order to delete does nothing else");
        }
        if matches!(action, WorkAction::Release(_)) {
            prop_assert!(order.is_deletion);
        }
    }

    /// A value of another manager is replaced only by an order to overwrite, or if the agent owned the field before.
    #[test]
    fn nothing_of_others_is_overwritten(
        order in any_order(),
        record in any_record(),
        fields in any_paths(),
        is_autoscaled in any::<bool>(),
    ) {
        let conflicts: Vec<FieldConflict> = fields.iter().map(|field| conflict(field)).collect();
        match resolve(&order, record.as_ref(), conflicts, is_autoscaled) {
            ConflictStep::Again { force: true, is_autoscaled: left } if !order.overwrites => {
                prop_assert!(order.corrects_drift);
                for field in fields.iter().filter(|field| !(left && *field == REPLICAS)) {
                    let was_owned = record.as_ref().filter(|record| record.work_uid == order.uid).map(|record| {
                        record.owned.contains(field) || (field == REPLICAS && record.is_autoscaled)
                    });
                    prop_assert!(was_owned.unwrap_or(order.was_applied));
                }
            }
            ConflictStep::Again { force: false, .. } => {
                prop_assert!(fields.iter().all(|field| is_autoscaled && field == REPLICAS));
            }
            ConflictStep::Again { .. } => {}
            ConflictStep::Report(reported) => prop_assert!(!reported.is_empty() && !order.overwrites),
        }
    }

    /// What the agent applied and still owns is left alone.
    #[test]
    fn nothing_is_done_without_a_cause(order in any_order(), live in any_live()) {
        let LiveObject::Present(facts) = &live else { return Ok(()) };
        let record = AppliedRecord { generation: order.generation, owned: facts.owned.clone(), ..record() };
        if !order.is_deletion {
            prop_assert_eq!(decide(&order, Some(&record), &live), WorkAction::Keep);
        }
    }
}
