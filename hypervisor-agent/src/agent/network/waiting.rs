//! Waits for calls at another agent. An agent that cannot be dialled connects to the agent of a public machine, and waits there.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use keelway_agent_api::{
    client::DialTarget,
    proto::{self, exchange_client::ExchangeClient},
    relay,
};
use keelway_api::hypervisor::ANY_AGENT;
use keelway_base::error_chain::chain_text;
use rustls_pki_types::ServerName;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tonic::transport::Channel;

use super::{AgentTlsIdentity, StrangerConnection};

/// The first delay before a retry. It doubles up to [`LONGEST`]. A broken connection often works again at once.
const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);
/// How long it may take until the agent waits.
const BEGIN: Duration = Duration::from_secs(10);
/// How long the connection can be silent before it is checked, and then how long the peer may take to respond. A NAT that restarts closes connections
/// without notice.
const SILENCE: Duration = Duration::from_secs(3);

/// Waits at the agent that listens on `address`, for as long as it is polled, and sends each connection to `came`.
pub(super) async fn wait_at(
    address: SocketAddr,
    standing: Arc<AgentTlsIdentity>,
    came: mpsc::Sender<StrangerConnection>,
) {
    let identity = standing.client().await;
    // The name of any agent is sufficient. The other agent only relays bytes that it cannot read: the driver authenticates to this agent.
    let Ok(name) = ServerName::try_from(ANY_AGENT) else { return };
    let mut pause = FIRST;
    loop {
        let since = Instant::now();
        let way = DialTarget::to(&address.to_string(), name.clone(), Arc::clone(&identity));
        let ended = wait_for_call(address, way.channel_that_is_tried(SILENCE), &came).await;
        tracing::warn!(%address, why = ended, "does not wait for calls");
        pause = if since.elapsed() > LONGEST { FIRST } else { (pause * 2).min(LONGEST) };
        sleep(pause).await;
    }
}

/// Waits until the connection ends, and returns the reason.
async fn wait_for_call(address: SocketAddr, channel: Channel, came: &mpsc::Sender<StrangerConnection>) -> String {
    let mut exchange = ExchangeClient::new(channel);
    let mut calls = match timeout(BEGIN, exchange.wait(proto::WaitRequest {})).await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(status)) => return chain_text(&status),
        Err(_) => return format!("no response within {} s", BEGIN.as_secs()),
    };
    tracing::info!(%address, "waits for calls");
    loop {
        match calls.message().await {
            Ok(Some(proto::Called { call })) => {
                tokio::spawn(take(exchange.clone(), call, address, came.clone()));
            }
            Ok(None) => return "the agent there closed the stream, or another agent waits under this name".to_owned(),
            Err(status) => return chain_text(&status),
        }
    }
}

async fn take(
    mut exchange: ExchangeClient<Channel>,
    call: u64,
    from: SocketAddr,
    came: mpsc::Sender<StrangerConnection>,
) {
    let first = proto::AnswerRequest { call, data: Vec::new() };
    let message = |data| proto::AnswerRequest { call: 0, data };
    let opened =
        relay::open(first, message, move |requests| async move { exchange.answer(requests).await }, |said| said.data)
            .await;
    match opened {
        Ok(stream) => {
            // Fails only if the agent stops.
            let _ = came.send(StrangerConnection { stream, from, at: format!("https://{ANY_AGENT}") }).await;
        }
        Err(status) => tracing::debug!(%from, why = chain_text(&status), "cannot answer a call"),
    }
}
