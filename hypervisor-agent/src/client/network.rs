//! The way to an agent's port.

use std::{io, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use keelway_api::{hypervisor::agent_name, name::HypervisorName};
use rustls_pki_types::{InvalidDnsNameError, ServerName};
use tokio::{net::TcpStream, time::timeout};
use tonic::transport::{Channel, Endpoint};

/// How long a port may take to be connected to.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection may be silent before the agent is asked whether it is there, and then until it answers.
const SILENCE: Duration = Duration::from_secs(10);
/// What is on its way to the driver and not read yet, in bytes: of one answer, and of a connection.
const WINDOWS: [u32; 2] = [1 << 18, 1 << 20];

/// A connection to a port at `HOST:PORT`, whoever listens there.
pub async fn reach(address: &str) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT, TcpStream::connect(address)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The way to a machine's agent at `HOST:PORT`, which must prove to be that, for whoever `identity` shows. Nothing is dialled yet, and what broke
/// is dialled again.
///
/// Agent and runtime answer on it: [`keelway_cri::Runtime::on_channel`].
pub fn channel(
    address: &str,
    machine: &HypervisorName,
    identity: Arc<keelway_tls::Client>,
) -> Result<Channel, InvalidDnsNameError> {
    Ok(channel_to(address, ServerName::try_from(agent_name(machine))?, identity))
}

/// The way to whoever listens at `HOST:PORT` and proves to be `name`, for whoever `identity` shows.
pub fn channel_to(address: &str, name: ServerName<'static>, identity: Arc<keelway_tls::Client>) -> Channel {
    let address = address.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let (address, name, identity) = (address.clone(), name.clone(), Arc::clone(&identity));
        async move {
            let stream = identity.connect(name, reach(&address).await?).await.map_err(io::Error::other)?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    let [answer, connection] = WINDOWS;
    // The name stands for nothing, and TLS is the connector's.
    let endpoint = Endpoint::from_static("http://hypervisor")
        .initial_stream_window_size(answer)
        .initial_connection_window_size(connection)
        .http2_keep_alive_interval(SILENCE)
        .keep_alive_timeout(SILENCE)
        .keep_alive_while_idle(true);
    endpoint.connect_with_connector_lazy(connector)
}
