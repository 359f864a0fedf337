//! Health checks of one ingress, over a connection that stays open: a TLS handshake for each check of each worker would occupy the API servers.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::future::{BoxFuture, select_ok};
use keelway_http_proxy::HttpProxies;
use keelway_tls::https::{GetError, HttpsConnection};
use rustls::{CertificateError, ClientConfig, Error as TlsError};
use tokio::{net::TcpStream, time::timeout};

use crate::authority::{SERVER_NAME, handshake_error};

/// How long the response to a health check may take.
const CHECK: Duration = Duration::from_secs(2);
/// The time after which a response is slow.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// What is wrong with an ingress of an unknown authority, and what to do. A join refuses a token of another authority while it has earlier state.
pub(super) const UNKNOWN_AUTHORITY: &str = "presented a certificate of an authority that this worker does not know; if the authority of the cluster was replaced while this worker was away, run `keelway node forget`, delete the worker's peer in the cluster (`kubectl delete wireguardpeer NAME`), and run `keelway node join` with a new token of `keelway join-token create`";

/// An ingress failed its health check.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("no response within {} s", CHECK.as_secs())]
    Silent,
    #[error("invalid response")]
    Ask(#[source] GetError),
    #[error("it {UNKNOWN_AUTHORITY}")]
    UnknownAuthority,
    #[error("no API server behind the ingress is ready (status {0})")]
    NotReady(u16),
}

impl CheckError {
    /// The connection could not be opened.
    fn of_handshake(error: GetError) -> Self {
        match handshake_error(&error) {
            Some(TlsError::InvalidCertificate(CertificateError::UnknownIssuer)) => Self::UnknownAuthority,
            Some(_) | None => Self::Ask(error),
        }
    }

    /// Whether connections through the ingress are dead. An API server that is about to stop is not ready, but still serves its connections.
    pub(super) fn is_loss(&self) -> bool {
        !matches!(self, Self::NotReady(_))
    }
}

/// The local address of a check that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckSource {
    /// It is the address of the check before.
    Same,
    /// The worker's uplink changed: the open connection failed, and a new one has another address. Other connections of the previous address are dead.
    Changed,
}

/// A check that failed.
#[derive(Debug)]
pub(super) struct FailedCheck {
    pub(super) error: CheckError,
    /// The number of connections that failed.
    pub(super) failures: u32,
}

/// A connection that a check left open.
struct KeptConnection {
    connection: HttpsConnection<TcpStream>,
    /// The local address.
    source: IpAddr,
    /// The configuration with which the ingress was verified.
    verified: Arc<ClientConfig>,
}

impl KeptConnection {
    async fn open(address: SocketAddr, proxies: &HttpProxies, config: &Arc<ClientConfig>) -> Result<Self, CheckError> {
        let stream = proxies.connect(address).await.map_err(CheckError::Connect)?;
        let source = stream.local_addr().map_err(CheckError::Connect)?.ip();
        let connection = HttpsConnection::open(Arc::clone(config), SERVER_NAME, stream, address);
        let connection = connection.await.map_err(CheckError::of_handshake)?;
        Ok(Self { connection, source, verified: Arc::clone(config) })
    }

    /// Checks whether the API server at the other end is ready. Returns the local address, and the connection unless it ended.
    async fn check(self) -> Result<(IpAddr, Option<Self>), CheckError> {
        let Self { connection, source, verified } = self;
        let (status, connection) = connection.get("/readyz").await.map_err(CheckError::Ask)?;
        if !status.is_success() {
            return Err(CheckError::NotReady(status.as_u16()));
        }
        Ok((source, connection.map(|connection| Self { connection, source, verified })))
    }
}

/// Checks one ingress.
pub(super) struct IngressChecker {
    address: SocketAddr,
    proxies: HttpProxies,
    kept: Option<KeptConnection>,
    source: Option<IpAddr>,
}

impl IngressChecker {
    pub(super) fn new(address: SocketAddr, proxies: HttpProxies) -> Self {
        Self { address, proxies, kept: None, source: None }
    }

    /// Closes the open connection, so that the next check shows whether the ingress accepts connections.
    pub(super) fn close(&mut self) {
        self.kept = None;
    }

    /// Checks whether the ingress leads to an API server that is ready. The open connection leads to one API server, which may stop while the
    /// ingress has others. If that connection fails or is slow, a new one is checked, too.
    pub(super) async fn check(&mut self, config: &Arc<ClientConfig>) -> Result<CheckSource, FailedCheck> {
        let kept = self.kept.take().filter(|kept| Arc::ptr_eq(&kept.verified, config));
        let failures = if kept.is_some() { 2 } else { 1 };
        let anew = async { KeptConnection::open(self.address, &self.proxies, config).await?.check().await };
        let checks = async {
            let Some(kept) = kept else { return anew.await };
            let mut first = Box::pin(kept.check());
            match timeout(SLOW, &mut first).await {
                Ok(Ok(checked)) => Ok(checked),
                Ok(Err(_)) => anew.await,
                Err(_) => select_ok([first as BoxFuture<'_, _>, Box::pin(anew)]).await.map(|(checked, _)| checked),
            }
        };
        let checked = Box::pin(timeout(CHECK, checks)).await.unwrap_or(Err(CheckError::Silent));
        let (source, kept) = checked.map_err(|error| FailedCheck { error, failures })?;
        self.kept = kept;
        let before = self.source.replace(source);
        Ok(if before.is_none_or(|before| before == source) { CheckSource::Same } else { CheckSource::Changed })
    }
}
