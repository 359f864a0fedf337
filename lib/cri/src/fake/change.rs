//! Calls that change something: records them and applies injected faults.

use std::time::Duration;

use k8s_cri::v1;
use rustix::process::Pid;
use tonic::{Request, Response, Status, transport::server::UdsConnectInfo};

use super::{CallFault, Fake, SignalTiming, lock, now, state};

impl Fake {
    pub(super) fn record_query(&self, method: &'static str, object: impl Into<String>) {
        self.shared.faults.notify_call();
        lock(&self.shared.journal).record_query(method, object.into());
    }

    /// Makes a change, with the fault that was injected for it.
    pub(super) async fn change<T>(
        &self,
        method: &'static str,
        object: String,
        caller: Option<Pid>,
        effect: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        self.shared.faults.notify_call();
        if !self.shared.faults.wait_for_signals(caller).await {
            return Err(Status::cancelled("the caller was killed"));
        }
        let call = lock(&self.shared.journal).record_change(method, object);
        let fault = self.shared.faults.at(call);
        match fault {
            Some(CallFault::Fail) => return Err(Status::internal("told to fail")),
            Some(CallFault::Hang) => std::future::pending().await,
            Some(CallFault::LoseAnswer | CallFault::Signal(..)) | None => {}
        }
        let mut answer = effect.await.map(Response::new);
        match fault {
            Some(CallFault::LoseAnswer) => return Err(Status::unavailable("told to lose the answer")),
            Some(CallFault::Signal(signal, SignalTiming::BeforeAnswer)) => self.shared.faults.signal(caller, signal),
            Some(CallFault::Signal(signal, SignalTiming::AfterAnswer)) => {
                let signal = self.shared.faults.pending_signal(caller, signal);
                // An error has no extensions to carry the signal. The signal is dropped here, and still waits for the caller's next call.
                if let Ok(answer) = &mut answer {
                    answer.extensions_mut().insert(signal);
                }
            }
            Some(CallFault::Fail | CallFault::Hang) | None => {}
        }
        answer
    }

    pub(super) async fn stop(&self, id: &str, grace: Duration) {
        let ended = self.changing(|state| !grace.is_zero() && state.terminate(id, now()));
        if ended {
            return;
        }
        // A test may end the container in the meantime.
        let _ = tokio::time::timeout(grace, self.ended(id)).await;
        self.changing(|state| state.kill(id, now()));
    }

    async fn ended(&self, id: &str) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let running = |container: &state::FakeContainer| container.state() == v1::ContainerState::ContainerRunning;
            if !self.state().containers.get(id).is_some_and(running) {
                return;
            }
            changed.await;
        }
    }
}

/// Returns the process at the other end of a Unix socket.
pub(super) fn caller<T>(request: &Request<T>) -> Option<Pid> {
    let peer = request.extensions().get::<UdsConnectInfo>()?;
    Pid::from_raw(peer.peer_cred?.pid()?)
}
