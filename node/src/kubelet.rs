//! The kubelet: starts, adopts and restarts it. It outlives the daemon that started it.

mod configuration;
mod trust_record;

use std::{
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use keelway_base::backoff::Backoff;
use keelway_base::error_chain::ErrorChain;
use keelway_cri::CriRuntime;
use keelway_pki::{AuthoritySource, ClientIdentity, Kubeconfig, KubeconfigCluster, KubeconfigError};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    authority::SERVER_NAME,
    cgroups,
    checks::{self, Cgroups, RESOLV_CONF},
    facts,
    files::{self, NodeFileError},
    information::TrustedInformation,
    logs, memory,
    peer::PeerAssignment,
    process::{self, Handle, ProcessId},
    settings::{Layout, NodeOptions},
};
use configuration::KubeletHost;
pub(crate) use trust_record::KubeletTrust;

/// How long the start of the kubelet may delay the rest of the daemon's start.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The interval at which the daemon checks whether the worker still leaves. If it stays, the kubelet is started again.
const LEAVING: Duration = Duration::from_secs(1);
/// How long the kubelet may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);
/// The kubelet's log file, if there is no journal.
pub(crate) const KUBELET_LOG: &str = "kubelet.log";

/// The kubelet cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeletError {
    #[error(transparent)]
    File(#[from] NodeFileError),
    #[error("cannot read the cgroup driver of the runtime")]
    Runtime(#[source] keelway_cri::CriError),
    #[error("cannot create the kubelet's kubeconfig")]
    Kubeconfig(#[source] KubeconfigError),
    #[error("cannot start the kubelet")]
    Spawn(#[source] std::io::Error),
    #[error("the kubelet exited immediately; see its log in {0}")]
    Ended(String),
}

/// The state of the kubelet in `node status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletStatus {
    /// The kubelet's process. Absent while it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How often this daemon restarted the kubelet.
    pub restarts: u32,
    /// The image of the kubelet's program. Absent if the program was replaced since the kubelet started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The version that the kubelet reports on the Node, such as `v1.37.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// What a kubelet is started with.
pub(crate) struct Kubelet {
    pub(crate) layout: Layout,
    pub(crate) options: NodeOptions,
    pub(crate) runtime: CriRuntime,
}

/// A running kubelet.
pub(crate) struct KubeletProcess {
    handle: Handle,
    /// Present if this process started the kubelet.
    child: Option<Child>,
}

impl Kubelet {
    /// Starts or adopts the kubelet before the rest of the daemon starts. Returns `None` while the worker leaves, and if the runtime does not
    /// respond soon: then [`Kubelet::supervise`] retries.
    pub(crate) async fn begin(
        &self,
        known: &TrustedInformation,
        assignment: &PeerAssignment,
    ) -> Option<Result<KubeletProcess, KubeletError>> {
        if self.layout.leaving().exists() {
            return None;
        }
        timeout(AT_ONCE, self.have(known, assignment)).await.ok()
    }

    /// Keeps the kubelet running while it is polled. It starts with the result of [`Kubelet::begin`].
    pub(crate) async fn supervise(
        &self,
        mut first: Option<Result<KubeletProcess, KubeletError>>,
        known: watch::Receiver<TrustedInformation>,
        assignment: watch::Receiver<PeerAssignment>,
        status: watch::Sender<KubeletStatus>,
    ) {
        let began = Instant::now();
        let mut attempts = Attempts::default();
        loop {
            let had = if let Some(first) = first.take() {
                first
            } else {
                while self.layout.leaving().exists() {
                    sleep(LEAVING).await;
                }
                let (known, assignment) = (known.borrow().clone(), assignment.borrow().clone());
                self.have(&known, &assignment).await
            };
            let outcome = match had {
                Ok(running) => self.follow(running, &status, &mut attempts, began).await,
                Err(error) => Err(error),
            };
            status.send_modify(|status| status.pid = None);
            match &outcome {
                Ok(()) if was_stopped(&self.layout) => {
                    tracing::info!("the kubelet was stopped; starting it again");
                    continue;
                }
                Ok(()) => tracing::warn!("the kubelet exited"),
                Err(error) => tracing::error!("the kubelet is not running: {}", ErrorChain(error)),
            }
            let until = attempts.ended(outcome.is_ok(), began.elapsed());
            sleep(until.saturating_sub(began.elapsed())).await;
        }
    }

    /// Returns the running kubelet, or starts one.
    async fn have(
        &self,
        known: &TrustedInformation,
        assignment: &PeerAssignment,
    ) -> Result<KubeletProcess, KubeletError> {
        if let Some(handle) = find(&self.layout)? {
            tracing::info!(pid = handle.id.pid, "the kubelet is already running");
            files::write_json_volatile(&self.layout.kubelet_process(), &handle.id)?;
            return Ok(KubeletProcess { handle, child: None });
        }
        let (handle, child) = self.start(known, assignment).await?;
        tracing::info!(pid = handle.id.pid, "started the kubelet");
        Ok(KubeletProcess { handle, child: Some(child) })
    }

    /// Reports the kubelet's status until it ends.
    async fn follow(
        &self,
        KubeletProcess { handle, child }: KubeletProcess,
        status: &watch::Sender<KubeletStatus>,
        attempts: &mut Attempts,
        began: Instant,
    ) -> Result<(), KubeletError> {
        let is_again = attempts.started(began.elapsed());
        let image = files::read(&self.layout.programs_of())?.map(|image| image.trim().to_owned());
        let image = image.filter(|_| runs(handle.id, &self.layout.kubelet()));
        status.send_modify(|status| {
            status.pid = Some(handle.id.pid);
            status.restarts = status.restarts.saturating_add(u32::from(is_again));
            status.image = image;
        });
        handle.ended().await.map_err(KubeletError::Spawn)?;
        // A child of this process is a zombie until it is waited for.
        if let Some(mut child) = child {
            let _ = child.wait();
        }
        Ok(())
    }

    async fn start(
        &self,
        known: &TrustedInformation,
        assignment: &PeerAssignment,
    ) -> Result<(Handle, Child), KubeletError> {
        let layout = &self.layout;
        let machine = KubeletHost {
            cgroup_driver: self.runtime.status().await.map_err(KubeletError::Runtime)?.cgroup_driver,
            has_cgroup_v1: facts::cgroups() == Cgroups::Legacy,
            may_lower_oom_score: capabilities(None)
                .is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_RESOURCE)),
            has_systemd: Path::new("/run/systemd/system").exists(),
            resolv_conf: checks::for_pods(&facts::resolv_confs()).map_or(Path::new(RESOLV_CONF), |file| file.path),
        };
        let file = configuration::configuration(layout, &self.options, &known.cluster, assignment, machine);
        files::write_json_volatile(&layout.kubelet_config(), &file)?;
        files::write_volatile(&layout.kubeconfig(), kubeconfig(layout, known)?.as_bytes(), 0o600)?;
        if let Some(group) = &self.options.cgroup_root {
            cgroups::ensure(group)?;
        }
        files::make_dir(&self.options.kubelet_root_dir, 0o755)?;
        let mut command = Command::new(layout.kubelet());
        command.args(configuration::arguments(layout, &self.options, assignment));
        process::clear_environment(&mut command);
        // If there is a journal, the kubelet inherits this process' connection to it and keeps writing after this process has ended.
        let log = if logs::is_journal() {
            "the journal".to_owned()
        } else {
            let log = layout.logs().join(KUBELET_LOG);
            command.stdout(logs::open(&log)?).stderr(logs::open(&log)?);
            log.display().to_string()
        };
        // The kubelet reads the authorities when it starts. If they change in this moment, it is restarted once more.
        let authorities = files::read(&layout.authorities())?.unwrap_or_default();
        // A process group of its own, so that signals of a terminal do not reach the kubelet.
        let child = memory::spawn(command.stdin(Stdio::null()).process_group(0)).map_err(KubeletError::Spawn)?;
        let Some(id) = ProcessId::of(child.id()) else { return Err(ended(child, log)) };
        files::write_json_volatile(&layout.kubelet_process(), &id)?;
        KubeletTrust::started_with(id, &authorities).store(layout)?;
        match id.open() {
            Some(handle) => Ok((handle, child)),
            None => Err(ended(child, log)),
        }
    }
}

/// Whether a process runs this file, and not an earlier one with its name.
fn runs(id: ProcessId, program: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    file(Path::new(&format!("/proc/{}/exe", id.pid))).is_some_and(|running| file(program) == Some(running))
}

/// Reaps a kubelet whose process could not be opened.
fn ended(mut child: Child, log: String) -> KubeletError {
    // A kubelet that cannot be supervised must not continue to run.
    let _ = child.kill();
    let _ = child.wait();
    KubeletError::Ended(log)
}

/// The restarts of the kubelet.
#[derive(Default)]
struct Attempts {
    backoff: Backoff,
    has_run: bool,
}

impl Attempts {
    /// Records a start. Returns whether it was a restart.
    fn started(&mut self, now: Duration) -> bool {
        self.backoff.started(now);
        std::mem::replace(&mut self.has_run, true)
    }

    /// Records the end or a failed start. Returns when the next start is due.
    fn ended(&mut self, has_run: bool, now: Duration) -> Duration {
        if has_run {
            return self.backoff.ended(now);
        }
        self.backoff.failed(now);
        self.backoff.held_until().unwrap_or(now)
    }
}

/// Builds the kubeconfig. The server is the worker's own balancer.
fn kubeconfig(layout: &Layout, known: &TrustedInformation) -> Result<String, KubeletError> {
    let api = &known.cluster.api;
    let address = api.addresses.first().copied().unwrap_or(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    let cluster = KubeconfigCluster {
        server: format!("https://{}", std::net::SocketAddr::new(address, api.port)),
        authority: AuthoritySource::File(layout.authorities().display().to_string()),
        tls_server_name: Some(SERVER_NAME.to_owned()),
    };
    let identity = layout.identity().display().to_string();
    let user = ClientIdentity::Files { certificate: identity.clone(), key: identity };
    let kubeconfig = Kubeconfig::builder().cluster("cluster", cluster).user("node", user);
    let built = kubeconfig.context("node", "cluster", "node").build("node").map_err(KubeletError::Kubeconfig)?;
    Ok(built.to_yaml().map_err(KubeletError::Kubeconfig)?.to_string())
}

/// Finds this worker's kubelet by its process file, or by its arguments if that file is missing or outdated.
pub(crate) fn find(layout: &Layout) -> Result<Option<Handle>, NodeFileError> {
    if let Some(handle) = ProcessId::load(&layout.kubelet_process())?.and_then(ProcessId::open) {
        return Ok(Some(handle));
    }
    let own = format!("--kubeconfig={}", layout.kubeconfig().display());
    let is_own = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == own.as_bytes())
    };
    let found = process::named("kubelet").into_iter().find(is_own).and_then(ProcessId::of);
    Ok(found.and_then(ProcessId::open))
}

/// Ends the kubelet of this worker. Pods continue to run. It removes the process file first: a daemon that finds no such file knows that the kubelet was
/// stopped and did not crash.
pub(crate) async fn stop(layout: &Layout) -> Result<(), NodeFileError> {
    let found = find(layout)?;
    files::remove(&layout.kubelet_process())?;
    if let Some(handle) = found {
        handle.end(GRACE).await.map_err(NodeFileError::new("end the process of", layout.kubelet()))?;
    }
    Ok(())
}

/// Whether the kubelet that ended was [stopped](stop). It starts again without a pause then.
fn was_stopped(layout: &Layout) -> bool {
    matches!(fs::exists(layout.kubelet_process()), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_does_not_run_a_program_that_replaced_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("kubelet");
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("1000").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert!(runs(id, &program));
        let next = directory.path().join("next");
        fs::copy("/bin/sleep", &next).unwrap();
        fs::rename(next, &program).unwrap();
        assert!(!runs(id, &program));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_stop_is_not_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        for is_stopped in [false, true] {
            let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
            let id = ProcessId::of(child.id()).unwrap();
            files::write_json_volatile(&layout.kubelet_process(), &id).unwrap();
            let handle = id.open().unwrap();
            // The daemon asks as soon as it sees the end.
            let asked = async {
                handle.ended().await.unwrap();
                was_stopped(&layout)
            };
            if is_stopped {
                let (stopped, was_stopped) = tokio::join!(stop(&layout), asked);
                stopped.unwrap();
                assert!(was_stopped);
            } else {
                child.kill().unwrap();
                assert!(!asked.await);
            }
            child.wait().unwrap();
        }
    }

    #[test]
    fn the_pause_before_a_restart_grows() {
        let mut attempts = Attempts::default();
        let mut now = Duration::from_secs(1);
        assert!(!attempts.started(now));
        let mut pauses = Vec::new();
        for has_run in [true, false, false, false] {
            let until = attempts.ended(has_run, now);
            pauses.push(until.saturating_sub(now));
            now = until;
        }
        assert!(pauses[1] > Duration::ZERO && pauses[1] < pauses[2] && pauses[2] < pauses[3], "{pauses:?}");
        assert!(attempts.started(now));
    }
}
