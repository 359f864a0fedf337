//! The helper's own side: its key, and whether it does what it is handed.

use std::{
    fs::{self, File, Permissions},
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{hypervisor::Applied, name::InstallationId};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ConfigFence, HelperIdentity, HelperKeyPair, SealError, SealLabel, SealedWork};
use crate::{
    access::MachineAccess,
    files::{MachineFileError, MachineFiles},
    local::FilesError,
    machine_io::{MachineIo, MachineOperation, OperationResult, OutOfBounds},
    report::chain_text,
};

/// What a helper says.
#[derive(Debug, Serialize, Deserialize)]
pub enum HelperResponse {
    /// It is done.
    Done(OperationResult),
    /// It was not, in words for people.
    Failed(String),
    /// It will not be, in words for people.
    Refused(String),
}

/// Why a helper does not do what it is handed.
#[derive(Debug, thiserror::Error)]
pub enum HelperRefusal {
    /// It cannot be opened.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// It is something else than it says it is.
    #[error("it is something else than its label says")]
    Label,
    /// It would reach further than it may.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// No config asks for it.
    #[error("no config asks for it")]
    NoConfig,
    /// The machine obeys somebody else.
    #[error("the machine obeys {}", owner.as_ref().map_or("nobody yet".to_owned(), ToString::to_string))]
    Owner {
        /// Whom.
        owner: Option<InstallationId>,
    },
    /// A later config came before.
    #[error("stale: config {}.{} came before {}.{}", later.term, later.generation, asked.term, asked.generation)]
    Stale {
        /// The later one.
        later: ConfigFence,
        /// The one that asks.
        asked: ConfigFence,
    },
    /// It is another one's already.
    #[error("this helper is another machine's or installation's")]
    Another,
    /// Its own files cannot be used.
    #[error("cannot use {}", path.display())]
    KeyDirectory {
        /// Which.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The machine's records cannot be read.
    #[error(transparent)]
    Records(#[from] FilesError),
}

/// Where a helper keeps its key: a directory in memory, of its own container.
#[derive(Debug)]
pub struct HelperKeyDirectory(PathBuf);

impl HelperKeyDirectory {
    /// In this directory, which is made where it is not there.
    pub fn at(path: &Path) -> Result<Self, HelperRefusal> {
        match fs::create_dir(path) {
            Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o700)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|source| HelperRefusal::KeyDirectory { path: path.to_owned(), source })?;
        Ok(Self(path.to_owned()))
    }

    /// The public half of the key, which is made when it is asked for the first time: by whom, and for which machine, is kept
    /// with it.
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

    /// Does what it is handed, on the machine with that root.
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

    /// Remembers the latest config that asked for something: an older one comes too late.
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
            // The directory is closed to all others, whatever the umask.
            file.set_permissions(Permissions::from_mode(0o600))?;
            io::Write::write_all(&mut file, &serde_json::to_vec(value)?)?;
            fs::rename(&next, &path)
        };
        write().map_err(|source| HelperRefusal::KeyDirectory { path: path.clone(), source })
    }
}

/// What a helper keeps.
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

/// Whether the machine takes a change from whoever sealed it.
fn may_change(
    work: &MachineOperation,
    fence: Option<ConfigFence>,
    identity: &HelperIdentity,
    owner: Option<InstallationId>,
    applied: Option<&Applied>,
) -> Result<(), HelperRefusal> {
    let takes = matches!(work, MachineOperation::WriteOwner(_));
    let Some(asked) = fence else {
        // A machine is taken over by a person, who has no config for it yet.
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

/// Makes, or leaves, the directories that are mounted into a helper.
pub fn manage_top_directories(root: &OwnedFd, make: bool) -> Result<(), MachineFileError> {
    let files = MachineFiles::new(std::os::fd::AsFd::as_fd(root));
    if make { files.make_top_directories() } else { files.remove_top_directories() }
}
