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
    leave::UndrainedPods,
    lock::{self, WorkerLockError},
    node_event::{self, NodeEventText},
    settings::Layout,
    upgrade::{UpgradeError, UpgradeOptions, UpgradeOutcome, UpgradeTarget, uncordon, upgrade},
};

/// How long the Node may take to be ready again.
const READY: Duration = Duration::from_secs(300);
/// The pause after an attempt. Each failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
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
    /// The flags of the command have no effect on an order.
    #[error(
        "{0}; the worker tries again; scale the pods so that their PodDisruptionBudgets allow a disruption, or increase spec.workers.drainTimeout of the Cluster"
    )]
    Pods(UndrainedPods),
    #[error(transparent)]
    Upgrade(UpgradeError),
}

impl From<UpgradeError> for OrderError {
    fn from(error: UpgradeError) -> Self {
        if let UpgradeError::Pods(pods) = error { Self::Pods(pods) } else { Self::Upgrade(error) }
    }
}

/// A worker that follows the orders on its Node.
pub(crate) struct OrderedWorker<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) name: &'a str,
    pub(crate) node: &'a watch::Sender<ObservedNode>,
    pub(crate) known: &'a watch::Sender<TrustedInformation>,
}

impl OrderedWorker<'_> {
    /// Carries out orders until the daemon ends. One that fails is repeated for as long as the Node has it, with growing pauses: each attempt may drain
    /// the worker again. An upgrade that was interrupted after its kubelet started has no order any more, and its Node is uncordoned here.
    pub(crate) async fn follow(&self, client: impl Fn() -> Result<Client, ApiError>) {
        let mut node = self.node.subscribe();
        let mut pause = FIRST_PAUSE;
        loop {
            let order = node.borrow_and_update().pending_order().cloned();
            if let Some(order) = &order {
                tracing::info!(release = order.release, "the control plane ordered an upgrade of the kubelet");
                let ended = self.carry_out(order).await;
                pause = if ended.is_ok() { FIRST_PAUSE } else { LONGEST_PAUSE.min(2 * pause) };
                self.report(&client, order, ended).await;
            } else {
                pause = FIRST_PAUSE;
                self.uncordon().await;
            }
            // After an upgrade, the Node shows the version a moment later.
            let is_another = |node: &ObservedNode| node.pending_order() != order.as_ref();
            select! {
                () = sleep(pause) => {}
                changed = node.wait_for(is_another) => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// Uncordons the Node if an upgrade left it cordoned, unless one runs now.
    async fn uncordon(&self) {
        if !self.layout.cordoned().exists() {
            return;
        }
        let Ok(Some(_held)) = lock::acquire(self.layout, false) else { return };
        if let Err(error) = uncordon(self.layout, self.name).await {
            tracing::warn!("cannot uncordon the Node, which an upgrade cordoned: {}", ErrorChain(&error));
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

    /// Records an Event on the Node. If that fails, the failure is logged and ignored. A command of a user that runs now is no failure.
    async fn report(
        &self,
        client: impl Fn() -> Result<Client, ApiError>,
        order: &KubeletOrder,
        ended: Result<UpgradeOutcome, OrderError>,
    ) {
        let (is_warning, reason, message) = match &ended {
            Ok(outcome) => (false, UPGRADED, upgraded_text(outcome)),
            Err(OrderError::Lock(WorkerLockError::Busy(_))) => return,
            Err(error) => {
                let message = format!("the kubelet of {} does not run yet: {}", order.release, ErrorChain(error));
                tracing::error!("{message}");
                (true, FAILED, message)
            }
        };
        let text = NodeEventText { is_warning, reason, message: &message };
        let recorded = match client() {
            Ok(client) => node_event::record(client, self.name, text).await,
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

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Event;
    use keelway_api::duration::Span;
    use kube::client::Body;

    use super::*;
    use crate::samples::cluster;

    /// Reports the end of an order to a fake API, and returns the Event.
    async fn reported(ended: Result<UpgradeOutcome, OrderError>) -> Event {
        let recorded = Arc::new(Mutex::new(None));
        let written = Arc::clone(&recorded);
        let client = move || {
            let written = Arc::clone(&written);
            let service = tower::service_fn(move |request: Request<Body>| {
                let written = Arc::clone(&written);
                async move {
                    let event = request.into_body().collect_bytes().await.unwrap();
                    *written.lock().unwrap() = Some(serde_json::from_slice::<Event>(&event).unwrap());
                    Ok::<_, Infallible>(Response::new(Body::from(event)))
                }
            });
            Ok(Client::new(service, "default"))
        };
        let (layout, node) = (Layout::new("/nowhere"), watch::Sender::default());
        let known = watch::Sender::new(TrustedInformation { cluster: cluster(), authorities: String::new() });
        let worker = OrderedWorker { layout: &layout, name: "w1", node: &node, known: &known };
        let order = KubeletOrder { release: "1.37.0".to_owned(), drain_timeout: Span::minutes(5) };
        worker.report(client, &order, ended).await;
        recorded.lock().unwrap().take().unwrap()
    }

    #[tokio::test]
    async fn an_event_names_the_pods_that_block_an_order_and_what_to_change() {
        let limit = Duration::from_secs(300);
        let pods = UndrainedPods { ending: vec!["default/db".into()], held: vec!["default/web".into()], limit };
        let event = reported(Err(UpgradeError::Pods(pods).into())).await;
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some(FAILED)));
        assert_eq!(event.involved_object.name.as_deref(), Some("w1"));
        let text = "the kubelet of 1.37.0 does not run yet: after 300 s, pods have not terminated: default/db; pods are held by \
                    PodDisruptionBudgets: default/web; the worker tries again; scale the pods so that their PodDisruptionBudgets allow a \
                    disruption, or increase spec.workers.drainTimeout of the Cluster";
        assert_eq!(event.message.as_deref(), Some(text));
    }
}
