//! The API of the cluster, with a deadline for all that is waited for.

use std::{fmt::Debug, net::SocketAddr, pin::pin, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::TryStreamExt;
use kube::{
    Api, Client, Config,
    api::{WatchEvent, WatchParams},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::authority::SERVER_NAME;

/// How long a connection may take to stand.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a watch is asked for; API servers end it by then.
const WATCH_SECONDS: u32 = 280;
/// How soon something is tried again that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The API cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The authorities cannot be read.
    #[error("the cluster's authorities are no certificates in PEM")]
    Authorities(#[source] rustls_pki_types::pem::Error),
    /// No URL can be made of an address.
    #[error("{0} is no address of an API server")]
    Address(SocketAddr),
    /// A client cannot be made.
    #[error("cannot make a client of the API")]
    Client(#[source] Box<kube::Error>),
    /// A request failed.
    #[error("cannot {operation}")]
    Request {
        /// What was asked for.
        operation: String,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// A file failed.
    #[error(transparent)]
    File(crate::files::FileError),
    /// The worker has no certificate that holds now.
    #[error("this worker's certificate has ended, or is not its own: run `keelway node forget`, and join again")]
    NoIdentity,
    /// Something did not come about.
    #[error("{what}: not within {} s", deadline.as_secs())]
    TimedOut {
        /// What was waited for.
        what: String,
        /// For how long.
        deadline: Duration,
    },
}

impl ApiError {
    pub(crate) fn request(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Request { operation, source: Box::new(source) }
    }

    /// The status code that the API server answered with.
    pub(crate) fn code(&self) -> Option<u16> {
        let Self::Request { source, .. } = self else { return None };
        code(source)
    }
}

/// The status code that an API server answered with.
pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

/// Who asks.
pub(crate) enum Identity<'a> {
    /// The bearer of a token.
    Token(&'a str),
    /// Who has this certificate and its key, both PEM.
    Certificate { certificate: &'a str, key: &'a str },
}

/// The certificates of a bundle in PEM.
pub(crate) fn certificates(pem: &str) -> Result<Vec<Vec<u8>>, ApiError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|certificate| certificate.map(|der| der.to_vec()))
        .collect::<Result<_, _>>()
        .map_err(ApiError::Authorities)
}

/// A client of the API server behind an address, verified by these authorities.
pub(crate) fn client(
    address: SocketAddr,
    authorities: Vec<Vec<u8>>,
    identity: &Identity<'_>,
) -> Result<Client, ApiError> {
    let url = format!("https://{address}").parse().map_err(|_| ApiError::Address(address))?;
    let mut config = Config::new(url);
    config.root_cert = Some(authorities);
    config.tls_server_name = Some(SERVER_NAME.to_owned());
    config.connect_timeout = Some(CONNECT);
    config.proxy_url = None;
    match identity {
        Identity::Token(token) => config.auth_info.token = Some((*token).to_owned().into()),
        Identity::Certificate { certificate, key } => {
            config.auth_info.client_certificate_data = Some(STANDARD.encode(certificate));
            config.auth_info.client_key_data = Some(STANDARD.encode(key).into());
        }
    }
    Client::try_from(config).map_err(|source| ApiError::Client(Box::new(source)))
}

/// Watches one object until `look` has found in it what it wants. What fails on the way is tried again until the deadline.
pub(crate) async fn wait_for<K, T>(
    api: &Api<K>,
    name: &str,
    (what, deadline): (&str, Duration),
    mut look: impl FnMut(K) -> Option<T>,
) -> Result<T, ApiError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let watched = async {
        loop {
            match follow(api, name, |object| object.and_then(&mut look)).await {
                Ok(Some(found)) => return found,
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, what, "watched again");
                    sleep(AGAIN).await;
                }
            }
        }
    };
    timeout(deadline, watched).await.map_err(|_| ApiError::TimedOut { what: what.to_owned(), deadline })
}

/// Watches one object, from how it is now on, for as long as the watch lasts. `None`: it is gone.
pub(crate) async fn follow<K, T>(
    api: &Api<K>,
    name: &str,
    mut look: impl FnMut(Option<K>) -> Option<T>,
) -> Result<Option<T>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let parameters = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
    // From 0 on the object comes first as it is, and then each change.
    let mut events = pin!(api.watch(&parameters, "0").await?);
    while let Some(event) = events.try_next().await? {
        let object = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => Some(object),
            WatchEvent::Deleted(_) => None,
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        };
        if let Some(found) = look(object) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
