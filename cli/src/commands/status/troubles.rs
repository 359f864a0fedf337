//! Faults of an installation, each with what to do.

use std::{collections::BTreeSet, fmt::Write};

use keelway_api::{Condition, Documents, condition::reason::ConditionReason};

use crate::{
    commands::named::title,
    view::{find, message_of, status_of},
};

/// The largest number of faults that are listed.
const TOLD: usize = 6;

/// Lists faults of machines first, because their components depend on them. The help for a reason appears once.
pub(super) fn of(documents: &Documents) -> String {
    let parts = [
        machines(documents),
        paused(documents),
        asleep(documents),
        stores(documents),
        rotations(documents),
        components(documents),
    ];
    let all: Vec<Trouble> = parts.into_iter().flatten().collect();
    let mut explained = BTreeSet::new();
    let mut text = String::new();
    for trouble in all.iter().take(TOLD) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", trouble.line);
        if let Some(reason) = ConditionReason::of_name(trouble.reason).filter(|_| explained.insert(trouble.reason)) {
            let _ = writeln!(text, "  help: {}", reason.explained().help);
        }
    }
    if all.len() > TOLD {
        let _ = writeln!(text, ".. and {} more", all.len() - TOLD);
    }
    text
}

struct Trouble<'a> {
    line: String,
    /// Empty if this fault needs no help of its own.
    reason: &'a str,
}

fn machines(documents: &Documents) -> Vec<Trouble<'_>> {
    let mut troubles = Vec::new();
    for (name, machine) in &documents.hypervisors {
        let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let message = message_of(conditions, "Ready");
        let reason = reason(conditions, "Ready");
        match status_of(conditions, "Ready").as_str() {
            "True" => {}
            "Unknown" => troubles.push(Trouble { line: format!("{name} waits for {message}"), reason }),
            _ => troubles.push(Trouble { line: format!("{name} is not ready: {message}"), reason }),
        }
        if let Some(pressure) = find(conditions, "DiskPressure").filter(|pressure| pressure.status == "True") {
            troubles.push(Trouble { line: format!("{name} {}", pressure.message), reason: &pressure.reason });
        }
    }
    troubles
}

fn paused(documents: &Documents) -> Vec<Trouble<'_>> {
    let conditions = documents.clusters.iter().filter_map(|(name, cluster)| {
        let paused = find(&cluster.status.as_ref()?.conditions, "Paused")?;
        Some(Trouble { line: format!("{name} is paused: {}", paused.message), reason: &paused.reason })
    });
    conditions.collect()
}

/// A cluster that sleeps is reported by one line, and its components by none.
fn asleep(documents: &Documents) -> Vec<Trouble<'_>> {
    let conditions = documents.clusters.iter().filter_map(|(name, cluster)| {
        let asleep = find(&cluster.status.as_ref()?.conditions, "Asleep")?;
        let state = match asleep.reason.as_str() {
            "Asleep" => "is asleep",
            "FallingAsleep" => "falls asleep",
            _ => "wakes up",
        };
        Some(Trouble { line: format!("{name} {state}: {}", asleep.message), reason: &asleep.reason })
    });
    conditions.collect()
}

/// The conditions of stores exist only while something is wrong.
const OF_STORES: [&str; 3] = ["EtcdMembersHealthy", "EtcdHasRoom", "EtcdBackedUp"];

fn stores(documents: &Documents) -> Vec<Trouble<'_>> {
    let mut troubles = Vec::new();
    for (name, cluster) in &documents.clusters {
        let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let found = OF_STORES.iter().filter_map(|kind| find(conditions, kind));
        troubles.extend(found.filter(|condition| condition.status == "False").map(|condition| Trouble {
            line: if condition.message.starts_with("waits for") {
                format!("{name} {}", condition.message)
            } else {
                format!("{name}: {}", condition.message)
            },
            reason: &condition.reason,
        }));
    }
    troubles
}

/// This condition exists only while a key is rotated.
fn rotations(documents: &Documents) -> Vec<Trouble<'_>> {
    let conditions = documents.clusters.iter().filter_map(|(name, cluster)| {
        let rotating = find(&cluster.status.as_ref()?.conditions, "KeysRotating")?;
        Some(Trouble { line: format!("{name} rotates keys: {}", rotating.message), reason: &rotating.reason })
    });
    conditions.collect()
}

fn components(documents: &Documents) -> Vec<Trouble<'_>> {
    let mut troubles = Vec::new();
    for (pod, component) in &documents.components {
        let conditions = component.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        if status_of(conditions, "Ready") != "True" && reason(conditions, "Ready") != "Asleep" {
            let line = format!("{} waits for {}", title(pod, component), message_of(conditions, "Ready"));
            troubles.push(Trouble { line, reason: reason(conditions, "Ready") });
        }
    }
    troubles
}

fn reason<'a>(conditions: &'a [Condition], kind: &str) -> &'a str {
    find(conditions, kind).map_or("", |condition| condition.reason.as_str())
}

#[cfg(test)]
mod tests {
    use keelway_api::{
        Time,
        condition::{self, ConditionStatus, ConditionValue},
        jiff::Timestamp,
    };

    use super::*;

    #[test]
    fn a_snapshot_that_could_not_be_taken_is_a_fault_with_help() {
        let mut documents = keelway_reconciler::testing::world();
        let cluster = documents.clusters.values_mut().next().unwrap();
        let failed = ConditionValue {
            status: ConditionStatus::False,
            reason: "SnapshotFailed".to_owned(),
            message: "the disk is full".to_owned(),
        };
        let conditions = &mut cluster.status.as_mut().unwrap().conditions;
        condition::set(conditions, "EtcdBackedUp", failed, None, &Time(Timestamp::UNIX_EPOCH));
        let text = of(&documents);
        let (_, help) = text.split_once("c1: the disk is full\n").unwrap();
        assert!(help.starts_with("  help: correct what the message names"), "{text}");
    }
}
