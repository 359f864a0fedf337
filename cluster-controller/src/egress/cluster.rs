//! Connections to workers, through any gateway that reaches them.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use keelway_base::error_chain::ErrorChain;
use tokio::time::{sleep, timeout};

use super::BUDGET;
use super::gateways::{Gateways, KnownGateway};
use crate::connect::{AskError, ConnectRefusal, OpenedTunnel, RefusalReason, TunnelOpener, TunnelTarget, ask};
use crate::connects::Connects;

/// After this time, the next gateway is tried in parallel to one that has not responded yet. It is several times the response time of a distant
/// worker.
const STAGGER: Duration = Duration::from_secs(1);

/// Requests tunnels from gateways.
pub(super) struct ClusterDialer {
    gateways: Arc<Gateways>,
    connects: Connects,
}

/// A tunnel through a gateway.
struct OpenedRoute {
    stream: TokioIo<Upgraded>,
    through: String,
}

/// Why a gateway opened no tunnel. A refusal by the gateway takes precedence over a failure to reach it.
struct FailedRoute {
    is_answer: bool,
    refusal: ConnectRefusal,
}

impl ClusterDialer {
    pub(super) fn new(gateways: Arc<Gateways>, connects: Connects) -> Self {
        Self { gateways, connects }
    }

    /// Returns the first tunnel that opens. It tries the next gateway after a failure, and in parallel to a gateway that does not respond.
    async fn race(&self, target: &TunnelTarget) -> Result<OpenedRoute, ConnectRefusal> {
        let mut untried = self.gateways.in_order().into_iter();
        let mut under_way = FuturesUnordered::new();
        let mut lost: Option<FailedRoute> = None;
        loop {
            if under_way.is_empty() {
                let Some(next) = untried.next() else { break };
                under_way.push(self.attempt(next, target));
            }
            tokio::select! {
                Some(outcome) = under_way.next() => match outcome {
                    Ok(won) => return Ok(won),
                    Err(new) => {
                        if lost.as_ref().is_none_or(|lost| new.is_answer && !lost.is_answer) {
                            lost = Some(new);
                        }
                        under_way.extend(untried.next().map(|next| self.attempt(next, target)));
                    }
                },
                () = sleep(STAGGER), if untried.len() > 0 => {
                    under_way.extend(untried.next().map(|next| self.attempt(next, target)));
                }
            }
        }
        let none = || ConnectRefusal::new(RefusalReason::Unreachable, "the cluster has no gateway");
        Err(lost.map_or_else(none, |lost| lost.refusal))
    }

    async fn attempt(&self, gateway: Arc<KnownGateway>, target: &TunnelTarget) -> Result<OpenedRoute, FailedRoute> {
        let name = &gateway.name;
        let unreachable = |why: String| FailedRoute {
            is_answer: false,
            refusal: ConnectRefusal::new(RefusalReason::Unreachable, format!("gateway {name}: {why}")),
        };
        let connected = self.gateways.connect(&gateway).await;
        let stream = connected.map_err(|error| unreachable(ErrorChain(&error).to_string()))?;
        match ask(stream, target).await {
            Ok(stream) => Ok(OpenedRoute { stream, through: name.clone() }),
            Err(AskError::Refused(refusal)) => {
                let text = format!("gateway {name}: {refusal}");
                Err(FailedRoute { is_answer: true, refusal: ConnectRefusal::new(refusal.reason, text) })
            }
            Err(error) => Err(unreachable(ErrorChain(&error).to_string())),
        }
    }
}

impl TunnelOpener for ClusterDialer {
    type Stream = TokioIo<Upgraded>;
    type Key = String;

    async fn open(&self, target: &TunnelTarget) -> Result<OpenedTunnel<Self::Stream, String>, ConnectRefusal> {
        let raced = timeout(BUDGET, self.race(target)).await;
        let silent = || ConnectRefusal::new(RefusalReason::TimedOut, format!("no gateway responded within {BUDGET:?}"));
        let won = raced.unwrap_or_else(|_| Err(silent()))?;
        let tunnel = self.gateways.tunnels.enter(won.through);
        let tunnel = tunnel
            .ok_or_else(|| ConnectRefusal::new(RefusalReason::Busy, "the limit of concurrent tunnels is reached"))?;
        Ok(OpenedTunnel { stream: won.stream, tunnel })
    }

    fn connects(&self) -> &Connects {
        &self.connects
    }
}
