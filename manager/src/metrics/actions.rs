//! Counts what passes did, by kind.

use std::collections::BTreeMap;

use keelway_api::membership::MembershipChangeKind;
use keelway_planner::{Decision, MintRequest};
use keelway_reconciler::{ApplyOutcome, PassOutcome, store_subject};

/// A kind of action, and whether it succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ActionKind {
    pub(super) kind: &'static str,
    pub(super) result: &'static str,
}

/// All kinds and results. A decision is saved with its pass, so it cannot fail separately. An effect can.
pub(super) const KINDS: [ActionKind; 25] = [
    done("add-member"),
    done("bear"),
    done("restore"),
    done("bind"),
    failed("bind"),
    done("certify"),
    failed("certify"),
    done("converge"),
    failed("converge"),
    done("forget"),
    done("give"),
    done("keep"),
    done("mint-authority"),
    done("mint-certificate"),
    done("mint-key"),
    done("mint-revocation-list"),
    done("order"),
    failed("order"),
    done("place"),
    done("rebuild-store"),
    done("release"),
    done("remove-member"),
    done("retire"),
    done("sleep"),
    done("wake"),
];

const fn done(kind: &'static str) -> ActionKind {
    ActionKind { kind, result: "done" }
}

const fn failed(kind: &'static str) -> ActionKind {
    ActionKind { kind, result: "failed" }
}

/// Counts the actions of a pass. Decisions and minted keys are saved before any effect, so they are done if the pass completed.
pub(super) fn of(outcome: &PassOutcome) -> BTreeMap<ActionKind, u64> {
    let plan = &outcome.plan;
    let mut found = ActionCounts::default();
    plan.decisions.iter().for_each(|decision| found.add(done(of_decision(decision)), 1));
    plan.mint.iter().for_each(|request| found.add(done(of_mint(request)), 1));
    let bindings: Vec<String> = plan.bindings.iter().map(ToString::to_string).collect();
    let stores: Vec<String> = plan.stores.keys().map(store_subject).collect();
    let failed_of =
        |subjects: &[String]| outcome.failures.iter().filter(|failure| subjects.contains(&failure.subject)).count();
    let (unbound, refused) = (failed_of(&bindings), failed_of(&stores));
    let bound = bindings.len().saturating_sub(unbound).min(outcome.effects);
    let ordered = stores.len().saturating_sub(refused).min(outcome.effects - bound);
    found.add(done("bind"), bound);
    found.add(failed("bind"), unbound);
    found.add(done("order"), ordered);
    found.add(failed("order"), refused);
    found.add(done("certify"), outcome.effects - bound - ordered);
    found.add(failed("certify"), outcome.failures.len() - unbound - refused);
    found.0
}

/// Counts the effects on a machine, and the failures there. It does not distinguish the kinds of these effects.
pub(super) fn on_machine(applying: &ApplyOutcome) -> BTreeMap<ActionKind, u64> {
    let mut found = ActionCounts::default();
    found.add(done("converge"), applying.effects);
    found.add(failed("converge"), applying.failures.len());
    found.0
}

#[derive(Default)]
struct ActionCounts(BTreeMap<ActionKind, u64>);

impl ActionCounts {
    fn add(&mut self, kind: ActionKind, number: usize) {
        if number > 0 {
            *self.0.entry(kind).or_default() += u64::try_from(number).unwrap_or(u64::MAX);
        }
    }
}

fn of_decision(decision: &Decision) -> &'static str {
    match decision {
        Decision::PlaceComponent { .. } => "place",
        Decision::AssignPorts { .. } => "give",
        Decision::RetireComponent { .. } => "retire",
        Decision::KeepComponent { .. } => "keep",
        Decision::UpgradeComponent { .. } => "upgrade",
        Decision::UpgradeKeelway { .. } => "upgrade-keelway",
        Decision::CreateStore { .. } | Decision::CreateStoreFromSnapshot { .. } => "bear",
        Decision::ChangeMembers { kind: MembershipChangeKind::Add, .. } => "add-member",
        Decision::ChangeMembers { kind: MembershipChangeKind::Remove, .. } | Decision::WithdrawRestore { .. } => {
            "remove-member"
        }
        Decision::RebuildStore { .. } | Decision::RestoreStore { .. } => "rebuild-store",
        Decision::Sleep { .. } => "sleep",
        Decision::Wake { .. } => "wake",
        Decision::RotateKey { .. } => "rotate-key",
        Decision::LeaveBehind { .. } => "leave-behind",
        Decision::RestoreBundle { .. } => "restore",
        Decision::RemoveCluster { .. } => "forget",
        Decision::RemoveHypervisor { .. } => "release",
    }
}

fn of_mint(request: &MintRequest) -> &'static str {
    match request {
        MintRequest::Authority { .. } | MintRequest::NextAuthority { .. } => "mint-authority",
        MintRequest::ServiceAccountKey { .. }
        | MintRequest::NextServiceAccountKey { .. }
        | MintRequest::NextEncryptionKey { .. }
        | MintRequest::EncryptionKey { .. }
        | MintRequest::WireGuardKey { .. } => "mint-key",
        MintRequest::Certificate { .. } => "mint-certificate",
        MintRequest::RevocationList { .. } => "mint-revocation-list",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use keelway_api::{Documents, name::ClusterRef};
    use keelway_planner::{ComponentRef, Plan};
    use keelway_reconciler::PassFailure;

    use super::*;

    /// Returns the outcome of a pass that did nothing.
    pub(in crate::metrics) fn outcome() -> PassOutcome {
        let plan = Plan {
            documents: Documents::default(),
            mint: Vec::new(),
            agents: BTreeMap::new(),
            bindings: Vec::new(),
            stores: BTreeMap::new(),
            rewrites: BTreeMap::new(),
            decisions: Vec::new(),
            waiting: Vec::new(),
            due: None,
        };
        PassOutcome { plan, effects: 0, failures: Vec::new(), refused: false, settled: true }
    }

    pub(in crate::metrics) fn failure(at: &str) -> PassFailure {
        PassFailure { subject: at.to_owned(), reason: "it is broken".to_owned() }
    }

    #[test]
    fn a_pass_without_effects_counts_no_actions() {
        assert_eq!(of(&outcome()), BTreeMap::new());
    }

    #[test]
    fn actions_in_clusters_and_on_agents_are_counted_separately() {
        let mut outcome = outcome();
        let cluster = ClusterRef::parse("default", "c1").unwrap();
        outcome.plan.decisions = vec![
            Decision::CreateStore { cluster: cluster.clone(), members: 3 },
            Decision::KeepComponent { component: ComponentRef { cluster, component: "etcd-0".parse().unwrap() } },
        ];
        outcome.plan.bindings = vec!["0123456789abcdef".parse().unwrap(), "fedcba9876543210".parse().unwrap()];
        outcome.effects = 5;
        outcome.failures = vec![failure("0123456789abcdef"), failure("hv-1"), failure("hv-2")];
        let counts = of(&outcome);
        assert!(counts.keys().all(|kind| KINDS.contains(kind)), "{counts:?}");
        let lines: Vec<String> =
            counts.iter().map(|(ActionKind { kind, result }, number)| format!("{kind} {result} {number}")).collect();
        let expected =
            ["bear done 1", "bind done 1", "bind failed 1", "certify done 4", "certify failed 2", "keep done 1"];
        assert_eq!(lines, expected);
        let applying = ApplyOutcome { effects: 3, failures: Vec::new() };
        assert_eq!(on_machine(&applying), BTreeMap::from([(done("converge"), 3)]));
    }
}
