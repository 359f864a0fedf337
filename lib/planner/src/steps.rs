//! The steps of a decision: [`plan`] calls one function for each concern, in order.

use alloc::{collections::BTreeMap, vec::Vec};

use keelway_api::{
    Cluster, Documents, Shared, Time,
    fault::Faults,
    jiff::Timestamp,
    machine::{ObservedValue, UnreachableReason},
    name::ClusterRef,
};

use crate::{
    PassObservation, WaitBlocker, access, authorities, bundles, certificates, class, deletion, draining, enrollment,
    installation, keelway_upgrade, machine_deletion, newer, placement,
    plan::{Plan, PlanScope},
    restore, rotation, sleep, status, store_creation, store_health, store_room, versions,
    world::ValidatedDocuments,
};

/// Decides the next step of the documents.
///
/// The plan starts from the documents and changes only what it decides. It is deterministic: equal arguments lead to equal plans. In a settled
/// installation it changes nothing.
///
/// # Errors
/// A document is invalid. Documents that [`Documents::read`] returned are valid.
pub fn plan(documents: Documents, seen: &PassObservation, now: Timestamp) -> Result<Plan, Faults> {
    plan_part(documents, PlanScope::All, seen, now)
}

/// Like [`plan`], for a part of the documents. Plans of all parts, made one after the other, decide what one plan of all documents would.
///
/// # Errors
/// A document is invalid.
pub fn plan_part(
    documents: Documents,
    part: PlanScope<'_>,
    seen: &PassObservation,
    now: Timestamp,
) -> Result<Plan, Faults> {
    let world = ValidatedDocuments::of_pass(&documents, seen)?;
    let mut plan = Plan {
        documents,
        mint: Vec::new(),
        agents: BTreeMap::new(),
        bindings: Vec::new(),
        stores: BTreeMap::new(),
        rewrites: BTreeMap::new(),
        decisions: Vec::new(),
        waiting: Vec::new(),
        due: due(seen, now),
    };
    if part.has_machines() || seen.stale() {
        wait_for_machines(&mut plan, seen, now);
    }
    if seen.stale() {
        return Ok(plan);
    }
    wait_for_newer_documents(&mut plan, seen);
    class::plan_classes(&mut plan, &Time(now));
    newer::report_of_clusters(&mut plan, &Time(now));
    bundles::restore_bundles(&mut plan, &world);
    store_creation::plan_birth_records(&mut plan);
    store_creation::wait_for_changes(&mut plan, &world);
    deletion::plan_deletions(&mut plan, &world, seen, &Time(now));
    sleep::plan_sleep(&mut plan, &world, seen, &Time(now));
    keelway_upgrade::plan_waves(&mut plan, part, &Time(now));
    restore::copy_encryption_keys(&mut plan, &world);
    placement::plan_components(&mut plan, &world, seen, (part, now));
    versions::follow_until_birth(&mut plan, &world);
    store_creation::plan_births(&mut plan, &world, seen, &Time(now));
    store_creation::plan_member_phases(&mut plan, &world, seen);
    store_creation::plan_initialization(&mut plan, &world, seen);
    versions::plan_versions(&mut plan, &world, seen, &Time(now));
    rotation::plan_rotations(&mut plan, &world, seen, &Time(now));
    if part.has_machines() {
        bundles::restore_bundle_of_installation(&mut plan);
        machine_deletion::plan_deletions(&mut plan, part, seen, &Time(now));
        installation::plan_certificates(&mut plan, &world, seen, now);
        enrollment::plan_agents(&mut plan, seen, &Time(now));
        status::plan_machines(&mut plan, part, seen, &Time(now));
        newer::report_of_machines(&mut plan, &Time(now));
    }
    authorities::plan_authorities(&mut plan, seen, now);
    store_room::plan_room(&mut plan, seen, &Time(now));
    store_health::plan_store_health(&mut plan, seen, &Time(now));
    let overdue = certificates::plan_certificates(&mut plan, &world, seen, now);
    access::plan_bindings(&mut plan, &world, seen);
    status::plan_status(&mut plan, &world, (seen, &overdue), &Time(now));
    draining::wait_for_connections(&mut plan, &world, seen);
    Ok(plan)
}

/// When the next certificate reaches two thirds of its lifetime, or the next authority ends. Earlier times do not count: certificates past
/// theirs are minted in this pass, or are not needed.
fn due(seen: &PassObservation, now: Timestamp) -> Option<Timestamp> {
    let renewals = seen.certificates.values().map(|found| found.renew_at).filter(|date| *date > now);
    renewals.chain(authorities::next_end(seen, now)).min()
}

/// Waits for each machine that cannot be observed, as nothing is planned on it, and for each whose disk is full. A lost machine that does not
/// respond is left out.
fn wait_for_machines(plan: &mut Plan, seen: &PassObservation, now: Timestamp) {
    let is_lost = |name| plan.documents.hypervisors.get(name).is_some_and(|machine| machine.is_lost());
    let awaited: Vec<_> =
        seen.machines.iter().filter(|(name, state)| state.known().is_some() || !is_lost(name)).collect();
    for (name, state) in awaited {
        if let Some(refused) = seen.refused.get(name) {
            plan.wait(name, WaitBlocker::RefusingMachine(refused.clone()));
            continue;
        }
        match &**state {
            ObservedValue::Unreachable { silent: UnreachableReason::Asked, why } => {
                let enrollment = enrollment::waits_for(&plan.documents, name, now).map(WaitBlocker::Enrollment);
                plan.wait(name, enrollment.unwrap_or_else(|| WaitBlocker::Response(why.clone())));
            }
            ObservedValue::Unreachable { silent: UnreachableReason::Runtime, why } => {
                plan.wait(name, WaitBlocker::SilentRuntime(why.clone()));
            }
            ObservedValue::Unreachable { silent: UnreachableReason::Agent, why } => {
                let enrollment = enrollment::waits_for(&plan.documents, name, now).map(WaitBlocker::Enrollment);
                plan.wait(name, enrollment.unwrap_or_else(|| WaitBlocker::NoAgent(why.clone())));
            }
            ObservedValue::Unreachable { silent: UnreachableReason::Led, why } => {
                plan.wait(name, WaitBlocker::LaterLeader(why.clone()));
            }
            ObservedValue::Known(state) if state.disk_pressure => plan.wait(name, WaitBlocker::FullDisk),
            ObservedValue::Known(_) => {}
        }
    }
}

/// Reports each frozen cluster as blocked, before all other waits.
fn wait_for_newer_documents(plan: &mut Plan, seen: &PassObservation) {
    let still = seen.frozen_clusters(&plan.documents);
    let stands = |(name, cluster): (&ClusterRef, &Shared<Cluster>)| Some((name.clone(), *still.get(cluster.id()?)?));
    let all: Vec<_> = plan.documents.clusters.iter().filter_map(stands).collect();
    for (name, machine) in all {
        let Some(refusal) = seen.refused.get(machine).cloned() else { continue };
        plan.block(&name, WaitBlocker::FrozenCluster { machine: machine.clone(), refusal });
    }
}
