//! Queries to a component that listens on its machine's loopback.

use std::{error::Error, fmt, net::SocketAddr, sync::Arc, time::Duration};

use keelway_base::error_chain::root_cause;
use keelway_tls::{component::client_from_pem, https};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::access::MachineAccess;

/// How long a response may take.
const ANSWER: Duration = Duration::from_secs(2);

/// A `GET` request to a component.
#[derive(Clone, Serialize, Deserialize)]
pub struct HttpQuery {
    /// The address that the component listens on.
    pub address: SocketAddr,
    /// The path of the `GET`.
    pub path: String,
    /// The TLS parameters. `None` for plain HTTP.
    pub tls: Option<HttpQueryTls>,
}

/// The TLS parameters of a query.
#[derive(Clone, Serialize, Deserialize)]
pub struct HttpQueryTls {
    /// The name that the server's certificate must contain.
    pub server_name: String,
    /// The authorities that verify the server's certificate, as PEM.
    pub authority: Vec<u8>,
    /// The client certificate and its key, as PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Leaves out the client's key.
impl fmt::Debug for HttpQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpQuery").field("address", &self.address).field("path", &self.path).finish_non_exhaustive()
    }
}

/// Returns the HTTP status, or the innermost cause of the failure.
pub(super) async fn ask(access: &MachineAccess, question: &HttpQuery) -> Result<u16, String> {
    match timeout(ANSWER, get(access, question)).await {
        Ok(answer) => answer.map_err(|error| root_cause(error.as_ref())),
        Err(_) => Err(format!("{} did not respond within {} s", question.path, ANSWER.as_secs())),
    }
}

async fn get(access: &MachineAccess, question: &HttpQuery) -> Result<u16, Box<dyn Error + Send + Sync>> {
    let HttpQuery { address, path, tls } = question;
    let stream = access.dial(*address, ANSWER).await?;
    let Some(tls) = tls else { return Ok(https::get_plain(stream, *address, path).await?.as_u16()) };
    let identity = tls.identity.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
    let config = Arc::new(client_from_pem(&tls.authority, identity)?);
    Ok(https::get(config, &tls.server_name, stream, *address, path).await?.as_u16())
}
