//! The config that is in effect, in memory and on disk.

use std::{collections::BTreeMap, sync::Arc};

use keelway_api::{
    hypervisor::Applied,
    machine::{Digest, MachineConfig, PodDigests, config_digest},
    name::{InstallationId, PodName},
};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    FilesError, LocalMachine,
    action::Action,
    converge::Wanted,
    leader::Leader,
    refusal::{self, Refusal},
    report::ApplyReport,
    wire,
};

/// A config, and which one it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) config: MachineConfig,
    pub(super) fence: Applied,
    pub(super) digests: BTreeMap<PodName, PodDigests>,
}

/// A config that says of a pod only that it is as before, and it is not.
#[derive(Debug, thiserror::Error)]
#[error("the config that is in effect has no such {0}: hand over all of them")]
pub(super) struct UnknownPod(PodName);

impl Kept {
    pub(super) fn new(config: MachineConfig) -> Self {
        let digests = config.pod_digests();
        Self::of(config, digests)
    }

    /// A config whose pods are these, and those of the one before that are named with the digests of their content.
    pub(super) fn following(
        before: Option<&Self>,
        mut config: MachineConfig,
        same: BTreeMap<PodName, Digest>,
    ) -> Result<Self, UnknownPod> {
        let mut digests = config.pod_digests();
        for (name, digest) in same {
            let known = before.and_then(|before| Some((before.config.pods.get(&name)?, before.digests.get(&name)?)));
            let Some((pod, known)) = known.filter(|(_, known)| known.content == digest) else {
                return Err(UnknownPod(name));
            };
            digests.insert(name.clone(), known.clone());
            config.pods.insert(name, pod.clone());
        }
        Ok(Self::of(config, digests))
    }

    /// A config goes by the digest that was recorded with its number: a program before this one may have made another one of it.
    fn recorded_as(mut self, applied: Option<&Applied>) -> Self {
        let place = |applied: &Applied| (applied.term, applied.generation);
        if let Some(applied) = applied.filter(|applied| place(applied) == place(&self.fence)) {
            self.fence.digest.clone_from(&applied.digest);
        }
        self
    }

    fn of(config: MachineConfig, digests: BTreeMap<PodName, PodDigests>) -> Self {
        let contents = digests.iter().map(|(name, of)| (name.clone(), of.content)).collect();
        let digest = config_digest(&config.installation, &contents, (&config.others, &config.removals));
        let fence = Applied { term: config.term, generation: config.generation, digest };
        Self { config, fence, digests }
    }

    pub(super) fn wanted(&self) -> Wanted<'_> {
        Wanted { config: &self.config, fence: &self.fence, digests: &self.digests }
    }
}

/// The config on disk could not be read. Nothing is done without it, and nothing is taken away.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the config that is in effect")]
pub struct BookError(#[source] FilesError);

/// Why a config was not taken. The one before stays in effect.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcceptError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the config cannot be kept on disk, and the one before stays in effect")]
    Keep(#[source] FilesError),
}

/// Why a leader is not obeyed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FenceError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("who leads cannot be kept on disk")]
    Keep(#[source] FilesError),
}

pub(super) struct Book {
    machine: Arc<LocalMachine>,
    /// One at a time writes the disk and then the memory.
    writing: Mutex<()>,
    held: watch::Sender<Option<Arc<Kept>>>,
    /// The newest leader that the machine was told of.
    leader: watch::Sender<Option<Leader>>,
}

#[expect(clippy::redundant_closure_for_method_calls, reason = "the methods are not general over their lifetime")]
impl Book {
    /// The config that was in effect when the agent ended last, if there was one.
    pub(super) async fn open(machine: Arc<LocalMachine>) -> Result<Self, BookError> {
        let (bytes, records) =
            machine.with_files(|files| Ok((files.read_config()?, files.records()?))).await.map_err(BookError)?;
        let kept = bytes.and_then(|bytes| match wire::decode_config(&bytes) {
            Ok(config) => Some(Arc::new(Kept::new(config).recorded_as(records.applied.as_ref()))),
            Err(error) => {
                tracing::error!(%error, "the config on disk is of no use; waiting for another one");
                None
            }
        });
        if let Some(Applied { term, generation, .. }) = kept.as_ref().map(|kept| &kept.fence) {
            tracing::info!(term, generation, "going on with the config on disk");
        }
        Ok(Self {
            machine,
            writing: Mutex::default(),
            held: watch::Sender::new(kept),
            leader: watch::Sender::new(records.leader),
        })
    }

    pub(super) fn current(&self) -> Option<Arc<Kept>> {
        self.held.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Option<Arc<Kept>>> {
        self.held.subscribe()
    }

    /// The newest leader of these machines that was heard of; 0 for none.
    pub(super) fn term(&self, installation: &InstallationId) -> u64 {
        self.leader.borrow().as_ref().map_or(0, |leader| leader.term_of(installation))
    }

    /// The newest leader, where it drives the machine of this owner; 0 for none.
    pub(super) fn leads(&self, owner: Option<&InstallationId>) -> u64 {
        let leader = self.leader.borrow();
        let leader = leader.as_ref().filter(|leader| owner.is_none_or(|owner| *owner == leader.installation));
        leader.map_or(0, |leader| leader.term)
    }

    /// Hears of a leader. Returns the newest one that was heard of.
    pub(super) async fn fence(&self, leader: Leader) -> Result<u64, FenceError> {
        let _writing = self.writing.lock().await;
        let records = self.machine.with_files(|files| files.records()).await.map_err(FenceError::Keep)?;
        let kept =
            self.current().filter(|kept| records.owner.as_ref().is_none_or(|owner| *owner == kept.config.installation));
        let obeys = records.owner.as_ref().or(kept.as_ref().map(|kept| &kept.config.installation));
        refusal::check_owner(&leader.installation, obeys)?;
        let known = self.term(&leader.installation).max(kept.as_ref().map_or(0, |kept| kept.fence.term));
        if leader.term <= known {
            return Ok(known);
        }
        // What holds nothing is left as it was found.
        if kept.is_some() {
            let record = leader.clone();
            self.machine.with_files(move |files| files.record_leader(&record)).await.map_err(FenceError::Keep)?;
        }
        tracing::info!(term = leader.term, "obeys another leader");
        let term = leader.term;
        self.leader.send_replace(Some(leader));
        Ok(term)
    }

    /// Takes a config, which is on disk when this returns. The same one again is taken without a word.
    pub(super) async fn accept(&self, new: Kept) -> Result<(), AcceptError> {
        let _writing = self.writing.lock().await;
        let Kept { config, fence, .. } = &new;
        refusal::check_content(config)?;
        let records = self.machine.with_files(|files| files.records()).await.map_err(AcceptError::Keep)?;
        refusal::check_owner(&config.installation, records.owner.as_ref())?;
        refusal::check_order(fence, records.applied.as_ref())?;
        if let Some(kept) = self.current() {
            // Who was adopted by another installation counts anew.
            if records.owner.is_none() || kept.config.installation == config.installation {
                refusal::check_owner(&config.installation, Some(&kept.config.installation))?;
                refusal::check_order(fence, Some(&kept.fence))?;
            }
            if kept.config == *config {
                return Ok(());
            }
        }
        refusal::check_term(config, self.term(&config.installation), None)?;
        let bytes = wire::encode_config(config);
        self.machine.with_files(move |files| files.write_config(&bytes)).await.map_err(AcceptError::Keep)?;
        tracing::info!(term = fence.term, generation = fence.generation, "a config is in effect");
        self.held.send_replace(Some(Arc::new(new)));
        Ok(())
    }

    /// Executes the actions with which a machine is left as it was found, unless there is another config by now.
    pub(super) async fn leave(&self, of: &Kept, actions: Vec<Action>) -> ApplyReport {
        let _writing = self.writing.lock().await;
        if self.current().as_deref() != Some(of) {
            return ApplyReport { left_out: actions, ..ApplyReport::default() };
        }
        let report = self.machine.execute(actions, &CancellationToken::new(), &|_| {}).await;
        if report.is_complete() {
            self.held.send_replace(None);
        }
        report
    }
}
