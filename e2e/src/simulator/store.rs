//! A store of documents in memory.

use async_trait::async_trait;
use keelway_api::Documents;
use keelway_reconciler::{Store, StoreError};

use super::{
    bug::Bug,
    error::Refused,
    fault::Step,
    sim::{Of, Sim},
    world::{Pass, World},
};

pub(super) struct SimulatedStore(pub(super) Sim);

#[async_trait]
impl Store for SimulatedStore {
    async fn load(&self) -> Result<Documents, StoreError> {
        let loaded = self.0.step(Step::Load, Of::Store, |world| Ok(load(world))).await;
        loaded.map_err(|refused| failed("load", refused))
    }

    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        let documents = {
            let mut world = self.0.world();
            let documents = world.mistaken(documents.clone());
            world.check_documents(&documents);
            documents
        };
        let saved = self.0.step(Step::Save, Of::Store, move |world| {
            save(world, &documents);
            Ok(())
        });
        match saved.await {
            Err(_) if self.0.world().bug == Some(Bug::IgnoresFailedSaves) => Ok(()),
            saved => saved.map_err(|refused| failed("save", refused)),
        }
    }
}

fn load(world: &mut World) -> Documents {
    if let Some(late) = world.unsaved.take() {
        world.saved = late;
    }
    world.counts.passes += 1;
    let number = world.counts.passes;
    world.tell(format!("pass {number}"));
    world.pass = Pass { loaded: world.saved.clone(), ..Pass::default() };
    let mut documents = world.saved.clone();
    if world.bug == Some(Bug::BearsTwice) {
        for status in documents.clusters.values_mut().filter_map(|cluster| cluster.status.as_mut()) {
            status.etcd = None;
        }
    }
    documents
}

fn save(world: &mut World, documents: &Documents) {
    world.pass.configs = None;
    if world.bug == Some(Bug::SavesAfterwards) {
        world.unsaved = Some(documents.clone());
    } else {
        world.saved = documents.clone();
    }
}

fn failed(operation: &'static str, refused: Refused) -> StoreError {
    StoreError { operation, cause: Box::new(refused) }
}
