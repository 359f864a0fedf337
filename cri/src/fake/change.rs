//! One change: noted, with what is to go wrong with it.

use std::time::Duration;

use k8s_cri::v1;
use rustix::process::Pid;
use tonic::{Request, Response, Status, transport::server::UdsConnectInfo};

use super::{Fake, Fault, When, lock, now, state};

impl Fake {
    pub(super) fn looked(&self, method: &'static str, object: impl Into<String>) {
        self.shared.faults.call_came_in();
        lock(&self.shared.journal).look(method, object.into());
    }

    /// Makes one change, with what is to go wrong with it.
    pub(super) async fn change<T>(
        &self,
        method: &'static str,
        object: String,
        caller: Option<Pid>,
        effect: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        self.shared.faults.call_came_in();
        if !self.shared.faults.spared(caller).await {
            return Err(Status::cancelled("the caller was killed"));
        }
        let call = lock(&self.shared.journal).change(method, object);
        let fault = self.shared.faults.at(call);
        match fault {
            Some(Fault::Fail) => return Err(Status::internal("told to fail")),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::LoseAnswer | Fault::Signal(..)) | None => {}
        }
        let mut answer = effect.await.map(Response::new);
        match fault {
            Some(Fault::LoseAnswer) => return Err(Status::unavailable("told to lose the answer")),
            Some(Fault::Signal(signal, When::BeforeAnswer)) => self.shared.faults.signal(caller, signal),
            Some(Fault::Signal(signal, When::AfterAnswer)) => {
                let signal = self.shared.faults.pending_signal(caller, signal);
                // A refusal carries nothing; dropped here, the signal still waits for the caller's next call.
                if let Ok(answer) = &mut answer {
                    answer.extensions_mut().insert(signal);
                }
            }
            Some(Fault::Fail | Fault::Hang) | None => {}
        }
        answer
    }

    pub(super) async fn stop(&self, id: &str, grace: Duration) {
        let ended = self.changing(|state| !grace.is_zero() && state.ask_to_end(id, now()));
        if ended {
            return;
        }
        // A test may end it meanwhile.
        let _ = tokio::time::timeout(grace, self.ended(id)).await;
        self.changing(|state| state.kill(id, now()));
    }

    async fn ended(&self, id: &str) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let running = |container: &state::Container| container.state() == v1::ContainerState::ContainerRunning;
            if !self.state().containers.get(id).is_some_and(running) {
                return;
            }
            changed.await;
        }
    }
}

/// The process at the other end of a Unix socket.
pub(super) fn caller<T>(request: &Request<T>) -> Option<Pid> {
    let peer = request.extensions().get::<UdsConnectInfo>()?;
    Pid::from_raw(peer.peer_cred?.pid()?)
}
