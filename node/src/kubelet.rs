//! The kubelet: started, adopted, started again. It outlives the daemon that started it.

mod configuration;

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use keelway_cri::CriRuntime;
use keelway_hypervisor_agent::supervise::Backoff;
use keelway_pki::{AuthoritySource, ClientIdentity, Kubeconfig, KubeconfigCluster, KubeconfigError};
use keelway_vpn::error::ErrorChain;
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    authority::SERVER_NAME,
    cgroups,
    checks::Cgroups,
    facts,
    files::{self, NodeFileError},
    information::TrustedInformation,
    logs, memory,
    peer::PeerAssignment,
    process::{self, Handle, ProcessId},
    settings::{Layout, NodeOptions},
};
use configuration::KubeletHost;

/// How long a daemon that starts has for its kubelet before all else.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How soon a worker that leaves is looked at again, should it stay after all.
const LEAVING: Duration = Duration::from_secs(1);
/// How long it has to end by itself.
const GRACE: Duration = Duration::from_secs(20);
/// Where it writes what it does, unless there is a journal.
pub(crate) const KUBELET_LOG: &str = "kubelet.log";

/// The kubelet cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeletError {
    /// A file failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The runtime does not say who manages cgroups.
    #[error("cannot ask the runtime who manages cgroups")]
    Runtime(#[source] keelway_cri::CriError),
    /// Its kubeconfig cannot be written.
    #[error("cannot make the kubelet's kubeconfig")]
    Kubeconfig(#[source] KubeconfigError),
    /// It cannot be started.
    #[error("cannot start the kubelet")]
    Spawn(#[source] std::io::Error),
    /// It ended at once.
    #[error("the kubelet ended at once: its log is in {0}")]
    Ended(String),
}

/// The kubelet, as `node status` tells of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletStatus {
    /// Its process; none while it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How often this daemon has started it again.
    pub restarts: u32,
    /// The image that its program is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// What a kubelet is started with.
pub(crate) struct Kubelet {
    pub(crate) layout: Layout,
    pub(crate) options: NodeOptions,
    pub(crate) runtime: CriRuntime,
}

/// A kubelet that runs.
pub(crate) struct KubeletProcess {
    handle: Handle,
    /// Where it is this process' own.
    child: Option<Child>,
}

impl Kubelet {
    /// Has one at once, whatever else is yet to be done; none while the worker leaves. A runtime that does not answer soon is asked again by
    /// [`Kubelet::supervise`].
    pub(crate) async fn begin(
        &self,
        known: &TrustedInformation,
        given: &PeerAssignment,
    ) -> Option<Result<KubeletProcess, KubeletError>> {
        if self.layout.leaving().exists() {
            return None;
        }
        timeout(AT_ONCE, self.have(known, given)).await.ok()
    }

    /// Keeps it running for as long as it is polled, beginning with what [`Kubelet::begin`] returned.
    pub(crate) async fn supervise(
        &self,
        mut first: Option<Result<KubeletProcess, KubeletError>>,
        known: watch::Receiver<TrustedInformation>,
        given: watch::Receiver<PeerAssignment>,
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
                let (known, given) = (known.borrow().clone(), given.borrow().clone());
                self.have(&known, &given).await
            };
            let outcome = match had {
                Ok(running) => self.follow(running, &status, &mut attempts, began).await,
                Err(error) => Err(error),
            };
            status.send_modify(|status| status.pid = None);
            match &outcome {
                Ok(()) => tracing::warn!("the kubelet ended"),
                Err(error) => tracing::error!("the kubelet does not run: {}", ErrorChain(error)),
            }
            let until = attempts.ended(outcome.is_ok(), began.elapsed());
            sleep(until.saturating_sub(began.elapsed())).await;
        }
    }

    /// The one that runs, or a new one.
    async fn have(&self, known: &TrustedInformation, given: &PeerAssignment) -> Result<KubeletProcess, KubeletError> {
        if let Some(handle) = find(&self.layout)? {
            tracing::info!(pid = handle.id.pid, "the kubelet runs already");
            return Ok(KubeletProcess { handle, child: None });
        }
        let (handle, child) = self.start(known, given).await?;
        tracing::info!(pid = handle.id.pid, "the kubelet is started");
        Ok(KubeletProcess { handle, child: Some(child) })
    }

    /// Tells of it until it ends.
    async fn follow(
        &self,
        KubeletProcess { handle, child }: KubeletProcess,
        status: &watch::Sender<KubeletStatus>,
        attempts: &mut Attempts,
        began: Instant,
    ) -> Result<(), KubeletError> {
        let is_again = attempts.started(began.elapsed());
        let image = files::read(&self.layout.programs_of())?.map(|image| image.trim().to_owned());
        status.send_modify(|status| {
            status.pid = Some(handle.id.pid);
            status.restarts = status.restarts.saturating_add(u32::from(is_again));
            status.image = image;
        });
        handle.ended().await.map_err(KubeletError::Spawn)?;
        // Who is this process' own is a zombie until its end is taken.
        if let Some(mut child) = child {
            let _ = child.wait();
        }
        Ok(())
    }

    async fn start(&self, known: &TrustedInformation, given: &PeerAssignment) -> Result<(Handle, Child), KubeletError> {
        let layout = &self.layout;
        let machine = KubeletHost {
            cgroup_driver: self.runtime.status().await.map_err(KubeletError::Runtime)?.cgroup_driver,
            has_cgroup_v1: facts::cgroups() == Cgroups::Legacy,
            may_lower_oom_score: capabilities(None)
                .is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_RESOURCE)),
            has_systemd: Path::new("/run/systemd/system").exists(),
            has_resolved: Path::new("/run/systemd/resolve/resolv.conf").exists(),
        };
        let file = configuration::configuration(layout, &self.options, &known.cluster, given, machine);
        files::write_json_volatile(&layout.kubelet_config(), &file)?;
        files::write_volatile(&layout.kubeconfig(), kubeconfig(layout, known)?.as_bytes(), 0o600)?;
        if let Some(group) = &self.options.cgroup_root {
            cgroups::ensure(group)?;
        }
        files::make_dir(&self.options.kubelet_root_dir, 0o755)?;
        let mut command = Command::new(layout.kubelet());
        command.args(configuration::arguments(layout, &self.options, given));
        process::clear_environment(&mut command);
        // Where there is a journal, this process writes to it, and the kubelet goes on doing so after this process has ended.
        let log = if logs::is_journal() {
            "the journal".to_owned()
        } else {
            let log = layout.logs().join(KUBELET_LOG);
            command.stdout(logs::open(&log)?).stderr(logs::open(&log)?);
            log.display().to_string()
        };
        // What a terminal says to this process is not for the kubelet.
        let child = memory::spawn(command.stdin(Stdio::null()).process_group(0)).map_err(KubeletError::Spawn)?;
        let Some(id) = ProcessId::of(child.id()) else { return Err(ended(child, log)) };
        files::write_json_volatile(&layout.kubelet_process(), &id)?;
        match id.open() {
            Some(handle) => Ok((handle, child)),
            None => Err(ended(child, log)),
        }
    }
}

/// Takes the end of a kubelet that is there no more.
fn ended(mut child: Child, log: String) -> KubeletError {
    // One that cannot be looked after is not left to itself.
    let _ = child.kill();
    let _ = child.wait();
    KubeletError::Ended(log)
}

/// What became of it so far.
#[derive(Default)]
struct Attempts {
    backoff: Backoff,
    has_run: bool,
}

impl Attempts {
    /// It runs; whether that is again.
    fn started(&mut self, now: Duration) -> bool {
        self.backoff.started(now);
        std::mem::replace(&mut self.has_run, true)
    }

    /// It ended, or could not be started; until when it is not tried again.
    fn ended(&mut self, has_run: bool, now: Duration) -> Duration {
        if has_run {
            return self.backoff.ended(now);
        }
        self.backoff.failed(now);
        self.backoff.held_until().unwrap_or(now)
    }
}

/// The API is where the worker's own balancer answers.
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

/// The kubelet of this worker, where it runs: by what was written down, or by its arguments where that was not done in time.
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

/// Ends the kubelet of this worker; pods go on.
pub(crate) async fn stop(layout: &Layout) -> Result<(), NodeFileError> {
    if let Some(handle) = find(layout)? {
        handle.end(GRACE).await.map_err(NodeFileError::new("end the process of", layout.kubelet()))?;
    }
    files::remove(&layout.kubelet_process())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_cannot_be_started_is_tried_later_each_time() {
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
