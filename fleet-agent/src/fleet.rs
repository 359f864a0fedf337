//! Sessions with the fleet: one endpoint at a time, as one identity.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use keelway_base::error_chain::ErrorChain;
use keelway_fleet::{FleetToken, names::works_namespace};
use keelway_http_proxy::{HttpProxies, KubeClientConfig};
use kube::{Client, Config, Error};
use tokio::{
    select,
    sync::{mpsc::Sender, watch},
    time::sleep,
};
use tower::timeout::TimeoutLayer;

use crate::{
    AgentDuties,
    authorities::{SessionTrust, TrustChange, certificates},
    heartbeat::AgentHeartbeat,
    identity::{FleetIdentity, IdentityError, IdentityStore},
    inventory::{self, ClusterInventory},
    metrics::AgentMetrics,
    refusal::{SessionPause, is_denied},
    reports::PendingReports,
    works::{self, FleetEvent},
};

/// How long a connection may take to be established.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a response may take to begin.
const ANSWER: Duration = Duration::from_secs(15);
/// The longest sleep until a renewal. A timer stands still while its machine is suspended.
const LOOK: Duration = Duration::from_secs(600);
/// Why a session ends that is followed by another one.
const RENEWED: &str = "renewed the certificate of the agent";
const ADOPTED: &str = "trusts the authorities that the fleet publishes";
/// The first and the longest pause before the agent tries again to follow other authorities. The signer of the fleet reads its files again within a
/// minute after they were replaced, and signs with the previous authority until then.
const FOLLOW_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_FOLLOW_PAUSE: Duration = Duration::from_secs(3600);
/// The time within which the agents of a fleet request certificates of the next authority.
const REQUESTS_WITHIN: Duration = Duration::from_secs(5);

/// A session with the fleet ended.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The authorities of the token cannot be parsed.
    #[error("the authorities of the fleet token are not valid PEM certificates; create a new token")]
    Authorities(#[source] rustls_pki_types::pem::Error),
    /// The URL of the token cannot be parsed.
    #[error("the fleet token has an invalid URL; create a new token")]
    Url(#[source] http::uri::InvalidUri),
    /// The client cannot be built.
    #[error("cannot create a client of the fleet")]
    Client(#[source] Box<Error>),
    /// There is no identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The Lease cannot be renewed.
    #[error("cannot renew the Lease of this agent")]
    Heartbeat(#[source] Box<Error>),
    /// The rights of the agent are gone.
    #[error(
        "the fleet refuses this agent: its cluster was removed from the fleet, or its rights were revoked; what runs in this cluster stays; to \
         register the cluster again, apply the manifests of a new token; otherwise, delete the namespace of the agent"
    )]
    Revoked(#[source] Box<Error>),
    /// The endpoint cannot be verified with authorities that the fleet publishes.
    #[error("the fleet publishes authorities with which its API cannot be verified; the agent keeps those that it has")]
    Unverified(#[source] Box<Error>),
    /// Reports cannot be sent.
    #[error("cannot report to the fleet")]
    Report(#[source] Box<Error>),
    /// The engine has ended.
    #[error("the agent ends")]
    Ended,
}

/// The fleet, as the agent uses it.
pub(crate) struct FleetConnection {
    pub(crate) token: FleetToken,
    /// The file of the token, and its content.
    pub(crate) token_file: (PathBuf, String),
    pub(crate) proxies: HttpProxies,
    pub(crate) identities: IdentityStore,
    /// The namespace of the agent, in which no Work has an effect.
    pub(crate) own_namespace: String,
    /// The unique name of this process.
    pub(crate) holder: String,
    pub(crate) works: Sender<FleetEvent>,
    pub(crate) reports: Arc<PendingReports>,
    pub(crate) inventory: watch::Receiver<Option<ClusterInventory>>,
    pub(crate) metrics: AgentMetrics,
    pub(crate) duties: AgentDuties,
    /// Whether the fleet refuses the agent.
    pub(crate) is_refused: Arc<AtomicBool>,
}

enum FleetCredentials<'a> {
    Token(&'a FleetToken),
    Identity(&'a FleetIdentity),
}

impl FleetConnection {
    /// Uses one endpoint after the other, for as long as each responds. Ends if the fleet refuses the agent, and there is another token.
    pub(crate) async fn run(&self) {
        let mut pause = SessionPause::default();
        for (number, endpoint) in self.token.server.iter().enumerate().cycle() {
            let ended = loop {
                match Box::pin(self.session(endpoint)).await {
                    Ok(what) => tracing::info!(endpoint, "{what}"),
                    Err(error) => break error,
                }
            };
            self.metrics.set_connected(false);
            tracing::warn!(endpoint, error = %ErrorChain(&ended), "the session with the fleet ended");
            let before_next = pause.after(&ended);
            self.is_refused.store(pause.is_refused(), Ordering::Relaxed);
            if pause.is_refused() && self.has_another_token() {
                return;
            }
            if number + 1 == self.token.server.len() {
                sleep(before_next).await;
            }
        }
    }

    fn has_another_token(&self) -> bool {
        let (path, text) = &self.token_file;
        std::fs::read_to_string(path).is_ok_and(|found| found != *text)
    }

    /// Returns when the certificate or the authorities were replaced, so that the next session uses them, and which.
    async fn session(&self, endpoint: &str) -> Result<&'static str, FleetError> {
        let authorities = self.identities.authorities().await?;
        let identity = self.identity(endpoint, &authorities).await?;
        self.metrics.set_certificate(identity.expires, identity.renew_at);
        let client = self.client(endpoint, &authorities, &FleetCredentials::Identity(&identity))?;
        let namespace = works_namespace(&self.token.cluster);
        let trust = SessionTrust { authorities, issuer: identity.issuer.clone() };
        let heartbeat = AgentHeartbeat { client: &client, namespace: &namespace, holder: &self.holder, trust: &trust };
        match heartbeat.renew(Timestamp::now()).await {
            Ok(()) => {}
            Err(Error::Api(status)) if status.code == 401 => {
                // The cluster was removed from the fleet, or the fleet has other authorities. The token decides whether it may come back.
                let bootstrap = self.client(endpoint, &trust.authorities, &FleetCredentials::Token(&self.token))?;
                self.identities.request(&bootstrap, Timestamp::now()).await?;
                return Ok(RENEWED);
            }
            Err(error) if is_denied(&error) => return Err(FleetError::Revoked(Box::new(error))),
            Err(error) => return Err(FleetError::Heartbeat(Box::new(error))),
        }
        self.is_refused.store(false, Ordering::Relaxed);
        tracing::info!(endpoint, cluster = self.token.cluster, "connected to the fleet");
        self.metrics.set_connected(true);
        select! {
            error = heartbeat.run(&self.metrics) => Err(FleetError::Heartbeat(Box::new(error))),
            error = self.reports.send(&client, &namespace) => Err(FleetError::Report(Box::new(error))),
            error = inventory::send(&client, (&self.token.cluster, self.duties), self.inventory.clone(), self.reports.observed()) => Err(FleetError::Report(Box::new(error))),
            () = works::watch(&client, &namespace, &self.own_namespace, &self.works) => Err(FleetError::Ended),
            renewed = self.renew(&client, identity.renew_at) => Ok(renewed.map(|()| RENEWED)?),
            what = self.follow((endpoint, &client), &identity, &trust) => Ok(what),
        }
    }

    /// Waits until the fleet publishes other authorities, and adopts them. What fails is tried again later, while the session continues.
    async fn follow(
        &self,
        (endpoint, client): (&str, &Client),
        identity: &FleetIdentity,
        trust: &SessionTrust,
    ) -> &'static str {
        let mut pause = FOLLOW_PAUSE;
        loop {
            let followed = match trust.changed(client).await {
                TrustChange::Authorities(authorities) => {
                    self.adopt(endpoint, identity, &authorities).await.map(|()| ADOPTED)
                }
                TrustChange::Certificate(issuer) => self.reissue(client, &issuer).await.map(|()| RENEWED),
            };
            match followed {
                Ok(what) => return what,
                Err(error) => tracing::warn!(error = %ErrorChain(&error), "cannot follow the authorities of the fleet"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_FOLLOW_PAUSE);
        }
    }

    /// Stores authorities with which the endpoint was verified. With others, the agent could not even learn of later ones.
    async fn adopt(&self, endpoint: &str, identity: &FleetIdentity, authorities: &str) -> Result<(), FleetError> {
        let client = self.client(endpoint, authorities, &FleetCredentials::Identity(identity))?;
        client.apiserver_version().await.map_err(|error| FleetError::Unverified(Box::new(error)))?;
        Ok(self.identities.trust(authorities).await?)
    }

    /// Requests a certificate of the next authority. Agents do not request theirs all at once.
    async fn reissue(&self, client: &Client, issuer: &str) -> Result<(), FleetError> {
        sleep(rand::random_range(Duration::ZERO..REQUESTS_WITHIN)).await;
        self.identities.request_of(client, Some(issuer), Timestamp::now()).await?;
        Ok(())
    }

    async fn identity(&self, endpoint: &str, authorities: &str) -> Result<FleetIdentity, FleetError> {
        let now = Timestamp::now();
        if let Some(identity) = self.identities.load(now).await? {
            return Ok(identity);
        }
        let client = self.client(endpoint, authorities, &FleetCredentials::Token(&self.token))?;
        let identity = self.identities.request(&client, now).await?;
        tracing::info!(endpoint, cluster = self.token.cluster, "received a certificate");
        Ok(identity)
    }

    /// Renews the certificate when two thirds of its life have passed. A failed renewal is retried, while the session continues.
    async fn renew(&self, client: &Client, at: Timestamp) -> Result<(), IdentityError> {
        loop {
            let now = Timestamp::now();
            let rest = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            if !rest.is_zero() {
                sleep(rest.min(LOOK)).await;
                continue;
            }
            match self.identities.request(client, now).await {
                Ok(_) => return Ok(()),
                Err(error) => tracing::warn!(error = %ErrorChain(&error), "cannot renew the certificate of the agent"),
            }
            sleep(LOOK).await;
        }
    }

    fn client(
        &self,
        endpoint: &str,
        authorities: &str,
        credentials: &FleetCredentials<'_>,
    ) -> Result<Client, FleetError> {
        let mut config = Config::new(endpoint.parse().map_err(FleetError::Url)?);
        config.root_cert = Some(certificates(authorities).map_err(FleetError::Authorities)?);
        config.connect_timeout = Some(CONNECT);
        config.default_retry = false;
        match credentials {
            FleetCredentials::Token(token) => {
                config.auth_info.token = Some(token.bootstrap.expose().to_string().into());
            }
            FleetCredentials::Identity(identity) => {
                config.auth_info.client_certificate_data = Some(STANDARD.encode(&identity.certificate));
                config.auth_info.client_key_data = Some(STANDARD.encode(identity.key.expose()).into());
            }
        }
        let builder = KubeClientConfig::new(config, &self.proxies).builder();
        let builder = builder.map_err(|error| FleetError::Client(Box::new(error)))?;
        Ok(builder.with_layer(&TimeoutLayer::new(ANSWER)).build())
    }
}
