//! A store of documents in memory.

use std::sync::Arc;

use async_trait::async_trait;
use keelway_api::{Documents, ReadOptions, hypervisor::Applied};
use keelway_reconciler::{Store, StoreError};
use tokio::time::Instant;

use super::{
    bug::Bug,
    error::SimulatedRefusal,
    fault::FaultPoint,
    fault_steps::{Sim, StepTarget},
    state::{Pass, SimulationState},
};

pub(super) struct SimulatedStore(pub(super) Sim);

#[async_trait]
impl Store for SimulatedStore {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        let loaded = self.0.step(FaultPoint::Load, StepTarget::Store, load).await;
        loaded.map(Arc::new).map_err(|refused| failed("load", refused))
    }

    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        let documents = {
            let mut world = self.0.world();
            let documents = world.alter_documents(documents.clone());
            world.check_documents(&documents);
            documents
        };
        let saved = self.0.step(FaultPoint::Save, StepTarget::Store, move |world| save(world, &documents));
        match saved.await {
            Err(_) if self.0.world().bug == Some(Bug::IgnoresFailedSaves) => Ok(()),
            saved => saved.map_err(|refused| failed("save", refused)),
        }
    }
}

fn load(world: &mut SimulationState) -> Result<Documents, SimulatedRefusal> {
    if let Some(late) = world.unsaved.take() {
        world.saved = late;
    }
    world.counts.passes += 1;
    let number = world.counts.passes;
    world.trace_line(format!("pass {number}"));
    world.restore_missing_secrets();
    world.read_manual_edit()?;
    if world.bug == Some(Bug::EndedAuthorityStopsAll) && !world.clusters_whose_authority_ended().is_empty() {
        return Err(SimulatedRefusal("an authority has ended".to_owned()));
    }
    world.restore_stale_documents();
    world.plant_in_rollouts();
    world.plant_trust_afterwards();
    world.plant_in_sleeps();
    let old = std::mem::take(&mut world.uses_old_documents).then(|| world.old_documents()).flatten();
    if old.is_some() {
        world.trace_line("a person uses old documents");
    }
    let stale = old.is_some();
    let mut documents = old.unwrap_or_else(|| world.saved.clone());
    let loaded_at = world.now();
    world.pass = Pass { loaded: documents.clone(), loaded_at, kept: documents.clone(), stale, ..Pass::default() };
    if world.bug == Some(Bug::BearsTwice) {
        for status in documents.clusters.values_mut().filter_map(|cluster| cluster.status.as_mut()) {
            status.etcd = None;
        }
    }
    Ok(documents)
}

/// Saves documents. The save fails if a person has changed the documents since the load.
fn save(world: &mut SimulationState, documents: &Documents) -> Result<(), SimulatedRefusal> {
    world.pass.configs = None;
    if world.bug == Some(Bug::SavesAfterwards) {
        world.unsaved = Some(documents.clone());
        return Ok(());
    }
    if !world.pass.stale {
        if world.saved != world.pass.kept || world.manual_edit.is_some() {
            return Err(SimulatedRefusal("the documents were changed by somebody else".to_owned()));
        }
        let documents =
            &if std::mem::take(&mut world.cuts_save) { world.cut_off(documents) } else { documents.clone() };
        let before = std::mem::replace(&mut world.saved, documents.clone());
        world.history.push(before);
    }
    world.pass.kept = documents.clone();
    Ok(())
}

impl SimulationState {
    /// Returns the documents after only some of the changes of a save.
    fn cut_off(&mut self, documents: &Documents) -> Documents {
        let steps = documents.steps_since(&self.saved);
        let whole = self.random.pick(0..=steps.len()).unwrap_or_default();
        let (mut saved, mut made) = (self.saved.clone(), 0);
        for (number, step) in steps.iter().enumerate().take(whole + 1) {
            for change in step {
                // Of the interrupted step, any subset of the changes may have been made.
                if number < whole || self.random.one_in(2) {
                    saved.make(change, documents);
                    made += 1;
                }
            }
        }
        self.trace_line(format!("{made} of {} changes are saved", steps.iter().flatten().count()));
        let asked = ReadOptions { is_complete_world: true, ..ReadOptions::default() };
        // Documents that a person made invalid stay so.
        let was_sound = || Documents::read_with(self.saved.write().as_bytes(), asked).is_ok();
        if !saved.is_empty()
            && let Err(faults) = Documents::read_with(saved.write().as_bytes(), asked)
            && (self.saved.is_empty() || was_sound())
        {
            self.report_violation("a save that is cut off leaves sound documents", faults.to_string());
        }
        saved
    }

    /// Returns old documents, if each machine responds and more than half of the machines have seen newer ones.
    pub(super) fn old_documents(&self) -> Option<Documents> {
        let now = Instant::now();
        if !self.machines.values().all(|machine| machine.answers(now) && machine.strangers.owner.is_none()) {
            return None;
        }
        let hold_newer = |documents: &&Documents| {
            let newer = documents.hypervisors.iter().filter(|(name, document)| {
                let status = document.status.as_ref();
                let issued = status.and_then(|status| status.issued.as_ref());
                let disk = self.machines.get(*name).map(|machine| &machine.disk);
                let same_owner = disk
                    .is_some_and(|disk| disk.owner.as_ref() == status.and_then(|status| status.installation.as_ref()));
                let applied = disk.and_then(|disk| disk.applied.as_ref());
                let place = |applied: &Applied| (applied.term, applied.generation);
                same_owner && applied.is_some_and(|applied| issued.is_none_or(|issued| place(issued) < place(applied)))
            });
            newer.count() * 2 > documents.hypervisors.len()
        };
        self.history.iter().rev().find(hold_newer).cloned()
    }
}

fn failed(operation: &'static str, refused: SimulatedRefusal) -> StoreError {
    StoreError { operation, cause: Box::new(refused) }
}
