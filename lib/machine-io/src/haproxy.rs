//! Queries and changes the servers of a running haproxy through its stats socket ("Unix Socket commands" in haproxy's management guide).

mod answer;

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use keelway_api::{
    machine::{FileState, STATS_SOCKET, SandboxState, ServerState},
    name::PodName,
};
use keelway_base::error_chain::chain_text;
use keelway_machine::{action::ServerChange, layout::pod_directory};

use crate::{
    access::MachineAccess,
    local::{FilesError, LocalMachine},
    socket,
};

/// A query or change of a haproxy failed.
#[derive(Debug, thiserror::Error)]
pub enum HaproxyError {
    /// The socket of haproxy could not be used.
    #[error("cannot query haproxy")]
    Ask(#[from] FilesError),
    /// The response does not have the format of haproxy's management guide.
    #[error("haproxy reports its servers in an unknown format: {0}")]
    Unexpected(String),
    /// haproxy refused the change.
    #[error("haproxy refused the command: {0}")]
    Refused(String),
}

/// Returns the servers of each haproxy among the sandboxes. A haproxy that does not respond is left out, and so is one without a backend, to which no
/// server can be added: it answers for a cluster that sleeps.
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
            Err(error) => tracing::debug!(%pod, error = chain_text(&error), "cannot read the servers of a haproxy"),
        }
    }
    found
}

async fn servers(machine: &LocalMachine, pod: &PodName) -> Result<BTreeMap<String, ServerState>, HaproxyError> {
    let states = run_command(&machine.access, pod, "show servers state").await?;
    // All proxies, backends (2) and servers (4), all of them.
    let sessions = run_command(&machine.access, pod, "show stat -1 6 -1").await?;
    answer::servers(&states, &sessions).map_err(HaproxyError::Unexpected)
}

/// Changes one server of a haproxy. Succeeds if the change was made before.
pub(crate) async fn change(
    machine: &LocalMachine,
    pod: &PodName,
    server: &str,
    change: &ServerChange,
) -> Result<(), HaproxyError> {
    let (commands, already) = match change {
        // A new server starts in maintenance, with its checks disabled.
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
        let said = run_command(&machine.access, pod, &command).await?;
        let said = said.trim();
        let done = matches!(said, "" | "New server registered." | "Server deleted.");
        if !done && (already.is_empty() || !said.starts_with(already)) {
            return Err(HaproxyError::Refused(said.to_owned()));
        }
    }
    Ok(())
}

/// Sends one command over a connection of its own, and returns the response.
async fn run_command(access: &MachineAccess, pod: &PodName, command: &str) -> Result<String, FilesError> {
    socket::request(access, (pod.clone(), STATS_SOCKET), &format!("{command}\n")).await
}
