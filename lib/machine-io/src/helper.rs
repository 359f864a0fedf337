//! The helper: a container on a machine without an agent that does the work which the container runtime cannot do.
//!
//! It runs one static program that waits. Requests are arguments of commands in the container, because ExecSync has no stdin. They are sealed to a
//! key that the container created and that never leaves it, because the runtime, its logs and every process of the machine can see arguments.

mod logs;
mod pod;
mod seal;
pub mod serve;
#[cfg(test)]
mod tests;

use std::{io, path::Path, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};

use keelway_cri::{self as cri, CriRuntime};

use keelway_base::error_chain::chain_text;

use crate::{
    execute::EffectError,
    local::FilesError,
    operation::{HttpQuery, MachineIo, MachineOperation, OperationResult},
};

pub use seal::{ConfigFence, HelperIdentity, HelperKeyPair, HelperPublicKey, SealError, SealLabel, SealedWork};
use serve::HelperResponse;

/// How long one operation may take: as long as on a local machine's files, and longer than any wait for a log.
const DEADLINE: Duration = Duration::from_secs(120);
/// The longest argument of a program, with room for the NUL at its end (`MAX_ARG_STRLEN` of Linux: 128 KiB).
const ARGUMENT: usize = 120 << 10;
/// The limit for all arguments together, in bytes. Linux accepts a quarter of the stack limit, usually 2 MiB.
const ARGUMENTS: usize = 1800 << 10;

/// A request to a machine's helper failed.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The runtime does not run the helper, or does not pass the request on.
    #[error("cannot reach the machine's helper")]
    Runtime(#[from] cri::CriError),
    /// The image of the helper could not be fetched.
    #[error("cannot fetch the image of the machine's helper")]
    Image(#[source] Box<EffectError>),
    /// The helper refused the request.
    #[error("the machine's helper refused: {0}")]
    Refused(String),
    /// The operation failed.
    #[error("{0}")]
    Failed(String),
    /// The helper's command failed without a response.
    #[error("the machine's helper exited with code {code}: {text}")]
    Ended {
        /// The exit code of the command.
        code: i32,
        /// The beginning of its standard error.
        text: String,
    },
    /// The response cannot be decoded.
    #[error("cannot decode the response of the machine's helper")]
    Answer,
    /// The request does not fit into the arguments of a program.
    #[error(
        "{subject}: {bytes} bytes exceed the maximum request to a machine without an agent: run keelway-hypervisor-agent on it"
    )]
    TooLong {
        /// The subject of the request.
        subject: String,
        /// The length of the request, in bytes.
        bytes: usize,
    },
    /// The caller does not accept the text of a log.
    #[error("cannot write the text of a log")]
    Write(#[source] io::Error),
    /// The request could not be sealed.
    #[error("cannot seal the request to the machine's helper")]
    Seal(#[from] SealError),
}

/// A client of a machine's helper. Clones are cheap.
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
    /// Returns the helper of an installation on a machine: the running one, or a new one. Its image comes from the directory `archives` if that
    /// contains it, and otherwise from its registry.
    pub async fn start(runtime: &CriRuntime, archives: &Path, identity: HelperIdentity) -> Result<Self, HelperError> {
        let pod = pod::ensure(runtime, archives, &identity).await?;
        let words = ["key", identity.installation.as_str(), identity.machine.as_str()].map(str::to_owned);
        let said = run(runtime, &pod.container, &words).await?;
        let key = STANDARD.decode(said.trim_ascii()).map_err(|_| HelperError::Answer)?;
        let key = HelperPublicKey::from_bytes(&key)?;
        let pod::HelperPod { sandbox, container } = pod;
        Ok(Self { runtime: runtime.clone(), sandbox, container, identity, key, fence: None })
    }

    /// Returns a client whose changes carry the number of a config.
    #[must_use]
    pub fn with_fence(&self, fence: ConfigFence) -> Self {
        Self { fence: Some(fence), ..self.clone() }
    }

    /// Removes the helper, and Keelway's top directories if they are empty.
    pub async fn end(&self) -> Result<(), HelperError> {
        pod::remove(&self.runtime, &self.identity, &self.sandbox, &self.container).await
    }

    /// Removes the helpers of other installations.
    pub async fn end_others(&self) -> Result<(), HelperError> {
        pod::remove_others(&self.runtime, &self.identity.installation).await
    }

    /// Queries a component on the machine's loopback. Returns the HTTP status, or the reason why there is no response.
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
        // Keelway's top directories are mounted into the helper, so they are removed with it.
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

/// Returns the arguments of the command that sends the sealed request.
fn arguments(label: &SealLabel, sealed: &SealedWork) -> Result<Vec<String>, HelperError> {
    let text = STANDARD.encode(&sealed.text);
    if text.len() > ARGUMENTS {
        return Err(HelperError::TooLong { subject: label.subject.clone(), bytes: sealed.text.len() });
    }
    let mut words = vec!["do".to_owned(), label.text(), STANDARD.encode(&sealed.key)];
    // In Base64, each byte is a character.
    words.extend(text.as_bytes().chunks(ARGUMENT).map(|piece| String::from_utf8_lossy(piece).into_owned()));
    Ok(words)
}

/// Runs a command of the helper's program, and returns its output.
async fn run(runtime: &CriRuntime, container: &str, words: &[String]) -> Result<Vec<u8>, HelperError> {
    let command: Vec<String> = std::iter::once(pod::PROGRAM.to_owned()).chain(words.iter().cloned()).collect();
    let output = runtime.exec_sync(container, &command, DEADLINE).await?;
    if output.exit_code != 0 {
        let text = String::from_utf8_lossy(&output.stderr).trim().chars().take(400).collect();
        return Err(HelperError::Ended { code: output.exit_code, text });
    }
    Ok(output.stdout)
}
