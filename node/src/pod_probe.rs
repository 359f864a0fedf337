//! Connects from the place of a pod, on the worker's bridge, to find what reading rules cannot find: what drops packets outside of nftables, or by a
//! match that is not known.

mod pod_end;
mod probed_target;
mod reserved_address;

use std::{io, time::Duration};

use keelway_vpn::netlink::NetlinkError;
use rustix::io::Errno;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    findings::{log_once, replace_findings},
    firewall::{self, LegacyTables},
    information::TrustedInformation,
    peer::PeerAssignment,
    tunnels::TunnelStatus,
};
pub(crate) use pod_end::remove;
use pod_end::{PodEnd, PodEndConfig};
use probed_target::{FailedTargets, ProbedTarget, targets};

/// The interval at which the daemon looks for changes that are a reason to probe, and probes again after a failure.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The shortest time between two probes without a failure. Rules of a busy cluster change all the time.
const CHANGED: Duration = Duration::from_secs(10);
/// The longest time between two probes.
const UNCHANGED: Duration = Duration::from_secs(60);

/// The worker cannot probe from the place of a pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodProbeError {
    #[error("cannot create or enter a network namespace")]
    Namespace(#[source] Errno),
    #[error("cannot open the network namespace")]
    Open(#[source] io::Error),
    #[error("cannot connect a network namespace to the bridge")]
    Network(#[from] NetlinkError),
    #[error("cannot reserve an address in {directory}")]
    Reserve {
        directory: String,
        #[source]
        source: io::Error,
    },
    #[error("no address is free at the end of {0}")]
    NoAddress(ipnet::IpNet),
}

/// What the daemon knows of the cluster.
pub(crate) struct PodProbeFacts<'a> {
    pub(crate) known: &'a watch::Sender<TrustedInformation>,
    pub(crate) assignment: &'a watch::Sender<PeerAssignment>,
    pub(crate) tunnels: &'a watch::Sender<Vec<TunnelStatus>>,
}

/// What a probe depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProbePlan {
    /// `None` while there is no bridge, which the first pod gets.
    end: Option<PodEndConfig>,
    targets: Vec<ProbedTarget>,
    generation: Option<u32>,
    legacy: LegacyTables,
}

impl PodProbeFacts<'_> {
    fn plan(&self) -> ProbePlan {
        let (known, assignment, tunnels) = (self.known.borrow(), self.assignment.borrow(), self.tunnels.borrow());
        let end = PodEndConfig::observe(&known.cluster, &assignment);
        let targets = if end.is_some() { targets(&known.cluster, &assignment, &tunnels) } else { vec![] };
        ProbePlan { end, targets, generation: firewall::generation(), legacy: LegacyTables::observe() }
    }
}

/// Whether it is time for the next probe.
fn is_due(last: Option<&(ProbePlan, Instant)>, plan: &ProbePlan, has_failures: bool, now: Instant) -> bool {
    let Some((before, at)) = last else { return true };
    let pause = if before == plan { UNCHANGED } else { CHANGED };
    has_failures || now.duration_since(*at) >= pause
}

/// Probes, from an end that is kept between probes.
#[derive(Default)]
struct PodProber {
    end: Option<PodEnd>,
}

impl PodProber {
    /// Returns each target, and whether it responded.
    fn probe(&mut self, plan: ProbePlan) -> Result<Vec<(ProbedTarget, bool)>, PodProbeError> {
        if self.end.as_ref().map(|end| &end.config) != plan.end.as_ref() || (self.end.is_some() && PodEnd::is_gone()) {
            // The new end has the same name.
            self.end = None;
            self.end = plan.end.map(PodEnd::create).transpose()?;
        }
        self.end.as_ref().map_or(Ok(vec![]), |end| end.connect(plan.targets))
    }
}

/// Probes after changes and once a minute, and logs each finding once.
pub(crate) async fn follow(facts: PodProbeFacts<'_>, found: &watch::Sender<Vec<String>>) {
    let mut turns = interval(LOOK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut prober, mut failed) = (PodProber::default(), FailedTargets::default());
    let (mut last, mut fault) = (None, None);
    loop {
        turns.tick().await;
        let (plan, now) = (facts.plan(), Instant::now());
        if !is_due(last.as_ref(), &plan, !failed.is_empty(), now) {
            continue;
        }
        last = Some((plan.clone(), now));
        let Ok((outcome, kept)) = spawn_blocking(move || (prober.probe(plan), prober)).await else { return };
        prober = kept;
        match outcome {
            Ok(round) => {
                failed.note(&round, now);
                replace_findings(found, failed.findings(Instant::now()), |failure| tracing::error!("{failure}"));
                fault = None;
            }
            Err(error) => log_once(&mut fault, "cannot probe from the place of a pod", Err(error)),
        }
    }
}

#[cfg(test)]
mod tests;
