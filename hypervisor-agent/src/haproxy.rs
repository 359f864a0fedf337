//! A haproxy that runs, asked and told about its servers through its stats socket ("Unix Socket commands" in haproxy's
//! management guide).

mod answer;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::AsRawFd,
    time::Duration,
};

use futures::future::join_all;
use keelway_api::{
    machine::{FileState, STATS_SOCKET, SandboxState, ServerState},
    name::PodName,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use crate::{
    action::ServerChange,
    layout::pod_directory,
    local::{FilesError, LocalMachine},
    report::chain_text,
};

/// How long an answer may take. haproxy answers between two events, within microseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer that is read, in bytes: a thousand times what a few servers take.
const LONGEST: u64 = 1 << 20;

/// Why a haproxy was not asked, or did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum HaproxyError {
    /// Its socket cannot be reached on the machine's file system.
    #[error("cannot open haproxy's socket")]
    Open(#[from] FilesError),
    /// It does not listen, or ended before its answer did.
    #[error("cannot talk to haproxy")]
    Talk(#[source] io::Error),
    /// It is there and says nothing.
    #[error("haproxy gave no answer within {} s", PATIENCE.as_secs())]
    Silent,
    /// What it says about its servers is not what its management guide says.
    #[error("haproxy tells of its servers in other words: {0}")]
    Unexpected(String),
    /// It does not do it.
    #[error("haproxy says: {0}")]
    Refused(String),
}

/// The servers of each haproxy among the sandboxes. One that does not answer is left out.
pub(crate) async fn observe(
    machine: &LocalMachine,
    sandboxes: &[SandboxState],
    files: &BTreeMap<String, FileState>,
) -> BTreeMap<PodName, BTreeMap<String, ServerState>> {
    let folder = STATS_SOCKET.rsplit_once('/').map_or("", |(folder, _)| folder);
    let has_folder = |pod: &&PodName| files.contains_key(&format!("{}/{folder}", pod_directory(pod)));
    let ready = sandboxes.iter().filter(|sandbox| sandbox.ready).map(|sandbox| &sandbox.pod);
    let pods: BTreeSet<&PodName> = ready.filter(has_folder).collect();
    let asked = pods.into_iter().map(|pod| async move { (pod, servers(machine, pod).await) });
    let mut found = BTreeMap::new();
    for (pod, answer) in join_all(asked).await {
        match answer {
            Ok(servers) => {
                found.insert(pod.clone(), servers);
            }
            Err(error) => tracing::debug!(%pod, error = chain_text(&error), "haproxy does not tell of its servers"),
        }
    }
    found
}

async fn servers(machine: &LocalMachine, pod: &PodName) -> Result<BTreeMap<String, ServerState>, HaproxyError> {
    let states = ask(machine, pod, "show servers state").await?;
    let sessions = ask(machine, pod, "show stat -1 4 -1").await?;
    answer::servers(&states, &sessions).map_err(HaproxyError::Unexpected)
}

/// Tells a haproxy about one server. What it did before is as good as what it does now.
pub(crate) async fn change(
    machine: &LocalMachine,
    pod: &PodName,
    server: &str,
    change: &ServerChange,
) -> Result<(), HaproxyError> {
    let (commands, already) = match change {
        // A new server is in maintenance and its checks are off.
        ServerChange::Add { address, options } => (
            vec![
                format!("add server {server} {address} {options}"),
                format!("enable health {server}"),
                format!("set server {server} state ready"),
            ],
            "Already exists a server",
        ),
        ServerChange::Enable => {
            (vec![format!("enable health {server}"), format!("set server {server} state ready")], "")
        }
        ServerChange::Drain => (vec![format!("set server {server} state drain")], "No such server"),
        ServerChange::Remove => {
            (vec![format!("set server {server} state maint"), format!("del server {server}")], "No such server")
        }
    };
    for command in commands {
        let said = ask(machine, pod, &command).await?;
        let said = said.trim();
        let done = matches!(said, "" | "New server registered." | "Server deleted.");
        if !done && (already.is_empty() || !said.starts_with(already)) {
            return Err(HaproxyError::Refused(said.to_owned()));
        }
    }
    Ok(())
}

/// One command, one answer, one connection.
async fn ask(machine: &LocalMachine, pod: &PodName, command: &str) -> Result<String, HaproxyError> {
    let pod = pod.clone();
    let socket = machine.with_files(move |files| files.open_socket(&pod, STATS_SOCKET)).await?;
    let talk = async {
        let mut stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await?;
        stream.write_all(format!("{command}\n").as_bytes()).await?;
        let mut said = Vec::new();
        stream.take(LONGEST).read_to_end(&mut said).await?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    timeout(PATIENCE, talk).await.map_err(|_| HaproxyError::Silent)?.map_err(HaproxyError::Talk)
}
