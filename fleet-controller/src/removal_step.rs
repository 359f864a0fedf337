//! What happens with the Works of a cluster that leaves its fleet. Pure.

/// What happens with the objects in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalOrder {
    /// The agent deletes them.
    DeleteObjects,
    /// They stay. The rights of the agent are revoked already.
    KeepObjects,
}

/// The next step for one Work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalStep {
    /// Remove the finalizer of the agent.
    Release,
    /// Delete the Work.
    Delete,
    /// Delete exactly this version of the Work.
    DeleteVersion,
    /// Wait until another one has removed its finalizer.
    Wait,
}

/// Decides what to do with a Work.
///
/// An agent that watched the Works before its rights were revoked still receives their changes. To it, a Work that has its finalizer and is being
/// deleted is an order. So a Work whose object stays is deleted only in a version without that finalizer.
#[must_use]
pub fn removal_step(order: RemovalOrder, has_finalizer: bool, is_deleting: bool) -> RemovalStep {
    match (order, has_finalizer, is_deleting) {
        (RemovalOrder::KeepObjects, true, _) => RemovalStep::Release,
        (RemovalOrder::KeepObjects, false, false) => RemovalStep::DeleteVersion,
        (RemovalOrder::DeleteObjects, _, false) => RemovalStep::Delete,
        (_, _, true) => RemovalStep::Wait,
    }
}
