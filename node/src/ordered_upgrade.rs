//! Upgrades the kubelet when the control plane orders it on the worker's Node.

use std::time::Duration;

use keelway_api::worker::KubeletOrder;
use keelway_base::error_chain::ErrorChain;
use kube::Client;
use tokio::{select, sync::watch, time::sleep};

use crate::{
    api::ApiError,
    deleted_node::ObservedNode,
    information::TrustedInformation,
    lock::{self, WorkerLockError},
    node_event::{self, NodeEventText},
    settings::Layout,
    upgrade::{UpgradeError, UpgradeOptions, UpgradeOutcome, UpgradeTarget, upgrade},
};

/// How long the Node may take to be ready again.
const READY: Duration = Duration::from_secs(300);
/// The pause after an upgrade that failed.
const AGAIN: Duration = Duration::from_secs(60);
/// The reasons of the Events.
const UPGRADED: &str = "KubeletUpgraded";
const FAILED: &str = "KubeletUpgradeFailed";

/// An order was not carried out.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error(transparent)]
    Lock(#[from] WorkerLockError),
    #[error("this machine is not a worker")]
    NoWorker,
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
}

/// A worker that follows the orders on its Node.
pub(crate) struct OrderedWorker<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) name: &'a str,
    pub(crate) node: &'a watch::Sender<ObservedNode>,
    pub(crate) known: &'a watch::Sender<TrustedInformation>,
}

impl OrderedWorker<'_> {
    /// Carries out orders until the daemon ends. One that fails is repeated for as long as the Node has it.
    pub(crate) async fn follow(&self, client: impl Fn() -> Result<Client, ApiError>) {
        let mut node = self.node.subscribe();
        loop {
            let Ok(ordered) = node.wait_for(|node| node.pending_order().is_some()).await else { return };
            let Some(order) = ordered.pending_order().cloned() else { continue };
            drop(ordered);
            tracing::info!(release = order.release, "the control plane ordered an upgrade of the kubelet");
            match self.carry_out(&order).await {
                Ok(outcome) => self.report(&client, false, UPGRADED, &upgraded_text(&outcome)).await,
                Err(error) => {
                    let text = format!("the kubelet of {} does not run yet: {}", order.release, ErrorChain(&error));
                    tracing::error!("{text}");
                    self.report(&client, true, FAILED, &text).await;
                }
            }
            // After an upgrade, the Node shows the version a moment later.
            select! {
                () = sleep(AGAIN) => {}
                _ = node.wait_for(|node| node.pending_order() != Some(&order)) => {}
            }
        }
    }

    async fn carry_out(&self, order: &KubeletOrder) -> Result<UpgradeOutcome, OrderError> {
        let _held = lock::acquire(self.layout, false)?.ok_or(OrderError::NoWorker)?;
        // The worker follows the release of its cluster, unless another one is ordered.
        let is_of_cluster = self.known.borrow().cluster.version == order.release;
        let options = UpgradeOptions {
            layout: self.layout.clone(),
            target: if is_of_cluster { UpgradeTarget::Cluster } else { UpgradeTarget::Release(order.release.clone()) },
            drain: Some(order.drain_timeout.into()),
            timeout: READY,
        };
        Ok(upgrade(&options, |step| tracing::debug!(?step, "upgrading the kubelet")).await?)
    }

    /// Records an Event on the Node. If that fails, the failure is logged and ignored.
    async fn report(
        &self,
        client: impl Fn() -> Result<Client, ApiError>,
        is_warning: bool,
        reason: &str,
        message: &str,
    ) {
        let recorded = match client() {
            Ok(client) => node_event::record(client, self.name, NodeEventText { is_warning, reason, message }).await,
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            tracing::warn!("cannot record an Event: {}", ErrorChain(&error));
        }
    }
}

fn upgraded_text(outcome: &UpgradeOutcome) -> String {
    format!("the kubelet runs {} of {}", outcome.version, outcome.image)
}
