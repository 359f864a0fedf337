//! The config in effect, in memory and on disk.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex as StdMutex, PoisonError},
};

use keelway_agent_api::wire::{self, RevisedConfig, WireError};
use keelway_api::{
    hypervisor::Applied,
    machine::{ConfigFormat, MachineConfig, PodDigests, config_digest},
    name::{InstallationId, PodName},
};
use keelway_base::error_chain::chain_text;
use keelway_machine::{
    action::Action,
    converge::DesiredConfig,
    leader::Leader,
    refusal::{self, ConfigRefusal},
    report::ApplyReport,
};
use keelway_machine_io::{
    files::{MachineFileError, ObservedFiles},
    local::{FilesError, LocalMachine},
};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use super::accepted_config::AcceptedConfigRecord;

/// A config with its fence and digests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredConfig {
    pub(super) config: MachineConfig,
    pub(super) fence: Applied,
    pub(super) digests: BTreeMap<PodName, PodDigests>,
}

/// A config from the driver that this agent cannot use.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnfitConfig {
    /// The driver left out the content of a pod as unchanged, but the agent has no pod with that content.
    #[error("the config in effect has no such {0}: send all of them")]
    UnknownPod(PodName),
    #[error("the config has fields that this agent does not support: upgrade keelway-hypervisor-agent")]
    OtherDigest,
}

impl StoredConfig {
    /// Returns a config that a driver sent under a digest. Pods in `same` are copied from the config before it, if their content has the same digest.
    pub(super) fn sent(
        before: Option<&Self>,
        (mut config, mut digests): (MachineConfig, BTreeMap<PodName, PodDigests>),
        same: BTreeMap<PodName, Vec<u8>>,
        digest: String,
    ) -> Result<Self, UnfitConfig> {
        for (name, digest) in same {
            let known = before.and_then(|before| Some((before.config.pods.get(&name)?, before.digests.get(&name)?)));
            let Some((pod, known)) = known.filter(|(_, known)| known.content == digest) else {
                return Err(UnfitConfig::UnknownPod(name));
            };
            digests.insert(name.clone(), known.clone());
            config.pods.insert(name, pod.clone());
        }
        // For a config of v0.1.0, only the digest shows whether the agent knows all of its fields.
        if config.format == ConfigFormat::One && of_format_1(&config, &digests) != digest {
            return Err(UnfitConfig::OtherDigest);
        }
        Ok(Self::of((config, digests), digest))
    }

    /// Returns a config that was read from disk. A config of v0.1.0 has no digest, so the digest that was recorded with its number is used.
    fn stored(
        (config, digests, digest): (MachineConfig, BTreeMap<PodName, PodDigests>, Option<String>),
        applied: Option<&Applied>,
    ) -> Self {
        let place = (config.term, config.generation);
        let recorded = applied.filter(|applied| (applied.term, applied.generation) == place);
        let recorded = || recorded.map(|applied| applied.digest.clone());
        let digest = digest.or_else(recorded).unwrap_or_else(|| of_format_1(&config, &digests));
        Self::of((config, digests), digest)
    }

    /// Returns the config in the form that drivers send.
    pub(super) fn revised(&self) -> RevisedConfig<'_> {
        RevisedConfig { config: &self.config, digests: &self.digests }
    }

    fn of((config, digests): (MachineConfig, BTreeMap<PodName, PodDigests>), digest: String) -> Self {
        let fence = Applied { term: config.term, generation: config.generation, digest };
        Self { config, fence, digests }
    }

    pub(super) fn wanted(&self) -> DesiredConfig<'_> {
        DesiredConfig { config: &self.config, fence: &self.fence, digests: &self.digests }
    }
}

/// Returns the digest of a config of v0.1.0, which agents of that release computed themselves.
fn of_format_1(config: &MachineConfig, digests: &BTreeMap<PodName, PodDigests>) -> String {
    let contents = digests.iter().map(|(name, of)| (name.clone(), of.content.as_slice())).collect();
    config_digest(ConfigFormat::One, &config.installation, &contents, (&config.others, &config.removals))
}

/// The machine's records could not be read. Without them the agent changes nothing.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the machine's records")]
pub struct ConfigStoreError(#[source] FilesError);

/// The config on disk cannot be used.
#[derive(Debug, thiserror::Error)]
enum UnreadableConfig {
    #[error(transparent)]
    Read(#[from] MachineFileError),
    #[error("it does not exist")]
    Missing,
    #[error("this release cannot decode it")]
    Decode(#[from] WireError),
}

/// An accepted config that cannot be read. Until the driver sends another config, its running pods continue.
#[derive(Debug)]
pub(super) struct LostConfig {
    why: UnreadableConfig,
    /// The part of the config that is known from [`AcceptedConfigRecord`].
    pub(super) known: Option<StoredConfig>,
}

impl LostConfig {
    /// Returns the failure that the agent reports until it has another config.
    pub(super) fn failure(&self) -> String {
        let why = chain_text(&self.why);
        format!(
            "cannot read the stored config ({why}); running components are kept running until the config is sent again"
        )
    }
}

/// A config was not accepted. The config before it stays in effect.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcceptError {
    #[error(transparent)]
    Refused(#[from] ConfigRefusal),
    #[error("cannot store the config on disk; the previous config stays in effect")]
    Keep(#[source] FilesError),
}

/// A leader was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum FenceError {
    #[error(transparent)]
    Refused(#[from] ConfigRefusal),
    #[error("cannot store the driver's term on disk")]
    Keep(#[source] FilesError),
}

/// The config cannot be returned to a caller.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    #[error(transparent)]
    Refused(#[from] ConfigRefusal),
    #[error("{0}")]
    Unreadable(String),
    #[error("cannot read the machine's records")]
    Records(#[source] FilesError),
}

pub(super) struct ConfigStore {
    machine: Arc<LocalMachine>,
    /// Serializes changes, which write the disk first and then the memory.
    writing: Mutex<()>,
    held: watch::Sender<Option<Arc<StoredConfig>>>,
    /// Cleared once another config is in effect.
    lost: StdMutex<Option<Arc<LostConfig>>>,
    /// The newest leader that a driver announced.
    leader: watch::Sender<Option<Leader>>,
}

#[expect(clippy::redundant_closure_for_method_calls, reason = "the methods are not general over their lifetime")]
impl ConfigStore {
    /// Reads the config that was in effect when the agent stopped, if there was one.
    pub(super) async fn open(machine: Arc<LocalMachine>) -> Result<Self, ConfigStoreError> {
        let read = |files: keelway_machine_io::files::MachineFiles<'_>| {
            Ok((files.read_config(), files.read_taken(), files.records()?))
        };
        let (config, taken, records) = machine.with_files(read).await.map_err(ConfigStoreError)?;
        let is_recorded = matches!(taken, Ok(Some(_)));
        let (kept, lost) = match read_config(config, taken, &records) {
            Ok(kept) => (kept.map(Arc::new), None),
            Err(lost) => (None, Some(Arc::<LostConfig>::from(lost))),
        };
        if let Some(kept) = &kept {
            let Applied { term, generation, .. } = kept.fence;
            tracing::info!(term, generation, "continuing with the config on disk");
            if !is_recorded {
                record_taken(&machine, kept).await;
            }
        }
        if let Some(lost) = &lost {
            tracing::error!(failure = lost.failure(), "waiting for another config");
        }
        Ok(Self {
            machine,
            writing: Mutex::default(),
            held: watch::Sender::new(kept),
            lost: StdMutex::new(lost),
            leader: watch::Sender::new(records.leader),
        })
    }

    /// Returns the last accepted config if it cannot be read.
    pub(super) fn lost_config(&self) -> Option<Arc<LostConfig>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn current(&self) -> Option<Arc<StoredConfig>> {
        self.held.borrow().clone()
    }

    /// Returns the config to a driver of the installation that the machine obeys and that the config belongs to. The config contains keys, so no
    /// other driver gets it.
    pub(super) async fn config_for(
        &self,
        installation: &InstallationId,
    ) -> Result<Option<Arc<StoredConfig>>, ConfigError> {
        let records = self.machine.with_files(|files| files.records()).await.map_err(ConfigError::Records)?;
        refusal::check_owner(installation, records.owner.as_ref())?;
        if let Some(lost) = self.lost_config() {
            return Err(ConfigError::Unreadable(lost.failure()));
        }
        let kept = self.current();
        refusal::check_owner(installation, kept.as_ref().map(|kept| &kept.config.installation))?;
        Ok(kept)
    }

    pub(super) fn watch(&self) -> watch::Receiver<Option<Arc<StoredConfig>>> {
        self.held.subscribe()
    }

    /// Returns the term of the newest known leader of this installation, or 0.
    pub(super) fn term(&self, installation: &InstallationId) -> u64 {
        self.leader.borrow().as_ref().map_or(0, |leader| leader.term_of(installation))
    }

    /// Returns the term of the newest known leader if it drives the machine of this owner, or 0.
    pub(super) fn leader_term(&self, owner: Option<&InstallationId>) -> u64 {
        let leader = self.leader.borrow();
        let leader = leader.as_ref().filter(|leader| owner.is_none_or(|owner| *owner == leader.installation));
        leader.map_or(0, |leader| leader.term)
    }

    /// Accepts a leader if its term is later than all known terms. Returns the latest known term.
    pub(super) async fn fence(&self, leader: Leader) -> Result<u64, FenceError> {
        let _writing = self.writing.lock().await;
        let records = self.machine.with_files(|files| files.records()).await.map_err(FenceError::Keep)?;
        let (kept, lost) = (self.current(), self.lost_config());
        let taken = kept.as_deref().or(lost.as_deref().and_then(|lost| lost.known.as_ref()));
        let taken =
            taken.filter(|taken| records.owner.as_ref().is_none_or(|owner| *owner == taken.config.installation));
        let obeys = records.owner.as_ref().or(taken.map(|taken| &taken.config.installation));
        refusal::check_owner(&leader.installation, obeys)?;
        let known = self.term(&leader.installation).max(taken.map_or(0, |taken| taken.fence.term));
        if leader.term <= known {
            return Ok(known);
        }
        // A machine without a config has no records, and gets none here.
        if taken.is_some() || lost.is_some() {
            let record = leader.clone();
            self.machine.with_files(move |files| files.record_leader(&record)).await.map_err(FenceError::Keep)?;
        }
        tracing::info!(term = leader.term, "obeys another leader");
        let term = leader.term;
        self.leader.send_replace(Some(leader));
        Ok(term)
    }

    /// Accepts a config. When this returns, the config is on disk. Accepting the same config again changes nothing.
    pub(super) async fn accept(&self, new: StoredConfig) -> Result<(), AcceptError> {
        let _writing = self.writing.lock().await;
        let StoredConfig { config, fence, digests } = &new;
        refusal::check_content(config)?;
        let records = self.machine.with_files(|files| files.records()).await.map_err(AcceptError::Keep)?;
        refusal::check_owner(&config.installation, records.owner.as_ref())?;
        refusal::check_order(fence, records.applied.as_ref())?;
        let (kept, lost) = (self.current(), self.lost_config());
        let taken = kept.as_deref().or(lost.as_deref().and_then(|lost| lost.known.as_ref()));
        // A machine that another installation adopted starts with new numbers.
        if let Some(taken) =
            taken.filter(|taken| records.owner.is_none() || taken.config.installation == config.installation)
        {
            refusal::check_owner(&config.installation, Some(&taken.config.installation))?;
            refusal::check_order(fence, Some(&taken.fence))?;
        }
        if kept.as_deref() == Some(&new) {
            return Ok(());
        }
        // The config that cannot be read may be sent again under its own number.
        let repeated = lost.as_deref().and(taken.map(|taken| &taken.fence).or(records.applied.as_ref()));
        refusal::check_term(config, self.term(&config.installation), repeated)?;
        let (taken, bytes) = (AcceptedConfigRecord::of(&new), wire::encode_stored((config, digests), &fence.digest));
        let write = move |files: keelway_machine_io::files::MachineFiles<'_>| {
            files.write_taken(&taken)?;
            files.write_config(&bytes)
        };
        self.machine.with_files(write).await.map_err(AcceptError::Keep)?;
        tracing::info!(term = fence.term, generation = fence.generation, "a config is in effect");
        self.held.send_replace(Some(Arc::new(new)));
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// Executes the actions that remove everything from the machine, unless another config is in effect.
    pub(super) async fn leave(&self, of: &StoredConfig, actions: Vec<Action>) -> ApplyReport {
        let _writing = self.writing.lock().await;
        if self.current().as_deref() != Some(of) {
            return ApplyReport { left_out: actions, ..ApplyReport::default() };
        }
        let report = self.machine.execute(actions, &CancellationToken::new(), &|_| {}).await;
        if report.is_complete() {
            self.machine.fetches.clear();
            self.held.send_replace(None);
        }
        report
    }
}

/// Returns the config on disk, if the agent accepted one.
fn read_config(
    config: Result<Option<Vec<u8>>, MachineFileError>,
    taken: Result<Option<Vec<u8>>, MachineFileError>,
    records: &ObservedFiles,
) -> Result<Option<StoredConfig>, Box<LostConfig>> {
    let taken = match taken.map(|bytes| bytes.map(|bytes| serde_json::from_slice::<AcceptedConfigRecord>(&bytes))) {
        Ok(None) => None,
        Ok(Some(Ok(taken))) => Some(taken),
        Ok(Some(Err(error))) => {
            tracing::warn!(%error, "cannot read the record of the last accepted config");
            None
        }
        Err(error) => {
            tracing::warn!(why = chain_text(&error), "cannot read the record of the last accepted config");
            None
        }
    };
    let decoded = match config {
        Ok(None) if taken.is_none() => return Ok(None),
        Ok(None) => Err(UnreadableConfig::Missing),
        Ok(Some(bytes)) => wire::decode_stored(&bytes).map_err(UnreadableConfig::Decode),
        Err(error) => Err(UnreadableConfig::Read(error)),
    };
    match decoded {
        Ok(stored) => Ok(Some(StoredConfig::stored(stored, records.applied.as_ref()))),
        Err(why) => Err(Box::new(LostConfig { why, known: taken.map(AcceptedConfigRecord::into_kept) })),
    }
}

/// Writes the record that releases before this one did not write.
async fn record_taken(machine: &LocalMachine, kept: &StoredConfig) {
    let taken = AcceptedConfigRecord::of(kept);
    if let Err(error) = machine.with_files(move |files| files.write_taken(&taken)).await {
        tracing::warn!(why = chain_text(&error), "cannot record the last accepted config");
    }
}
