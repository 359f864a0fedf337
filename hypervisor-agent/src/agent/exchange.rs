//! The exchange, where agents that cannot be dialled wait for calls. It relays the bytes between driver and agent unchanged.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt};
use keelway_agent_api::proto::{self, exchange_server};
use keelway_api::name::HypervisorName;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::caller::{Caller, CallerRole};

/// How many calls of one machine can be pending.
const CALLS: usize = 16;
/// How long an agent may take to accept a call, which needs one round trip.
const TAKEN: Duration = Duration::from_secs(5);

/// Waiting agents, by the machine names in their certificates.
#[derive(Clone, Default)]
pub(super) struct Exchange(Arc<Mutex<WaitingAgents>>);

#[derive(Default)]
struct WaitingAgents {
    waiting: BTreeMap<HypervisorName, WaitingAgent>,
    /// The number of the last call.
    last: u64,
}

struct WaitingAgent {
    sender: mpsc::Sender<Result<proto::Called, Status>>,
    calls: BTreeMap<u64, PendingCall>,
}

/// A call that the agent has not accepted yet.
struct PendingCall {
    from_driver: Streaming<proto::CallRequest>,
    taken: oneshot::Sender<Streaming<proto::AnswerRequest>>,
}

/// Removes a call when its caller disconnects.
struct CallGuard<'a> {
    exchange: &'a Exchange,
    machine: &'a HypervisorName,
    call: u64,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.exchange.take(self.machine, self.call);
    }
}

impl Exchange {
    fn desk(&self) -> MutexGuard<'_, WaitingAgents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a call to the agent that waits under this name. Returns the call's number.
    fn call(&self, machine: &HypervisorName, call: PendingCall) -> Result<u64, Status> {
        let mut desk = self.desk();
        desk.last += 1;
        let number = desk.last;
        let waiting = desk.waiting.get_mut(machine).filter(|waiting| !waiting.sender.is_closed());
        let waiting =
            waiting.ok_or_else(|| Status::unavailable(format!("the agent of {machine} is not connected here")))?;
        let is_sent =
            waiting.calls.len() < CALLS && waiting.sender.try_send(Ok(proto::Called { call: number })).is_ok();
        if !is_sent {
            return Err(Status::unavailable(format!("the agent of {machine} has too many pending calls")));
        }
        waiting.calls.insert(number, call);
        Ok(number)
    }

    fn take(&self, machine: &HypervisorName, call: u64) -> Option<PendingCall> {
        self.desk().waiting.get_mut(machine)?.calls.remove(&call)
    }
}

type ExchangeStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl exchange_server::Exchange for Exchange {
    type WaitStream = ReceiverStream<Result<proto::Called, Status>>;
    type AnswerStream = ExchangeStream<proto::AnswerResponse>;
    type CallStream = ExchangeStream<proto::CallResponse>;

    async fn wait(&self, request: Request<proto::WaitRequest>) -> Result<Response<Self::WaitStream>, Status> {
        let machine = agent(&request)?;
        let (sender, calls) = mpsc::channel(CALLS);
        // Replacing an earlier stream of the same agent ends that stream.
        self.desk().waiting.insert(machine, WaitingAgent { sender, calls: BTreeMap::new() });
        Ok(Response::new(ReceiverStream::new(calls)))
    }

    async fn answer(
        &self,
        request: Request<Streaming<proto::AnswerRequest>>,
    ) -> Result<Response<Self::AnswerStream>, Status> {
        let machine = agent(&request)?;
        let mut from_agent = request.into_inner();
        let first =
            from_agent.message().await?.ok_or_else(|| Status::invalid_argument("the first message names no call"))?;
        let gone = || Status::not_found("no call has this number");
        let PendingCall { from_driver, taken } = self.take(&machine, first.call).ok_or_else(gone)?;
        taken.send(from_agent).map_err(|_| gone())?;
        let answers = from_driver.map(|said| Ok(proto::AnswerResponse { data: said?.data }));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn call(
        &self,
        request: Request<Streaming<proto::CallRequest>>,
    ) -> Result<Response<Self::CallStream>, Status> {
        let mut from_driver = request.into_inner();
        let first = from_driver
            .message()
            .await?
            .ok_or_else(|| Status::invalid_argument("the first message names no machine"))?;
        let machine: HypervisorName =
            first.machine.parse().map_err(|_| Status::invalid_argument("the machine's name is not valid"))?;
        let (taken, answer) = oneshot::channel();
        let call = self.call(&machine, PendingCall { from_driver, taken })?;
        let pending = CallGuard { exchange: self, machine: &machine, call };
        let silent = || Status::unavailable(format!("the agent of {machine} does not answer the call"));
        let from_agent = timeout(TAKEN, answer).await.map_err(|_| silent())?.map_err(|_| silent())?;
        drop(pending);
        let answers = from_agent.map(|said| Ok(proto::CallResponse { data: said?.data }));
        Ok(Response::new(Box::pin(answers)))
    }
}

/// Returns the machine whose agent sent the request.
fn agent<T>(request: &Request<T>) -> Result<HypervisorName, Status> {
    match request.extensions().get::<Caller>() {
        Some(Caller { role: CallerRole::Agent(machine), .. }) => Ok(machine.clone()),
        Some(Caller { role: CallerRole::Driver, .. }) | None => {
            Err(Status::permission_denied("only agents with a certificate may wait for calls"))
        }
    }
}
