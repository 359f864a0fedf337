//! Probes of containers' health.

use std::{
    collections::BTreeMap,
    os::fd::AsRawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::StatusCode;
use keelway_api::{
    machine::{CertificateFiles, ContainerCheck, SERVING_CERTIFICATE},
    name::PodName,
};
use keelway_base::error_chain::chain_text;
use keelway_machine::{layout::is_named_after, supervise::LivenessQuery};
use keelway_machine_io::{
    access::AccessError,
    local::{FilesError, LocalMachine},
};
use keelway_tls::{
    component::{AgentTlsError, PinnedClient, SubjectPublicKey, public_key},
    https::{self, GetError},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::timeout,
};

/// How many bytes of the first line of a response are read. The agent does not trust components.
const LONGEST_ANSWER: u64 = 4096;

/// The name of the container of an etcd member.
const ETCD: &str = "etcd";
/// The path at which etcd reports its alarm for lack of space, without a query to other members.
const ALARMS: &str = "/health?exclude=CORRUPT&serializable=true";

/// A probe failed.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("{0} does not exist")]
    NoFile(String),
    #[error(transparent)]
    Tls(#[from] AgentTlsError),
    #[error(transparent)]
    Dial(#[from] AccessError),
    #[error(transparent)]
    Get(#[from] GetError),
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    #[error("{path} returned {status}")]
    Status { path: String, status: StatusCode },
    #[error("the response is not {expected:?}")]
    Answer { expected: String },
}

/// How many keys of a container's certificate are accepted: the key on disk, and the one before it, which the server uses until it has reloaded its
/// files. Servers reload within a minute, and certificates are not renewed that often.
const KEYS: usize = 2;

/// Clients of the containers that serve TLS. Clients resume their sessions, which saves both sides the signatures of a handshake. A probe every few
/// seconds therefore costs almost nothing.
#[derive(Debug, Default)]
pub(super) struct ProbeClients(Mutex<BTreeMap<PodName, ProbedContainer>>);

/// A container, with the keys in its certificate since its first probe, the newest last.
#[derive(Debug)]
struct ProbedContainer {
    container: String,
    keys: Vec<SubjectPublicKey>,
    /// The client of a container that responded and whose files have not changed since.
    client: Option<PinnedClient>,
}

impl ProbeClients {
    fn of(&self, question: &LivenessQuery) -> Option<PinnedClient> {
        let known = self.held();
        known.get(&question.pod).filter(|known| known.container == question.container)?.client.clone()
    }

    fn cache_client(&self, question: &LivenessQuery, client: PinnedClient) {
        if let Some(known) = self.held().get_mut(&question.pod).filter(|known| known.container == question.container) {
            known.client = Some(client);
        }
    }

    /// Adds the key in the current certificate. Returns the keys that the container may use.
    fn keys(&self, question: &LivenessQuery, now: SubjectPublicKey) -> Vec<SubjectPublicKey> {
        let mut held = self.held();
        let anew = || ProbedContainer { container: question.container.clone(), keys: Vec::new(), client: None };
        let known = held.entry(question.pod.clone()).or_insert_with(anew);
        if known.container != question.container {
            *known = anew();
        }
        known.client = None;
        known.keys.retain(|key| *key != now);
        known.keys.push(now);
        let old = known.keys.len().saturating_sub(KEYS);
        known.keys.drain(..old);
        known.keys.clone()
    }

    /// Removes all pods that `is_kept` does not accept.
    pub(super) fn retain(&self, is_kept: impl Fn(&PodName) -> bool) {
        self.held().retain(|pod, _| is_kept(pod));
    }

    /// Drops the clients of changed pods, so that their files are read again.
    pub(super) fn read_again(&self, is_other: impl Fn(&PodName) -> bool) {
        let mut held = self.held();
        held.iter_mut().filter(|(pod, _)| is_other(pod)).for_each(|(_, known)| known.client = None);
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<PodName, ProbedContainer>> {
        // A panic with the lock held leaves whole entries, so poisoning is ignored.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends one probe, within its deadline.
pub(super) async fn ask(
    machine: &LocalMachine,
    clients: &ProbeClients,
    question: &LivenessQuery,
) -> Result<(), String> {
    #[cfg(feature = "testing")]
    if let Some(is_well) = machine.access.answer(&question.container) {
        return if is_well { Ok(()) } else { Err("it does not run".to_owned()) };
    }
    match timeout(question.within, answer(machine, clients, question)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(chain_text(&error)),
        Err(_) => Err(format!("no response within {} s", question.within.as_secs())),
    }
}

/// Returns whether an etcd store has raised the alarm `NOSPACE`. Only for an etcd member whose probe just succeeded. etcd reports the alarm at a
/// separate path, before anything else that makes it unhealthy; its other checks succeed meanwhile. `None` if the pod is no etcd member, or if it did
/// not report.
pub(super) async fn has_no_space(
    machine: &LocalMachine,
    clients: &ProbeClients,
    question: &LivenessQuery,
) -> Option<bool> {
    let ContainerCheck::Https { address, server_name, .. } = &question.check else { return None };
    let client = clients.of(question).filter(|_| is_named_after(&question.pod, ETCD))?;
    let asking = async {
        let stream = machine.dial(*address, question.within).await.ok()?;
        https::text(client.config, server_name, stream, *address, ALARMS).await.ok()
    };
    alarm(&timeout(question.within, asking).await.ok()??)
}

/// Returns whether etcd's health response reports the alarm. `None` if it is no health response.
fn alarm(answer: &str) -> Option<bool> {
    answer.contains("\"health\"").then(|| answer.contains("ALARM NOSPACE"))
}

async fn answer(machine: &LocalMachine, clients: &ProbeClients, question: &LivenessQuery) -> Result<(), ProbeError> {
    let pod = &question.pod;
    match &question.check {
        ContainerCheck::Https { address, path, server_name, identity, .. } => {
            let ask = async |client: &PinnedClient| {
                let stream = machine.dial(*address, question.within).await?;
                match https::get(Arc::clone(&client.config), server_name, stream, *address, path).await {
                    Ok(StatusCode::OK) => Ok(()),
                    Ok(status) => Err(ProbeError::Status { path: path.to_owned(), status }),
                    // A server that refuses the agent's expired certificate is alive.
                    Err(error) if client.server_refused_certificate(&error) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            };
            if let Some(client) = clients.of(question)
                && ask(&client).await.is_ok()
            {
                return Ok(());
            }
            // The files may have changed.
            let keys = clients.keys(question, public_key(&file(machine, pod, SERVING_CERTIFICATE).await?)?);
            let client = client(machine, pod, keys, identity.as_ref()).await?;
            ask(&client).await?;
            clients.cache_client(question, client);
            Ok(())
        }
        ContainerCheck::Http { address, path } => {
            let stream = machine.dial(*address, question.within).await?;
            match https::get_plain(stream, *address, path).await? {
                StatusCode::OK => Ok(()),
                status => Err(ProbeError::Status { path: path.to_owned(), status }),
            }
        }
        ContainerCheck::Socket { path, request, answer } => line(machine, pod, path, request, answer).await,
    }
}

async fn client(
    machine: &LocalMachine,
    pod: &PodName,
    keys: Vec<SubjectPublicKey>,
    identity: Option<&CertificateFiles>,
) -> Result<PinnedClient, ProbeError> {
    let shown = match identity {
        Some(files) => Some((file(machine, pod, &files.certificate).await?, file(machine, pod, &files.key).await?)),
        None => None,
    };
    let shown = shown.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
    Ok(PinnedClient::new(keys, shown)?)
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
