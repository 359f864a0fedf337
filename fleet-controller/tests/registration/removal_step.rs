//! No Work is an order to delete an object that stays.

use keelway_fleet_controller::removal_step::{RemovalOrder, RemovalStep, removal_step};

/// A Work as its agent sees it: whether it has the finalizer, and whether it is being deleted.
type SeenWork = (bool, bool);

/// What a step does with a Work, or `None` if the Work is gone. A step on a version fails if the Work is another one by then.
fn after(step: RemovalStep, (has_finalizer, is_deleting): SeenWork, is_other_version: bool) -> Option<SeenWork> {
    match step {
        RemovalStep::Release | RemovalStep::DeleteVersion if is_other_version => Some((has_finalizer, is_deleting)),
        RemovalStep::Release => (!is_deleting).then_some((false, false)),
        RemovalStep::Delete | RemovalStep::DeleteVersion => has_finalizer.then_some((true, true)),
        RemovalStep::Wait => Some((has_finalizer, is_deleting)),
    }
}

/// Whether the agent would delete the object.
fn is_order((has_finalizer, is_deleting): SeenWork) -> bool {
    has_finalizer && is_deleting
}

#[test]
fn a_work_whose_object_stays_is_released_first() {
    for was_deleted in [false, true] {
        let mut work = Some((true, was_deleted));
        for _ in 0..3 {
            let Some(before) = work else { break };
            work = after(removal_step(RemovalOrder::KeepObjects, before.0, before.1), before, false);
            assert!(work.is_none_or(|now| !is_order(now)), "{before:?}");
        }
        assert_eq!(work, None);
    }
}

/// The agent reports on the Work between the list and each step, so that the listed version is not the current one.
#[test]
fn a_work_that_changes_meanwhile_is_no_order() {
    let mut work = (true, false);
    for is_other_version in [true, true, false] {
        work = after(removal_step(RemovalOrder::KeepObjects, work.0, work.1), work, is_other_version).unwrap();
        assert!(!is_order(work));
    }
    // A writer restored the finalizer after the list: the deletion of the listed version fails.
    let listed = removal_step(RemovalOrder::KeepObjects, false, false);
    assert!(!is_order(after(listed, (true, false), true).unwrap()));
    // Without the version, it is an order.
    assert!(is_order(after(RemovalStep::Delete, (true, false), true).unwrap()));
}

#[test]
fn a_work_whose_object_goes_waits_for_the_agent() {
    let ordered = after(removal_step(RemovalOrder::DeleteObjects, true, false), (true, false), true).unwrap();
    assert!(is_order(ordered));
    assert_eq!(removal_step(RemovalOrder::DeleteObjects, true, true), RemovalStep::Wait);
}
