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

use super::{Fence, Identity, Keys, Label, SealError, Sealed};
use crate::{
    access::Access,
    files::{FileError, Files},
    local::FilesError,
    report::chain_text,
    site::{Done, OutOfBounds, Site, Work},
};

/// What a helper says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done(Done),
    /// It was not, in words for people.
    Failed(String),
    /// It will not be, in words for people.
    Refused(String),
}

/// Why a helper does not do what it is handed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
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
        later: Fence,
        /// The one that asks.
        asked: Fence,
    },
    /// It is another one's already.
    #[error("this helper is another machine's or installation's")]
    Another,
    /// Its own files cannot be used.
    #[error("cannot use {}", path.display())]
    Home {
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
pub struct Home(PathBuf);

impl Home {
    /// In this directory, which is made where it is not there.
    pub fn at(path: &Path) -> Result<Self, Refused> {
        match fs::create_dir(path) {
            Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o700)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|source| Refused::Home { path: path.to_owned(), source })?;
        Ok(Self(path.to_owned()))
    }

    /// The public half of the key, which is made when it is asked for the first time: by whom, and for which machine, is kept
    /// with it.
    pub fn key(&self, identity: &Identity) -> Result<String, Refused> {
        let _lock = self.lock()?;
        let keys = match self.read::<Kept>("key")? {
            Some(kept) if kept.identity == *identity => kept.keys()?,
            Some(_) => return Err(Refused::Another),
            None => {
                let keys = Keys::generate();
                let kept = Kept { identity: identity.clone(), key: STANDARD.encode(keys.to_bytes()) };
                self.write("key", &kept)?;
                keys
            }
        };
        Ok(STANDARD.encode(keys.public().to_bytes()))
    }

    /// Does what it is handed, on the machine with that root.
    pub async fn serve(&self, root: OwnedFd, label: &str, sealed: &Sealed) -> Answer {
        let access = Access::of_root(root);
        let work = match self.judge(&access, label, sealed).await {
            Ok(work) => work,
            Err(refused) => return Answer::Refused(chain_text(&refused)),
        };
        match access.work(work).await {
            Ok(done) => Answer::Done(done),
            Err(error) => Answer::Failed(chain_text(&error)),
        }
    }

    async fn judge(&self, access: &Access, label: &str, sealed: &Sealed) -> Result<Work, Refused> {
        let kept = self.read::<Kept>("key")?.ok_or(SealError::Key)?;
        let work = sealed.open(&kept.keys()?, &kept.identity, label)?;
        let label: Label = serde_json::from_str(label).map_err(|_| SealError::Malformed)?;
        if label.subject != work.subject() {
            return Err(Refused::Label);
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
    fn pass(&self, asked: Fence) -> Result<(), Refused> {
        let _lock = self.lock()?;
        match self.read::<Fence>("fence")? {
            Some(later) if later > asked => Err(Refused::Stale { later, asked }),
            Some(same) if same == asked => Ok(()),
            Some(_) | None => self.write("fence", &asked),
        }
    }

    fn lock(&self) -> Result<File, Refused> {
        let path = self.0.join("lock");
        let lock = || {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        lock().map_err(|source| Refused::Home { path: path.clone(), source })
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Refused> {
        let path = self.0.join(name);
        let read = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)),
        };
        read.map(Some).map_err(|source| Refused::Home { path, source })
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), Refused> {
        let (next, path) = (self.0.join(format!(".{name}")), self.0.join(name));
        let write = || {
            let mut file = File::options().create(true).truncate(true).write(true).open(&next)?;
            // The directory is closed to all others, whatever the umask.
            file.set_permissions(Permissions::from_mode(0o600))?;
            io::Write::write_all(&mut file, &serde_json::to_vec(value)?)?;
            fs::rename(&next, &path)
        };
        write().map_err(|source| Refused::Home { path: path.clone(), source })
    }
}

/// What a helper keeps.
#[derive(Serialize, Deserialize)]
struct Kept {
    identity: Identity,
    key: String,
}

impl Kept {
    fn keys(&self) -> Result<Keys, SealError> {
        Keys::from_bytes(&STANDARD.decode(&self.key).map_err(|_| SealError::Key)?)
    }
}

/// Whether the machine takes a change from whoever sealed it.
fn may_change(
    work: &Work,
    fence: Option<Fence>,
    identity: &Identity,
    owner: Option<InstallationId>,
    applied: Option<&Applied>,
) -> Result<(), Refused> {
    let takes = matches!(work, Work::WriteOwner(_));
    let Some(asked) = fence else {
        // A machine is taken over by a person, who has no config for it yet.
        return if takes { Ok(()) } else { Err(Refused::NoConfig) };
    };
    let obeys = owner.as_ref().is_none_or(|owner| *owner == identity.installation);
    if !obeys || (owner.is_none() && !takes && !matches!(work, Work::LeaveRecords)) {
        return Err(Refused::Owner { owner });
    }
    let later = applied.map(|applied| Fence { term: applied.term, generation: applied.generation });
    match later.filter(|later| *later > asked) {
        Some(later) => Err(Refused::Stale { later, asked }),
        None => Ok(()),
    }
}

/// Makes, or leaves, the directories that are mounted into a helper.
pub fn tops(root: &OwnedFd, make: bool) -> Result<(), FileError> {
    let files = Files::new(std::os::fd::AsFd::as_fd(root));
    if make { files.make_tops() } else { files.leave_tops() }
}
