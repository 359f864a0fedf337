//! Asking a container whether it is well.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::AsRawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::StatusCode;
use keelway_api::{
    machine::{CertificateFiles, Check},
    name::PodName,
};
use rustls::ClientConfig;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::timeout,
};

use crate::{
    FilesError, LocalMachine,
    access::AccessError,
    https::{self, GetError},
    report::chain_text,
    supervise::Question,
    tls::{TlsError, client_from_pem},
};

/// As much as is read of an answer's first line, in bytes: nobody here trusts a component.
const LONGEST_ANSWER: u64 = 4096;

/// Why an answer is none.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("{0} is not there")]
    NoFile(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Dial(#[from] AccessError),
    #[error(transparent)]
    Get(#[from] GetError),
    #[error("no connection")]
    Connect(#[source] std::io::Error),
    #[error("{path} answers {status}")]
    Status { path: String, status: StatusCode },
    #[error("another answer than {expected:?}")]
    Answer { expected: String },
}

/// The TLS clients of containers that answered. Each resumes its sessions, which spares both sides the signatures of a
/// handshake: a question that comes again every few seconds costs next to nothing.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<BTreeMap<PodName, Kept>>);

/// A client, and the container that it is for.
struct Kept {
    container: String,
    client: Arc<ClientConfig>,
}

impl Clients {
    fn of(&self, question: &Question) -> Option<Arc<ClientConfig>> {
        let kept = self.held();
        let kept = kept.get(&question.pod).filter(|kept| kept.container == question.container);
        kept.map(|kept| Arc::clone(&kept.client))
    }

    fn keep(&self, question: &Question, client: Arc<ClientConfig>) {
        let kept = Kept { container: question.container.clone(), client };
        self.held().insert(question.pod.clone(), kept);
    }

    fn forget(&self, pod: &PodName) {
        self.held().remove(pod);
    }

    /// Keeps those of these pods.
    pub(super) fn retain(&self, is_kept: impl Fn(&PodName) -> bool) {
        self.held().retain(|pod, _| is_kept(pod));
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<PodName, Kept>> {
        // Whoever panicked with it left a map of whole entries behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("container", &self.container).finish_non_exhaustive()
    }
}

/// Asks one question, within its time.
pub(super) async fn ask(machine: &LocalMachine, clients: &Clients, question: &Question) -> Result<(), String> {
    #[cfg(feature = "testing")]
    if let Some(is_well) = machine.site.answer(&question.container) {
        return if is_well { Ok(()) } else { Err("it does not run".to_owned()) };
    }
    match timeout(question.within, answer(machine, clients, question)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(chain_text(&error)),
        Err(_) => Err(format!("no answer within {} s", question.within.as_secs())),
    }
}

async fn answer(machine: &LocalMachine, clients: &Clients, question: &Question) -> Result<(), ProbeError> {
    let pod = &question.pod;
    match &question.check {
        Check::Https { address, path, server_name, authority, identity } => {
            let ask = async |client: &Arc<ClientConfig>| {
                let stream = machine.dial(*address, question.within).await?;
                match https::get(Arc::clone(client), server_name, stream, *address, path).await? {
                    StatusCode::OK => Ok(()),
                    status => Err(ProbeError::Status { path: path.to_owned(), status }),
                }
            };
            if let Some(client) = clients.of(question) {
                if ask(&client).await.is_ok() {
                    return Ok(());
                }
                // Its files may be others by now.
                clients.forget(pod);
            }
            let client = client(machine, pod, authority, identity.as_ref()).await?;
            ask(&client).await?;
            clients.keep(question, client);
            Ok(())
        }
        Check::Http { address, path } => {
            let stream = machine.dial(*address, question.within).await?;
            match https::get_plain(stream, *address, path).await? {
                StatusCode::OK => Ok(()),
                status => Err(ProbeError::Status { path: path.to_owned(), status }),
            }
        }
        Check::Socket { path, request, answer } => line(machine, pod, path, request, answer).await,
    }
}

async fn client(
    machine: &LocalMachine,
    pod: &PodName,
    authority: &str,
    identity: Option<&CertificateFiles>,
) -> Result<Arc<ClientConfig>, ProbeError> {
    let authority = file(machine, pod, authority).await?;
    let shown = match identity {
        Some(files) => Some((file(machine, pod, &files.certificate).await?, file(machine, pod, &files.key).await?)),
        None => None,
    };
    let shown = shown.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
    Ok(Arc::new(client_from_pem(&authority, shown)?))
}

async fn file(machine: &LocalMachine, pod: &PodName, path: &str) -> Result<Vec<u8>, ProbeError> {
    let (pod, name) = (pod.clone(), path.to_owned());
    let content = machine.with_files(move |files| files.read_file(&pod, &name)).await?;
    content.ok_or_else(|| ProbeError::NoFile(path.to_owned()))
}

async fn line(
    machine: &LocalMachine,
    pod: &PodName,
    path: &str,
    request: &str,
    expected: &str,
) -> Result<(), ProbeError> {
    let (pod, path) = (pod.clone(), path.to_owned());
    let socket = machine.with_files(move |files| files.open_socket(&pod, &path)).await?;
    let mut stream =
        UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await.map_err(ProbeError::Connect)?;
    stream.write_all(format!("{request}\n").as_bytes()).await.map_err(ProbeError::Connect)?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER)).read_line(&mut answer).await.map_err(ProbeError::Connect)?;
    if answer.starts_with(expected) { Ok(()) } else { Err(ProbeError::Answer { expected: expected.to_owned() }) }
}

#[cfg(test)]
mod tests;
