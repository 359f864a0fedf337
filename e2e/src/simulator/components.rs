//! Simulated components, as the pass queries them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use keelway_api::{
    Cluster, Documents,
    jiff::Timestamp,
    machine::ObservedValue,
    name::{ClusterId, PodName},
};
use keelway_planner::{
    ClusterAccess, ComponentHealth, FirstBindings, ObservedTrust, Probe, RestorableSnapshot, SecretRewrite,
    StoreObservation, StoreOrder, UpgradePreflight, access,
};
use keelway_reconciler::Components;

use super::{
    error::SimulatedRefusal,
    fault::FaultPoint,
    fault_steps::{Sim, StepTarget},
    program::SimulatedProgram,
    restores::RestoredMember,
    state::SimulationState,
    stored_secrets::StoredSecrets,
};

pub(super) struct SimulatedComponents(pub(super) Sim);

#[async_trait]
impl Components for SimulatedComponents {
    async fn health(&self, _documents: &Documents, probe: &Probe) -> ComponentHealth {
        let (machine, address, path) = (probe.machine.clone(), probe.address, probe.path);
        let asked = self.0.step(FaultPoint::AskHealth, StepTarget::Network(&probe.machine), move |world| {
            match world.process_at(&machine, address) {
                Some(process) if world.is_well(process) => Ok(process.program.has_path(path)),
                Some(_) => Err(SimulatedRefusal("it answers that it is not well".to_owned())),
                None => Err(SimulatedRefusal("connection refused".to_owned())),
            }
        });
        let health = match asked.await {
            Ok(true) => ComponentHealth::Healthy,
            Ok(false) => ComponentHealth::Unhealthy(format!("{} returned 503", probe.path)),
            Err(refused) => ComponentHealth::NoAnswer(refused.to_string()),
        };
        self.0.world().pass.seen.health.insert(probe.component.clone(), health.clone());
        health
    }

    async fn bindings(&self, documents: &Documents, id: &ClusterId) -> ObservedValue<String> {
        let of = id.clone();
        let seen = self.ask_api(documents, id, move |world| world.bindings.get(&of).cloned().unwrap_or_default());
        let seen = seen.await;
        self.0.world().pass.seen.bindings.insert(id.clone(), seen.clone());
        seen
    }

    /// Nothing in the cluster keeps it from an upgrade.
    async fn upgrade_preflight(&self, _documents: &Documents, id: &ClusterId) -> UpgradePreflight {
        let seen = UpgradePreflight::default();
        self.0.world().pass.seen.preflights.insert(id.clone(), seen.clone());
        seen
    }

    async fn bind(&self, documents: &Documents, id: &ClusterId, _now: Timestamp) -> Result<(), String> {
        self.begin_effect(documents, id.to_string());
        let server = access(documents, id).into_iter().next().ok_or("no API server")?;
        let (asked, of) = (server.clone(), id.clone());
        let wanted = FirstBindings::of_id(documents, id).digest();
        let bound = self.0.step(FaultPoint::Bind, StepTarget::Network(&server.machine), move |world| {
            world.check_server(&asked)?;
            world.bindings.insert(of.clone(), wanted.clone());
            Ok(())
        });
        bound.await.map_err(|refused| refused.to_string())
    }

    async fn store(&self, _documents: &Documents, members: &[Probe]) -> StoreObservation {
        let Some(id) = members.first().map(|probe| probe.component.cluster.clone()) else {
            return StoreObservation::default();
        };
        let mut reached = BTreeMap::new();
        for probe in members {
            let (machine, address) = (probe.machine.clone(), probe.address);
            let asked = self.0.step(FaultPoint::AskBindings, StepTarget::Network(&probe.machine), move |world| {
                match world.process_at(&machine, address).map(|process| &process.program) {
                    Some(SimulatedProgram::Etcd(member)) => Ok(member.id),
                    _ => Err(SimulatedRefusal("connection refused".to_owned())),
                }
            });
            if let Ok(Some(id)) = asked.await {
                reached.insert(probe.component.component.clone(), id);
            }
        }
        let asked = members.iter().map(|probe| probe.component.component.clone()).collect();
        let mut world = self.0.world();
        let seen = world.observe_store(&id, asked, &reached);
        world.pass.seen.stores.insert(id, seen.clone());
        seen
    }

    async fn restorable(&self, _documents: &Documents, cluster: &Cluster) -> Result<RestorableSnapshot, String> {
        let mut world = self.0.world();
        let found = world.read_snapshot();
        if let Some(id) = cluster.id() {
            world.pass.seen.restores.insert(id.clone(), found.clone());
        }
        found
    }

    async fn rewritten(&self, documents: &Documents, id: &ClusterId) -> ObservedValue<SecretRewrite> {
        let of = id.clone();
        let seen = self.ask_api(documents, id, move |world| {
            world.rollouts.secrets.get(&of).map(StoredSecrets::record).unwrap_or_default()
        });
        let seen = seen.await;
        self.0.world().pass.seen.rewrites.insert(id.clone(), seen.clone());
        seen
    }

    async fn observed_trust(&self, documents: &Documents, id: &ClusterId) -> ObservedValue<Vec<ObservedTrust>> {
        let of = id.clone();
        let seen = self.ask_api(documents, id, move |world| world.worker_reports(&of)).await;
        self.0.world().pass.seen.trust.insert(id.clone(), seen.clone());
        seen
    }

    async fn rewrite(
        &self,
        documents: &Documents,
        id: &ClusterId,
        key_name: &str,
        _now: Timestamp,
    ) -> Result<(), String> {
        self.begin_effect(documents, id.to_string());
        let server = access(documents, id).into_iter().next().ok_or("no API server")?;
        let (asked, of, key_name) = (server.clone(), id.clone(), key_name.to_owned());
        let written = self.0.step(FaultPoint::Bind, StepTarget::Network(&server.machine), move |world| {
            world.check_server(&asked)?;
            world.rewrite_secrets(&of, &asked, &key_name);
            Ok(())
        });
        written.await.map_err(|refused| refused.to_string())
    }

    async fn order(&self, documents: &Documents, members: &[Probe], order: &StoreOrder) -> Result<(), String> {
        self.begin_effect(documents, order.to_string());
        if let StoreOrder::Restore { pod, .. } = order {
            return self.restore(documents, pod).await;
        }
        let asked = {
            let world = self.0.world();
            let is_well = |probe: &&Probe| {
                world.process_at(&probe.machine, probe.address).is_some_and(|process| world.is_well(process))
            };
            members.iter().find(is_well).cloned()
        };
        let asked = asked.ok_or("no member responds")?;
        let (cluster, order) = (asked.component.cluster.clone(), order.clone());
        let executed = self.0.step(FaultPoint::Order, StepTarget::Network(&asked.machine), move |world| {
            world.execute_order(&cluster, &order).map_err(SimulatedRefusal)
        });
        executed.await.map_err(|refused| refused.to_string())
    }
}

impl SimulatedComponents {
    async fn restore(&self, documents: &Documents, pod: &PodName) -> Result<(), String> {
        let new = RestoredMember::of(documents, pod).ok_or("the documents do not have its first member")?;
        let machine = new.machine.clone();
        let made =
            self.0.step(FaultPoint::Order, StepTarget::Network(&machine), move |world| world.make_restored_data(&new));
        made.await.map_err(|refused| refused.to_string())
    }

    /// Asks the first API server of a cluster.
    async fn ask_api<T: Send + 'static>(
        &self,
        documents: &Documents,
        id: &ClusterId,
        answer: impl Fn(&SimulationState) -> T + Send + 'static,
    ) -> ObservedValue<T> {
        let Some(server) = access(documents, id).into_iter().next() else {
            return ObservedValue::unreachable("no API server is placed yet");
        };
        let asked = server.clone();
        let answer = self.0.step(FaultPoint::AskBindings, StepTarget::Network(&server.machine), move |world| {
            world.check_server(&asked)?;
            Ok(answer(world))
        });
        answer.await.map_or_else(|refused| ObservedValue::unreachable(refused.to_string()), ObservedValue::Known)
    }

    /// Checks the rules of every effect in a cluster.
    fn begin_effect(&self, documents: &Documents, what: String) {
        let mut world = self.0.world();
        world.counts.effects += 1;
        if world.pass.stale {
            world.report_violation("nothing is done from stale documents", what.clone());
        }
        if *documents != world.pass.kept {
            world.report_violation("documents are saved before any effect that relies on them", what);
        }
    }
}

impl SimulationState {
    fn check_server(&self, server: &ClusterAccess) -> Result<(), SimulatedRefusal> {
        let well = self.process_at(&server.machine, server.address).is_some_and(|process| self.is_well(process));
        if well { Ok(()) } else { Err(SimulatedRefusal("the API server does not answer".to_owned())) }
    }
}
