//! Fleet tokens: with one, an agent finds its fleet, verifies it, and requests its identity.
//!
//! The text is one line of base64 (RFC 4648, section 4) of JSON.

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_pki::BootstrapToken;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::names::{LONGEST_CLUSTER_NAME, is_cluster_name};

/// A token with nine endpoints and six authorities needs less than half of this length.
const LONGEST: usize = 65536;
const PEM: &str = "-----BEGIN CERTIFICATE-----";

/// A parsed fleet token. `Debug` prints the id of the bootstrap token, never its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetToken {
    /// The URLs of the fleet's API, which an agent tries in turn.
    pub server: Vec<String>,
    /// The authorities of the fleet's API in PEM.
    pub authorities: String,
    /// The name of the workload cluster. An agent gets no certificate for another name.
    pub cluster: String,
    /// The bootstrap token with which the agent requests its first certificate.
    pub bootstrap: BootstrapToken,
}

/// A text is not a fleet token. Messages never quote the text, because it may contain a secret.
#[derive(Debug, thiserror::Error)]
pub enum FleetTokenError {
    /// The text is empty.
    #[error("the fleet token is empty: write what `keelway fleet token create` printed")]
    Empty,
    /// The text is longer than any token.
    #[error("this is longer than a fleet token can be: copy only what `keelway fleet token create` printed")]
    TooLong,
    /// The text is not base64.
    #[error(
        "this is not a fleet token, or a character of it is missing: copy all that `keelway fleet token create` printed"
    )]
    Encoding(#[source] base64::DecodeError),
    /// The content is not that of a token.
    #[error("this is not a fleet token, or its end is missing: copy all that `keelway fleet token create` printed")]
    Form,
    /// The token has no endpoint that an agent can use.
    #[error(
        "the fleet token names no https:// endpoint: create one with the kubeconfig of a fleet that has an endpoint"
    )]
    NoServer,
    /// The token has no authority.
    #[error("the fleet token has no certificate authority: create a new one with `keelway fleet token create`")]
    NoAuthority,
    /// The name of the cluster is not a name.
    #[error(
        "the fleet token's cluster {0:?} is not an RFC 1123 label of at most {LONGEST_CLUSTER_NAME} characters: create one for such a \
         name with `keelway fleet token create --cluster-name`"
    )]
    Cluster(String),
    /// The bootstrap token is malformed.
    #[error(
        "the fleet token has no bootstrap token of the form ID.SECRET: create a new one with `keelway fleet token create`"
    )]
    Bootstrap,
}

/// The content of a token. Fields of later releases are ignored.
#[derive(Serialize, Deserialize)]
struct FleetTokenPayload {
    server: Vec<String>,
    authorities: String,
    cluster: String,
    bootstrap: String,
}

impl Drop for FleetTokenPayload {
    fn drop(&mut self) {
        self.bootstrap.zeroize();
    }
}

impl FleetToken {
    /// Reads a token. Blanks and line breaks around it and in it are ignored.
    pub fn parse(text: &str) -> Result<Self, FleetTokenError> {
        if text.len() > LONGEST {
            return Err(FleetTokenError::TooLong);
        }
        let text: Zeroizing<String> = Zeroizing::new(text.split_whitespace().collect());
        if text.is_empty() {
            return Err(FleetTokenError::Empty);
        }
        let json = Zeroizing::new(STANDARD.decode(text.as_bytes()).map_err(FleetTokenError::Encoding)?);
        // The error would quote the content.
        let payload: FleetTokenPayload = serde_json::from_slice(&json).map_err(|_| FleetTokenError::Form)?;
        Self::checked(&payload)
    }

    fn checked(payload: &FleetTokenPayload) -> Result<Self, FleetTokenError> {
        if payload.server.is_empty() || !payload.server.iter().all(|url| is_endpoint(url)) {
            return Err(FleetTokenError::NoServer);
        }
        if !payload.authorities.contains(PEM) {
            return Err(FleetTokenError::NoAuthority);
        }
        if !is_cluster_name(&payload.cluster) {
            return Err(FleetTokenError::Cluster(payload.cluster.clone()));
        }
        Ok(Self {
            server: payload.server.clone(),
            authorities: payload.authorities.clone(),
            cluster: payload.cluster.clone(),
            bootstrap: payload.bootstrap.parse().map_err(|_| FleetTokenError::Bootstrap)?,
        })
    }

    /// Returns the text of the token. It is a secret.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let payload = FleetTokenPayload {
            server: self.server.clone(),
            authorities: self.authorities.clone(),
            cluster: self.cluster.clone(),
            bootstrap: self.bootstrap.expose().to_string(),
        };
        // Texts and lists of texts can always be written.
        let json = Zeroizing::new(serde_json::to_vec(&payload).unwrap_or_default());
        Zeroizing::new(STANDARD.encode(&*json))
    }
}

fn is_endpoint(url: &str) -> bool {
    url.strip_prefix("https://").is_some_and(|host| !host.is_empty() && !host.starts_with(['/', ':']))
}
