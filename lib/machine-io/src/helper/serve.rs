//! The helper's own side: its key, and the checks of requests.

use std::{
    fs::{self, File, Permissions},
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{hypervisor::Applied, name::InstallationId};
use keelway_base::error_chain::chain_text;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ConfigFence, HelperIdentity, HelperKeyPair, SealError, SealLabel, SealedWork};
use crate::{
    access::MachineAccess,
    files::{MachineFileError, MachineFiles},
    local::FilesError,
    operation::{MachineIo, MachineOperation, OperationResult, OutOfBounds},
};

/// The response of a helper.
#[derive(Debug, Serialize, Deserialize)]
pub enum HelperResponse {
    /// The operation is done.
    Done(OperationResult),
    /// The operation failed, with a message.
    Failed(String),
    /// The request was refused, with a message.
    Refused(String),
}

/// A helper refuses a request.
#[derive(Debug, thiserror::Error)]
pub enum HelperRefusal {
    /// The request cannot be opened.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The operation is not the one that the label names.
    #[error("the request does not match its label")]
    Label,
    /// The operation would reach beyond its bounds.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The operation changes the machine, and no config requires it.
    #[error("no config requires it")]
    NoConfig,
    /// The machine obeys another installation, or none yet.
    #[error("the machine obeys {}", owner.as_ref().map_or("no installation yet".to_owned(), ToString::to_string))]
    Owner {
        /// The installation that the machine obeys.
        owner: Option<InstallationId>,
    },
    /// A later config was applied before.
    #[error("stale: config {}.{} came before {}.{}", later.term, later.generation, asked.term, asked.generation)]
    Stale {
        /// The later config.
        later: ConfigFence,
        /// The config of the request.
        asked: ConfigFence,
    },
    /// The helper belongs to another installation or machine.
    #[error("this helper belongs to another machine or installation")]
    Another,
    /// The directory of the helper's key cannot be used.
    #[error("cannot use {}", path.display())]
    KeyDirectory {
        /// The path that failed.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// The machine's records cannot be read.
    #[error(transparent)]
    Records(#[from] FilesError),
}

/// The directory of a helper's key: in memory, inside of its own container.
#[derive(Debug)]
pub struct HelperKeyDirectory(PathBuf);

impl HelperKeyDirectory {
    /// Opens this directory, or creates it.
    pub fn at(path: &Path) -> Result<Self, HelperRefusal> {
        match fs::create_dir(path) {
            Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o700)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|source| HelperRefusal::KeyDirectory { path: path.to_owned(), source })?;
        Ok(Self(path.to_owned()))
    }

    /// Returns the public half of the key. The first call creates the key, and stores the identity with it.
    pub fn key(&self, identity: &HelperIdentity) -> Result<String, HelperRefusal> {
        let _lock = self.lock()?;
        let keys = match self.read::<HelperKeyFile>("key")? {
            Some(kept) if kept.identity == *identity => kept.keys()?,
            Some(_) => return Err(HelperRefusal::Another),
            None => {
                let keys = HelperKeyPair::generate();
                let kept = HelperKeyFile { identity: identity.clone(), key: STANDARD.encode(keys.to_bytes()) };
                self.write("key", &kept)?;
                keys
            }
        };
        Ok(STANDARD.encode(keys.public().to_bytes()))
    }

    /// Executes a sealed request on the machine with this root.
    pub async fn serve(&self, root: OwnedFd, label: &str, sealed: &SealedWork) -> HelperResponse {
        let access = MachineAccess::of_root(root);
        let work = match self.verify(&access, label, sealed).await {
            Ok(work) => work,
            Err(refused) => return HelperResponse::Refused(chain_text(&refused)),
        };
        match access.work(work).await {
            Ok(done) => HelperResponse::Done(done),
            Err(error) => HelperResponse::Failed(chain_text(&error)),
        }
    }

    async fn verify(
        &self,
        access: &MachineAccess,
        label: &str,
        sealed: &SealedWork,
    ) -> Result<MachineOperation, HelperRefusal> {
        let kept = self.read::<HelperKeyFile>("key")?.ok_or(SealError::Key)?;
        let work = sealed.open(&kept.keys()?, &kept.identity, label)?;
        let label: SealLabel = serde_json::from_str(label).map_err(|_| SealError::Malformed)?;
        if label.subject != work.subject() {
            return Err(HelperRefusal::Label);
        }
        work.check()?;
        if work.changes() {
            let records = access.with_files(|files| files.records().map(|found| (found.owner, found.applied)));
            let (owner, applied) = records.await?;
            may_change(&work, label.fence, &kept.identity, owner, applied.as_ref())?;
            label.fence.map_or(Ok(()), |fence| self.pass(fence))?;
        }
        Ok(work)
    }

    /// Records the latest config that sent a request, and refuses requests of an older one.
    fn pass(&self, asked: ConfigFence) -> Result<(), HelperRefusal> {
        let _lock = self.lock()?;
        match self.read::<ConfigFence>("fence")? {
            Some(later) if later > asked => Err(HelperRefusal::Stale { later, asked }),
            Some(same) if same == asked => Ok(()),
            Some(_) | None => self.write("fence", &asked),
        }
    }

    fn lock(&self) -> Result<File, HelperRefusal> {
        let path = self.0.join("lock");
        let lock = || {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        lock().map_err(|source| HelperRefusal::KeyDirectory { path: path.clone(), source })
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, HelperRefusal> {
        let path = self.0.join(name);
        let read = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)),
        };
        read.map(Some).map_err(|source| HelperRefusal::KeyDirectory { path, source })
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), HelperRefusal> {
        let (next, path) = (self.0.join(format!(".{name}")), self.0.join(name));
        let write = || {
            let mut file = File::options().create(true).truncate(true).write(true).open(&next)?;
            // The mode is set explicitly, whatever the umask. Other users cannot enter the directory in the meantime.
            file.set_permissions(Permissions::from_mode(0o600))?;
            io::Write::write_all(&mut file, &serde_json::to_vec(value)?)?;
            fs::rename(&next, &path)
        };
        write().map_err(|source| HelperRefusal::KeyDirectory { path: path.clone(), source })
    }
}

/// The stored key of a helper, with its identity.
#[derive(Serialize, Deserialize)]
struct HelperKeyFile {
    identity: HelperIdentity,
    key: String,
}

impl HelperKeyFile {
    fn keys(&self) -> Result<HelperKeyPair, SealError> {
        HelperKeyPair::from_bytes(&STANDARD.decode(&self.key).map_err(|_| SealError::Key)?)
    }
}

/// Checks whether the machine accepts a change from the installation that sealed it.
fn may_change(
    work: &MachineOperation,
    fence: Option<ConfigFence>,
    identity: &HelperIdentity,
    owner: Option<InstallationId>,
    applied: Option<&Applied>,
) -> Result<(), HelperRefusal> {
    let takes = matches!(work, MachineOperation::WriteOwner(_));
    let Some(asked) = fence else {
        // A person adopts a machine without a config.
        return if takes { Ok(()) } else { Err(HelperRefusal::NoConfig) };
    };
    let obeys = owner.as_ref().is_none_or(|owner| *owner == identity.installation);
    if !obeys || (owner.is_none() && !takes && !matches!(work, MachineOperation::LeaveRecords)) {
        return Err(HelperRefusal::Owner { owner });
    }
    let later = applied.map(|applied| ConfigFence { term: applied.term, generation: applied.generation });
    match later.filter(|later| *later > asked) {
        Some(later) => Err(HelperRefusal::Stale { later, asked }),
        None => Ok(()),
    }
}

/// Creates the directories that are mounted into a helper, or removes them if they are empty.
pub fn manage_top_directories(root: &OwnedFd, make: bool) -> Result<(), MachineFileError> {
    let files = MachineFiles::new(std::os::fd::AsFd::as_fd(root));
    if make { files.make_top_directories() } else { files.remove_top_directories() }
}
