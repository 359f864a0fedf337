//! Access to the cluster's API. Every wait has a deadline.

use std::{fmt::Debug, future::Future, net::SocketAddr, pin::pin, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::TryStreamExt;
use keelway_http_proxy::{HttpProxies, InvalidHttpProxy, KubeClientConfig};
use kube::{
    Api, Client, Config, Resource, ResourceExt,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower::timeout::{TimeoutLayer, error::Elapsed};

use crate::authority::SERVER_NAME;

/// How long a connection may take to be established.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a response may take to begin, and how long one that is not a watch may take to end.
const ANSWER: Duration = Duration::from_secs(30);
/// The same for a client whose caller retries through another ingress.
const FRANK_ANSWER: Duration = Duration::from_secs(10);
/// The duration of a watch, in seconds, as requested from the API server. The API server ends the watch by then.
const WATCH_SECONDS: u32 = 280;
/// When this process ends a watch itself, because the API server that should end it is gone.
const WATCH: Duration = Duration::from_secs(300);
/// The pause before a retry of something that failed or ended at once.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);
/// Help text: names the component that does what a worker waits for.
pub(crate) const CONTROLLER: &str = "the cluster's cluster-controller does this; check it with `keelway status` and `keelway logs` where the cluster is managed";

/// Help text: how a worker whose certificate has expired gets another one.
pub const ENDED: &str = "the daemon renews it once it reaches the cluster; if its log reports that it cannot, run `keelway node forget`, and `keelway node join` with a new token";

/// A request to the API failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The authorities cannot be parsed.
    #[error("the cluster's authorities are not valid PEM certificates")]
    Authorities(#[source] rustls_pki_types::pem::Error),
    /// The address cannot be part of a URL.
    #[error("{0} is not a valid address of an API server")]
    Address(SocketAddr),
    /// The client cannot be built.
    #[error("cannot create an API client")]
    Client(#[source] Box<kube::Error>),
    /// A request failed.
    #[error("cannot {operation}")]
    Request {
        /// The requested operation.
        operation: String,
        /// The error of the client.
        #[source]
        source: Box<kube::Error>,
    },
    /// The HTTP proxy of the worker cannot be used.
    #[error(transparent)]
    Proxy(#[from] InvalidHttpProxy),
    /// A file operation failed.
    #[error(transparent)]
    File(crate::files::NodeFileError),
    /// The worker has no valid certificate.
    #[error("this worker's certificate has expired or does not match its key; {}", ENDED)]
    NoIdentity,
    /// The response did not begin or did not end in time.
    #[error("cannot {operation}: no response within {} s", deadline.as_secs())]
    Silent {
        /// The requested operation.
        operation: String,
        /// How long the client waited.
        deadline: Duration,
    },
    /// A condition was not met in time.
    #[error("timed out after {} s waiting until {what}; {help}", deadline.as_secs())]
    TimedOut {
        /// The condition.
        what: String,
        /// What the user can do.
        help: &'static str,
        /// How long the client waited.
        deadline: Duration,
        /// The last error while waiting, if there was one.
        #[source]
        source: Option<Box<ApiError>>,
    },
}

impl ApiError {
    pub(crate) fn request(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let operation = operation.into();
        move |source| {
            let is_late = matches!(&source, kube::Error::Service(error) if error.is::<Elapsed>());
            if is_late {
                return Self::Silent { operation, deadline: ANSWER };
            }
            Self::Request { operation, source: Box::new(source) }
        }
    }

    /// Returns the status code of the API server's response.
    pub(crate) fn code(&self) -> Option<u16> {
        let Self::Request { source, .. } = self else { return None };
        code(source)
    }

    /// Whether a retry may succeed: there was no response, or its status code is a temporary one.
    pub(crate) fn is_transient(&self) -> bool {
        if let Self::Request { source, .. } = self {
            let is_cut_off = matches!(**source, kube::Error::Service(_) | kube::Error::HyperError(_));
            return is_cut_off || code(source).is_some_and(|code| matches!(code, 408 | 409 | 429 | 500..));
        }
        matches!(self, Self::Silent { .. })
    }
}

/// Returns the status code of the API server's response.
pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

/// The credentials of a client.
pub(crate) enum ApiCredentials<'a> {
    /// A bearer token.
    Token(&'a str),
    /// A client certificate and its key, both PEM.
    Certificate { certificate: &'a str, key: &'a str },
}

/// Parses the certificates of a PEM bundle.
pub(crate) fn certificates(pem: &str) -> Result<Vec<Vec<u8>>, ApiError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|certificate| certificate.map(|der| der.to_vec()))
        .collect::<Result<_, _>>()
        .map_err(ApiError::Authorities)
}

/// Builds a client of the API server at an address, which these authorities verify.
pub(crate) fn client(
    address: SocketAddr,
    authorities: Vec<Vec<u8>>,
    identity: &ApiCredentials<'_>,
    proxies: &HttpProxies,
) -> Result<Client, ApiError> {
    build(configuration(address, authorities, identity)?, proxies, ANSWER)
}

/// Builds the same client without automatic retries, for a caller that retries through another ingress. By default, a client retries
/// after status 429, which is also the response if a PodDisruptionBudget forbids an eviction.
pub(crate) fn client_without_retries(
    address: SocketAddr,
    authorities: Vec<Vec<u8>>,
    identity: &ApiCredentials<'_>,
    proxies: &HttpProxies,
) -> Result<Client, ApiError> {
    let mut config = configuration(address, authorities, identity)?;
    config.default_retry = false;
    build(config, proxies, FRANK_ANSWER)
}

fn configuration(
    address: SocketAddr,
    authorities: Vec<Vec<u8>>,
    identity: &ApiCredentials<'_>,
) -> Result<Config, ApiError> {
    let url = format!("https://{address}").parse().map_err(|_| ApiError::Address(address))?;
    let mut config = Config::new(url);
    config.root_cert = Some(authorities);
    config.tls_server_name = Some(SERVER_NAME.to_owned());
    config.connect_timeout = Some(CONNECT);
    match identity {
        ApiCredentials::Token(token) => config.auth_info.token = Some((*token).to_owned().into()),
        ApiCredentials::Certificate { certificate, key } => {
            config.auth_info.client_certificate_data = Some(STANDARD.encode(certificate));
            config.auth_info.client_key_data = Some(STANDARD.encode(key).into());
        }
    }
    Ok(config)
}

fn build(config: Config, proxies: &HttpProxies, answer: Duration) -> Result<Client, ApiError> {
    let builder =
        KubeClientConfig::new(config, proxies).builder().map_err(|source| ApiError::Client(Box::new(source)))?;
    Ok(builder.with_layer(&TimeoutLayer::new(answer)).build())
}

/// Calls `ask` again while its errors are transient, for at most `limit`.
pub(crate) async fn persist<T>(limit: Duration, ask: impl AsyncFn() -> Result<T, ApiError>) -> Result<T, ApiError> {
    let end = Instant::now() + limit;
    loop {
        match ask().await {
            Err(error) if error.is_transient() && Instant::now() < end => sleep(AGAIN).await,
            outcome => return outcome,
        }
    }
}

/// Creates an object, for at most `limit`. None: there is one with its name.
pub(crate) async fn create<K>(
    objects: &Api<K>,
    object: &K,
    (operation, limit): (&str, Duration),
) -> Result<Option<K>, ApiError>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let create = async || match objects.create(&PostParams::default(), object).await {
        Ok(created) => Ok(Some(created)),
        Err(error) if code(&error) == Some(409) => Ok(None),
        Err(error) => Err(ApiError::request(operation)(error)),
    };
    persist(limit, create).await
}

/// A condition of an object in the cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitCondition<'a> {
    pub(crate) what: &'a str,
    /// What the user can do if the condition is not met.
    pub(crate) help: &'static str,
    pub(crate) deadline: Duration,
}

/// Watches one object until `look` returns a value for it. If this process created the object, the watch starts at the version `made`.
/// Errors are retried until the deadline, except for status 401 and 403, which are returned.
pub(crate) async fn wait_for<K, T>(
    api: &Api<K>,
    name: &str,
    wait: WaitCondition<'_>,
    mut made: Option<K>,
    mut look: impl FnMut(K) -> Option<T>,
) -> Result<T, ApiError>
where
    K: Clone + DeserializeOwned + Debug + Resource,
{
    let mut last = None;
    let watched = timeout(wait.deadline, async {
        loop {
            let began = Instant::now();
            let mut look = |object: Option<K>| object.and_then(&mut look);
            let ended = match made.take() {
                Some(object) => follow_from(api, name, object, &mut look).await,
                None => follow(api, name, &mut look).await,
            };
            match ended {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) if matches!(error.code(), Some(401 | 403)) => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, what = wait.what, "watch ended; retrying");
                    last = Some(Box::new(error));
                }
            }
            sleep_until(began + AGAIN).await;
        }
    })
    .await;
    let WaitCondition { what, help, deadline } = wait;
    watched.unwrap_or_else(|_| Err(ApiError::TimedOut { what: what.to_owned(), help, deadline, source: last }))
}

/// Calls `look` with the current object and then with each change, until the watch ends. `look` receives `None` if the object is absent.
pub(crate) async fn follow<K, T>(
    api: &Api<K>,
    name: &str,
    mut look: impl FnMut(Option<K>) -> Option<T>,
) -> Result<Option<T>, ApiError>
where
    K: Clone + DeserializeOwned + Debug,
{
    // A watch reports nothing about an absent object, and the API server may refuse a watch from an object's own version as too old.
    let this = ListParams::default().fields(&of(name));
    let listed = within(ANSWER, format!("read {name}"), api.list(&this)).await?;
    let version = listed.metadata.resource_version.unwrap_or_default();
    match look(listed.items.into_iter().next()) {
        Some(found) => Ok(Some(found)),
        None => watch(api, name, &version, look).await,
    }
}

/// The same, starting at an object that was just created.
async fn follow_from<K, T>(
    api: &Api<K>,
    name: &str,
    made: K,
    mut look: impl FnMut(Option<K>) -> Option<T>,
) -> Result<Option<T>, ApiError>
where
    K: Clone + DeserializeOwned + Debug + Resource,
{
    let version = made.resource_version().unwrap_or_default();
    match look(Some(made)) {
        Some(found) => Ok(Some(found)),
        None => watch(api, name, &version, look).await,
    }
}

async fn watch<K, T>(
    api: &Api<K>,
    name: &str,
    version: &str,
    mut look: impl FnMut(Option<K>) -> Option<T>,
) -> Result<Option<T>, ApiError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let parameters = WatchParams::default().fields(&of(name)).timeout(WATCH_SECONDS);
    let watched = async {
        let mut events = pin!(api.watch(&parameters, version).await?);
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
    };
    within(WATCH, format!("watch {name}"), watched).await
}

fn of(name: &str) -> String {
    format!("metadata.name={name}")
}

async fn within<T>(
    deadline: Duration,
    operation: String,
    asked: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match timeout(deadline, asked).await {
        Ok(outcome) => outcome.map_err(ApiError::request(operation)),
        Err(_) => Err(ApiError::Silent { operation, deadline }),
    }
}

#[cfg(test)]
mod tests;
