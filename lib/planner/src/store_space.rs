//! Space in stores: compaction, defragmentation, and the alarm `NOSPACE`.
//!
//! etcd compares its quota with the size of the database file, which shrinks only when the database is defragmented. Compaction frees pages inside the
//! file. A full member raises the alarm `NOSPACE`, and the store rejects all writes but deletions until the alarm is disarmed.
//!
//! The gates, all of which hold in every pass:
//!
//! 1. A plan has at most one order to a store. While the alarm is raised, space comes before a change of the members: API servers that start cannot
//!    become ready without writes. Otherwise it comes after the change.
//! 2. Nothing is decided without a member list from a majority, nor while a member is corrupt.
//! 3. The store is compacted only while the alarm is raised and a full member has data and history for 80 % of its quota or more. The revision is
//!    recorded first. It is compacted again up to a newer one: while the alarm is raised, only deletions create revisions. The same order is repeated
//!    after a minute, because it may have been lost. etcd then responds that it has taken effect.
//! 4. Without the alarm, a member is defragmented from 80 % of its quota on, if a fifth of its file or more is free. With the alarm, full members are
//!    defragmented if that makes room. If the data in use fills the quota, none is: a person increases the quota, or deletes objects. A member counts
//!    freed pages as used until its next write to the database, so room that the last deletion made may show only after another one.
//! 5. A member does not respond while it is defragmented. The healthy voters beside it are a majority. The only voter is defragmented from 90 % on, as
//!    the API stops meanwhile: with the alarm, it would stop for longer.
//! 6. One member at a time. The last one that was ordered comes first until its file has shrunk, so no driver begins with another one meanwhile.
//! 7. Followers come first. The leader moves to another voter before its member is defragmented.
//! 8. The alarm of a member is disarmed when the member reports room, and no member that responds is full.

use alloc::{collections::BTreeMap, vec::Vec};

use keelway_api::{
    Time,
    jiff::{SignedDuration, Timestamp},
    name::ComponentName,
    role::Role,
    store_observation::{DatabaseSize, MemberAlarm, MemberId},
    store_space::{LastCompaction, LastDefragmentation, StoreSpace},
};

use crate::{
    StoreOrder, WaitBlocker, WaitKind, WaitSubject,
    membership::{self, StoreContext, StoreView, change_store, is_majority, store},
    plan::Plan,
};

/// The share of the quota from which on a member may be defragmented, and a full store is compacted, in percent.
const NEAR: u64 = 80;
/// The share of the quota from which on a member is full, in percent. A member has room below it.
const FULL: u64 = 90;
/// The time after which the same compaction is ordered again.
const COMPACTED_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// The share of the file that may be in use if the file is worth a defragmentation, in percent.
const FRAGMENTED: u64 = 80;

/// What the store needs next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SpaceStep {
    /// An order, and the component that it concerns.
    Order(Option<ComponentName>, StoreOrder),
    Wait(WaitKind, WaitBlocker),
}

/// Takes the next step that makes space in a store. Returns whether it orders anything.
pub(crate) fn plan_space(plan: &mut Plan, at: StoreContext<'_>, view: &StoreView<'_>) -> bool {
    let Some(status) = store(&plan.documents, at) else { return false };
    let space = SpaceView::of(at, view, status.space.clone().unwrap_or_default());
    // Gates 1 and 2.
    let has_turn = space.has_alarm() || status.change.is_none();
    if view.has_corruption() || !has_turn {
        return false;
    }
    if space.waits_for_person() {
        wait(plan, at, WaitKind::Blocked, WaitBlocker::FilledQuota);
        let again = space.compacted_again_at().filter(|date| *date > at.now);
        plan.due = plan.due.into_iter().chain(again).min();
    }
    match space.step() {
        None => false,
        Some(SpaceStep::Wait(kind, blocker)) => {
            wait(plan, at, kind, blocker);
            false
        }
        Some(SpaceStep::Order(subject, order)) => {
            record(plan, at, &order);
            send(plan, at, subject, order);
            true
        }
    }
}

fn wait(plan: &mut Plan, at: StoreContext<'_>, kind: WaitKind, blocker: WaitBlocker) {
    let subject = WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd);
    match kind {
        WaitKind::InProgress => plan.wait_in_progress(subject, blocker),
        WaitKind::Blocked => plan.block(subject, blocker),
    }
}

/// Records a compaction or a defragmentation before it is ordered.
fn record(plan: &mut Plan, at: StoreContext<'_>, order: &StoreOrder) {
    let time = Time(at.now);
    match order {
        StoreOrder::Compact { revision } => {
            let last = LastCompaction { revision: *revision, time };
            change_store(plan, at, |store| store.space.get_or_insert_default().last_compaction = Some(last));
        }
        StoreOrder::Defragment { component, .. } => {
            let last = LastDefragmentation { component: component.clone(), time };
            change_store(plan, at, |store| store.space.get_or_insert_default().last_defragmentation = Some(last));
        }
        StoreOrder::AddLearner { .. }
        | StoreOrder::Promote { .. }
        | StoreOrder::MoveLeader { .. }
        | StoreOrder::Remove { .. }
        | StoreOrder::Disarm { .. }
        | StoreOrder::Restore { .. } => {}
    }
}

fn send(plan: &mut Plan, at: StoreContext<'_>, subject: Option<ComponentName>, order: StoreOrder) {
    match subject {
        Some(component) => membership::order(plan, at, &component, order),
        None => membership::order_of_store(plan, at, order),
    }
}

/// The voters that respond, with their databases.
struct SpaceView<'a> {
    view: &'a StoreView<'a>,
    databases: BTreeMap<&'a ComponentName, (MemberId, Fill)>,
    /// The revision of the newest write.
    revision: u64,
    recorded: StoreSpace,
    now: Timestamp,
}

impl<'a> SpaceView<'a> {
    fn of(at: StoreContext<'_>, view: &'a StoreView<'a>, recorded: StoreSpace) -> Self {
        let quota = at.cluster.bounds.quota.bytes();
        let responding = view.voters.iter().filter_map(|(name, voter)| {
            let report = view.report(name).filter(|report| report.id == voter.id)?;
            Some((name, (voter.id, Fill::of(report.database, quota))))
        });
        let revisions = view.voters.keys().filter_map(|name| Some(view.report(name)?.revision));
        let revision = revisions.max().unwrap_or_default();
        Self { view, databases: responding.collect(), revision, recorded, now: at.now }
    }

    fn has_alarm(&self) -> bool {
        self.alarms().next().is_some()
    }

    /// The members that raised the alarm.
    fn alarms(&self) -> impl Iterator<Item = MemberId> {
        self.view.alarms.iter().filter(|(_, alarm)| *alarm == MemberAlarm::NoSpace).map(|(id, _)| *id)
    }

    fn step(&self) -> Option<SpaceStep> {
        if self.has_alarm() {
            return self.end_alarm();
        }
        // Gates 4 and 5.
        let from = if self.view.count_voters() == 1 { FULL } else { NEAR };
        let is_due = |fill: &Fill| fill.is_filled(from) && fill.is_fragmented();
        let candidates = self.names(is_due);
        (!candidates.is_empty()).then(|| self.defragment(&candidates))
    }

    /// Gate 4: whether the data in use fills the quota of a member, and compaction up to the newest revision was ordered. The members' data differs
    /// by some pages, so that not all of them may be filled.
    fn waits_for_person(&self) -> bool {
        let full = self.names(|fill| fill.is_filled(FULL));
        let is_compacted = self.last_compaction().is_some();
        let is_filled = |name: &&ComponentName| self.fill(name).is_some_and(|fill| fill.is_used(FULL));
        self.has_alarm() && is_compacted && full.iter().any(is_filled)
    }

    /// The last compaction, if there is no newer revision.
    fn last_compaction(&self) -> Option<&LastCompaction> {
        self.recorded.last_compaction.as_ref().filter(|last| last.revision >= self.revision)
    }

    /// The next step while the alarm is raised. None: a person has to make room.
    fn end_alarm(&self) -> Option<SpaceStep> {
        let full = self.names(|fill| fill.is_filled(FULL));
        if full.is_empty() {
            return Some(self.disarm());
        }
        let has_history = |name: &&ComponentName| self.fill(name).is_some_and(|fill| fill.is_used(NEAR));
        if full.iter().any(has_history) && self.is_compaction_due() {
            return Some(SpaceStep::Order(None, StoreOrder::Compact { revision: self.revision }));
        }
        // Gate 4.
        let gains = |name: &&ComponentName| self.fill(name).is_some_and(|fill| !fill.is_used(FULL));
        full.iter().all(gains).then(|| self.defragment(&full))
    }

    /// Gate 3.
    fn is_compaction_due(&self) -> bool {
        self.compacted_again_at().is_none_or(|date| date <= self.now)
    }

    /// When the last compaction is ordered again, if there is no newer revision.
    fn compacted_again_at(&self) -> Option<Timestamp> {
        self.last_compaction()?.time.0.checked_add(COMPACTED_AGAIN).ok()
    }

    /// Gate 8.
    fn disarm(&self) -> SpaceStep {
        let responds = |id: &MemberId| self.databases.values().any(|(known, _)| known == id);
        let (ready, silent): (Vec<_>, Vec<_>) = self.alarms().partition(responds);
        match (ready.first(), silent.first()) {
            (Some(id), _) => SpaceStep::Order(None, StoreOrder::Disarm { id: *id, alarm: MemberAlarm::NoSpace }),
            (None, Some(id)) => SpaceStep::Wait(WaitKind::Blocked, WaitBlocker::MemberWithoutSpace(*id)),
            (None, None) => SpaceStep::Wait(WaitKind::InProgress, WaitBlocker::MemberList),
        }
    }

    /// Gates 5 to 7.
    fn defragment(&self, candidates: &[&ComponentName]) -> SpaceStep {
        let Some(leader) = self.view.leader() else {
            return SpaceStep::Wait(WaitKind::InProgress, WaitBlocker::StoreLeader);
        };
        let last = self.recorded.last_defragmentation.as_ref().map(|last| &last.component);
        let named = candidates.iter().filter_map(|name| Some((self.databases.get(*name)?, *name)));
        let next = named.min_by_key(|((id, _), name)| (*id == leader, Some(*name) != last, (*name).clone()));
        let Some((id, size, component)) = next.map(|((id, fill), name)| (*id, fill.size, name.clone())) else {
            return SpaceStep::Wait(WaitKind::InProgress, WaitBlocker::MemberList);
        };
        let (healthy, voters) = (self.view.count_healthy_besides(&component), self.view.count_voters());
        if voters > 1 && !is_majority(healthy, voters) {
            let blocker = WaitBlocker::MajorityBesideDefragmentation { healthy, voters };
            return SpaceStep::Wait(WaitKind::Blocked, blocker);
        }
        let to = self.view.next_leader(&component).filter(|_| id == leader && voters > 1);
        let order = match to {
            Some(to) => StoreOrder::MoveLeader { from: id, to },
            None => StoreOrder::Defragment { component: component.clone(), id, size },
        };
        SpaceStep::Order(Some(component), order)
    }

    fn names(&self, is_selected: impl Fn(&Fill) -> bool) -> Vec<&'a ComponentName> {
        self.databases.iter().filter(|(_, (_, fill))| is_selected(fill)).map(|(name, _)| *name).collect()
    }

    fn fill(&self, name: &ComponentName) -> Option<Fill> {
        self.databases.get(name).map(|(_, fill)| *fill)
    }
}

/// How full the database of a member is.
#[derive(Debug, Clone, Copy)]
struct Fill {
    size: u64,
    in_use: u64,
    quota: u64,
}

impl Fill {
    /// `quota` is that of the spec, for members that do not report theirs. Members that have not restarted yet have an earlier one.
    fn of(database: DatabaseSize, quota: u64) -> Self {
        Self { size: database.size, in_use: database.in_use, quota: database.quota.unwrap_or(quota) }
    }

    /// Whether the file has this share of the quota, in percent.
    fn is_filled(&self, percent: u64) -> bool {
        has_share(self.size, self.quota, percent)
    }

    /// Whether data and history have this share of the quota, in percent.
    fn is_used(&self, percent: u64) -> bool {
        has_share(self.in_use, self.quota, percent)
    }

    fn is_fragmented(&self) -> bool {
        !has_share(self.in_use, self.size, FRAGMENTED)
    }
}

fn has_share(part: u64, whole: u64, percent: u64) -> bool {
    u128::from(part) * 100 >= u128::from(whole) * u128::from(percent)
}
