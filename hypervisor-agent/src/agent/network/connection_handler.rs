//! Authenticates strangers.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use keelway_agent_api::enrollment::AGENT;
use keelway_api::{hypervisor::agent_name, name::HypervisorName};
use keelway_base::error_chain::chain_text;
use keelway_cri::proxy::streams::{self, PendingStreams};
use keelway_tls::{HandshakeError, LogRateLimiter, PeerCertificate, UnauthorizedPeer, read_client_hello};
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{AgentTlsIdentity, Calls, ConnectionLimits, Conversation, DRIVER, StrangerConnection};
use crate::{
    caller::{Caller, CallerRole},
    enrollment::RefusedEnrollment,
};

/// How long a peer may take to send its first bytes after the handshake, which select the protocol.
const FIRST_WORD: Duration = Duration::from_secs(5);

pub(super) struct ConnectionHandler {
    standing: Arc<AgentTlsIdentity>,
    places: Arc<Semaphore>,
    /// Ends the connection of each agent that waits here. A machine has at most one.
    agents: Mutex<BTreeMap<HypervisorName, CancellationToken>>,
    log_limit: LogRateLimiter,
    /// How long the peer may take to read what the agent sent.
    patience: Duration,
    calls: Calls,
    streams: Arc<PendingStreams>,
    stop: CancellationToken,
}

impl ConnectionHandler {
    pub(super) fn new(
        standing: Arc<AgentTlsIdentity>,
        bounds: ConnectionLimits,
        (calls, streams): (Calls, Arc<PendingStreams>),
        stop: CancellationToken,
    ) -> Self {
        let places = Arc::new(Semaphore::new(bounds.conversations));
        let (agents, log_limit) = (Mutex::default(), LogRateLimiter::default());
        let patience = bounds.silence * 2;
        Self { standing, places, agents, log_limit, patience, calls, streams, stop }
    }

    pub(super) async fn handle(self: Arc<Self>, came: StrangerConnection) {
        let from = came.from;
        match self.accept_conversation(came).await {
            Ok(Some(conversation)) => self.dispatch(conversation, from).await,
            Ok(None) => {}
            Err(why) => self.refuse(from, &why),
        }
    }

    /// Returns the authenticated connection. `None` if the peer enrolled the machine: it continues over another connection.
    async fn accept_conversation(
        &self,
        StrangerConnection { stream, from, at }: StrangerConnection,
    ) -> Result<Option<Conversation>, String> {
        let greeted = read_client_hello(stream).await.map_err(|error| chain_text(&error))?;
        if greeted.is_to_enroll() {
            self.standing.enroll(greeted).await.map_err(|error| chain_text(&error))?;
            return Ok(None);
        }
        let server = self.standing.server().ok_or_else(|| RefusedEnrollment::NotYet.to_string())?;
        let stream = server.finish(greeted).await.map_err(|error| chain_text(&error))?;
        let role =
            caller_role(PeerCertificate::of(&stream)).map_err(|error| chain_text(&HandshakeError::Unwanted(error)))?;
        let (stop, place) = match &role {
            CallerRole::Driver => {
                let place = Arc::clone(&self.places).try_acquire_owned();
                (self.stop.clone(), Some(place.map_err(|_| "too many connections")?))
            }
            // A connection of an agent replaces the one before it, and uses no slot of the driver's.
            CallerRole::Agent(machine) => (self.in_place_of_the_one_before(machine), None),
        };
        Ok(Some(Conversation::new(stream, (Caller { role, at }, from), server, stop, self.patience, place)))
    }

    /// Selects the protocol of a connection by its first bytes.
    async fn dispatch(&self, mut conversation: Conversation, from: SocketAddr) {
        match timeout(FIRST_WORD, conversation.is_http2()).await {
            Ok(Ok(true)) => {
                tokio::spawn(self.calls.clone().answer(conversation));
            }
            Ok(Ok(false)) => {
                let may_ask = conversation.caller().role == CallerRole::Driver;
                tokio::spawn(streams::serve(conversation, Arc::clone(&self.streams), may_ask));
            }
            Ok(Err(_)) | Err(_) => self.refuse(from, "it sends no data"),
        }
    }

    fn in_place_of_the_one_before(&self, machine: &HypervisorName) -> CancellationToken {
        let stop = self.stop.child_token();
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = agents.insert(machine.clone(), stop.clone()) {
            before.cancel();
        }
        stop
    }

    /// Logs a refusal. The rate is limited, because strangers control how often this happens.
    fn refuse(&self, from: SocketAddr, why: &str) {
        if self.log_limit.has_room() {
            tracing::warn!(%from, why, "refused a connection");
        }
    }
}

/// Returns the role that a certificate grants. An agent acts for the one machine that its certificate names.
fn caller_role(shown: Result<PeerCertificate, UnauthorizedPeer>) -> Result<CallerRole, UnauthorizedPeer> {
    let PeerCertificate { common_name, dns_names } = shown?;
    match common_name.as_str() {
        DRIVER => Ok(CallerRole::Driver),
        AGENT => {
            let machine = |name: &String| {
                let machine: HypervisorName = name.split_once('.')?.0.parse().ok()?;
                (*name == agent_name(&machine)).then_some(machine)
            };
            let mut machines = dns_names.iter().filter_map(machine);
            let (first, others) = (machines.next(), machines.next());
            first.filter(|_| others.is_none()).map(CallerRole::Agent).ok_or(UnauthorizedPeer::Role(common_name))
        }
        _ => Err(UnauthorizedPeer::Role(common_name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_of_one_machine() {
        let shown = |common_name: &str, dns_names: &[&str]| {
            let dns_names = dns_names.iter().map(|name| (*name).to_owned()).collect();
            caller_role(Ok(PeerCertificate { common_name: common_name.to_owned(), dns_names })).ok()
        };
        let agent = |name: &str| Some(CallerRole::Agent(name.parse().unwrap()));
        assert_eq!(shown(DRIVER, &[]), Some(CallerRole::Driver));
        assert_eq!(shown(AGENT, &["hv-1.hypervisor.keelway", "hypervisor.keelway"]), agent("hv-1"));
        assert_eq!(shown(AGENT, &["hv-1.hypervisor.keelway", "hv-2.hypervisor.keelway"]), None);
        assert_eq!(shown(AGENT, &["hypervisor.keelway", "hv-1.hypervisor.example"]), None);
        assert_eq!(shown(AGENT, &[]), None);
        assert_eq!(shown("keelway:gateway", &["hv-1.hypervisor.keelway"]), None);
    }
}
