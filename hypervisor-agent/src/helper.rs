//! A machine without an agent: a container on it does what has to be done beside its runtime.
//!
//! It runs one static program that waits. What is asked of it comes as arguments of commands in it (ExecSync has no stdin),
//! sealed to a key that the container made and that never leaves it: arguments are seen by the runtime, its logs and every
//! process of the machine.

mod logs;
mod pod;
mod seal;
pub mod serve;
#[cfg(test)]
mod tests;

use std::{io, path::Path, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_cri::{self as cri, CriRuntime};

use crate::{
    execute::EffectError,
    local::FilesError,
    machine_io::{HttpQuery, MachineIo, MachineOperation, OperationResult},
    report::chain_text,
};

pub use seal::{ConfigFence, HelperIdentity, HelperKeyPair, HelperPublicKey, SealError, SealLabel, SealedWork};
use serve::HelperResponse;

/// How long one thing may take: as long as on a machine's own files, and the longest wait for a log.
const DEADLINE: Duration = Duration::from_secs(120);
/// The longest argument of a program, with room for the NUL that ends it (`MAX_ARG_STRLEN` of Linux: 128 KiB).
const ARGUMENT: usize = 120 << 10;
/// The most of all arguments together, in bytes. Linux takes a quarter of the stack's limit, 2 MiB as a rule.
const ARGUMENTS: usize = 1800 << 10;

/// Why a machine's helper did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The runtime does not run it, or does not pass things on to it.
    #[error("the machine's helper cannot be reached")]
    Runtime(#[from] cri::CriError),
    /// Its image does not come to the machine.
    #[error("the image of the machine's helper cannot be had")]
    Image(#[source] Box<EffectError>),
    /// It takes nothing from whoever asks.
    #[error("the machine's helper refuses: {0}")]
    Refused(String),
    /// It could not do it.
    #[error("{0}")]
    Failed(String),
    /// It ended without an answer.
    #[error("the machine's helper ended with {code}: {text}")]
    Ended {
        /// Its exit code.
        code: i32,
        /// Its last words.
        text: String,
    },
    /// Its answer means nothing here.
    #[error("the answer of the machine's helper makes no sense")]
    Answer,
    /// What it was to be handed does not fit into arguments of a program.
    #[error(
        "{subject}: {bytes} bytes are more than a machine without an agent takes at once: run keelway-hypervisor-agent on it"
    )]
    TooLong {
        /// What it is about.
        subject: String,
        /// How long it is.
        bytes: usize,
    },
    /// Nobody takes what a log says.
    #[error("cannot write what a log says")]
    Write(#[source] io::Error),
    /// It could not be sealed.
    #[error("cannot seal what the machine's helper is to do")]
    Seal(#[from] SealError),
}

/// The helper of a machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Helper {
    runtime: CriRuntime,
    sandbox: String,
    container: String,
    identity: HelperIdentity,
    key: HelperPublicKey,
    fence: Option<ConfigFence>,
}

impl Helper {
    /// The helper of an installation on a machine: the one that runs, else a new one. Its image comes from the directory `archives`
    /// where that has it, else from its registry.
    pub async fn start(runtime: &CriRuntime, archives: &Path, identity: HelperIdentity) -> Result<Self, HelperError> {
        let pod = pod::ensure(runtime, archives, &identity).await?;
        let words = ["key", identity.installation.as_str(), identity.machine.as_str()].map(str::to_owned);
        let said = run(runtime, &pod.container, &words).await?;
        let key = STANDARD.decode(said.trim_ascii()).map_err(|_| HelperError::Answer)?;
        let key = HelperPublicKey::from_bytes(&key)?;
        let pod::HelperPod { sandbox, container } = pod;
        Ok(Self { runtime: runtime.clone(), sandbox, container, identity, key, fence: None })
    }

    /// The same, for what a config asks for.
    #[must_use]
    pub fn with_fence(&self, fence: ConfigFence) -> Self {
        Self { fence: Some(fence), ..self.clone() }
    }

    /// Takes it away, and the directories of Keelway's where nothing is in them.
    pub async fn end(&self) -> Result<(), HelperError> {
        pod::remove(&self.runtime, &self.identity, &self.sandbox, &self.container).await
    }

    /// Takes away those of other installations.
    pub async fn end_others(&self) -> Result<(), HelperError> {
        pod::remove_others(&self.runtime, &self.identity.installation).await
    }

    /// Asks a component on the machine's loopback: the status of its answer, or why there is none.
    pub async fn get(&self, question: HttpQuery) -> Result<u16, String> {
        match self.call(&MachineOperation::Get(question)).await {
            Ok(OperationResult::Answered(answer)) => answer,
            Ok(_) => Err(HelperError::Answer.to_string()),
            Err(error) => Err(chain_text(&error)),
        }
    }

    async fn call(&self, work: &MachineOperation) -> Result<OperationResult, HelperError> {
        let label = SealLabel { subject: work.subject(), fence: self.fence };
        let sealed = SealedWork::seal(&self.key, &self.identity, &label, work)?;
        let words = arguments(&label, &sealed)?;
        let said = run(&self.runtime, &self.container, &words).await?;
        match serde_json::from_slice(&said) {
            Ok(HelperResponse::Done(done)) => Ok(done),
            Ok(HelperResponse::Failed(why)) => Err(HelperError::Failed(why)),
            Ok(HelperResponse::Refused(why)) => Err(HelperError::Refused(why)),
            Err(_) => Err(HelperError::Answer),
        }
    }
}

impl MachineIo for Helper {
    async fn work(&self, work: MachineOperation) -> Result<OperationResult, FilesError> {
        // The directories of Keelway's are mounted into the helper: they go with it.
        let work = if matches!(work, MachineOperation::Leave) { MachineOperation::LeaveRecords } else { work };
        let mut done = self.call(&work).await?;
        if let OperationResult::Found(found) = &mut done {
            let observed = &mut found.observed;
            if observed.files.len() == 1 && observed.owner.is_none() && observed.applied.is_none() {
                observed.files.remove("");
            }
        }
        Ok(done)
    }
}

/// The words of a command that hands it over.
fn arguments(label: &SealLabel, sealed: &SealedWork) -> Result<Vec<String>, HelperError> {
    let text = STANDARD.encode(&sealed.text);
    if text.len() > ARGUMENTS {
        return Err(HelperError::TooLong { subject: label.subject.clone(), bytes: sealed.text.len() });
    }
    let mut words = vec!["do".to_owned(), label.text(), STANDARD.encode(&sealed.key)];
    // Of Base64 each byte is a character.
    words.extend(text.as_bytes().chunks(ARGUMENT).map(|piece| String::from_utf8_lossy(piece).into_owned()));
    Ok(words)
}

/// Runs a command of the helper's program, and returns what it says.
async fn run(runtime: &CriRuntime, container: &str, words: &[String]) -> Result<Vec<u8>, HelperError> {
    let command: Vec<String> = std::iter::once(pod::PROGRAM.to_owned()).chain(words.iter().cloned()).collect();
    let output = runtime.exec_sync(container, &command, DEADLINE).await?;
    if output.exit_code != 0 {
        let text = String::from_utf8_lossy(&output.stderr).trim().chars().take(400).collect();
        return Err(HelperError::Ended { code: output.exit_code, text });
    }
    Ok(output.stdout)
}
