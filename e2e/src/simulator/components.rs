//! Simulated components as the pass asks them.

use async_trait::async_trait;
use keelway_api::{Documents, jiff::Timestamp, machine::Seen, name::ClusterId};
use keelway_planner::{Access, Health, Probe, access, bindings_digest};
use keelway_reconciler::Components;

use super::{
    error::Refused,
    fault::Step,
    sim::{Of, Sim},
    world::World,
};

pub(super) struct SimulatedComponents(pub(super) Sim);

#[async_trait]
impl Components for SimulatedComponents {
    async fn health(&self, _documents: &Documents, probe: &Probe) -> Health {
        let (machine, address) = (probe.machine.clone(), probe.address);
        let asked = self.0.step(Step::AskHealth, Of::Network(&probe.machine), move |world| {
            match world.process_at(&machine, address) {
                Some(process) if world.is_well(process) => Ok(()),
                Some(_) => Err(Refused("it answers that it is not well".to_owned())),
                None => Err(Refused("connection refused".to_owned())),
            }
        });
        let health = match asked.await {
            Ok(()) => Health::Healthy,
            Err(refused) => Health::Unhealthy(refused.to_string()),
        };
        self.0.world().pass.seen.health.insert(probe.component.clone(), health.clone());
        health
    }

    async fn bindings(&self, documents: &Documents, id: &ClusterId) -> Seen<String> {
        let seen = match access(documents, id).into_iter().next() {
            None => Seen::unreachable("an API server with a place"),
            Some(server) => {
                let (asked, of) = (server.clone(), id.clone());
                let bindings = self.0.step(Step::AskBindings, Of::Network(&server.machine), move |world| {
                    world.check_server(&asked)?;
                    Ok(world.bindings.get(&of).cloned().unwrap_or_default())
                });
                bindings.await.map_or_else(|refused| Seen::unreachable(refused.to_string()), Seen::Known)
            }
        };
        self.0.world().pass.seen.bindings.insert(id.clone(), seen.clone());
        seen
    }

    async fn bind(&self, documents: &Documents, id: &ClusterId, _now: Timestamp) -> Result<(), String> {
        {
            let mut world = self.0.world();
            world.counts.effects += 1;
            if world.pass.stale {
                world.breaks("nothing is done from stale documents", id.to_string());
            }
            if *documents != world.pass.kept {
                world.breaks("documents are saved before any effect that relies on them", id.to_string());
            }
        }
        let server = access(documents, id).into_iter().next().ok_or("no API server")?;
        let (asked, of) = (server.clone(), id.clone());
        let bound = self.0.step(Step::Bind, Of::Network(&server.machine), move |world| {
            world.check_server(&asked)?;
            world.bindings.insert(of.clone(), bindings_digest());
            Ok(())
        });
        bound.await.map_err(|refused| refused.to_string())
    }
}

impl World {
    fn check_server(&self, server: &Access) -> Result<(), Refused> {
        let well = self.process_at(&server.machine, server.address).is_some_and(|process| self.is_well(process));
        if well { Ok(()) } else { Err(Refused("the API server does not answer".to_owned())) }
    }
}
