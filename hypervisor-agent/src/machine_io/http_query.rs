//! A question to a component that answers on its machine's own loopback.

use std::{error::Error, fmt, net::SocketAddr, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::{access::MachineAccess, https, tls::client_from_pem};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(2);

/// Who is asked, and what.
#[derive(Clone, Serialize, Deserialize)]
pub struct HttpQuery {
    /// Where it listens.
    pub address: SocketAddr,
    /// The path of the `GET`.
    pub path: String,
    /// How both sides know each other; `None` for plain HTTP.
    pub tls: Option<HttpQueryTls>,
}

/// How both sides of a question know each other.
#[derive(Clone, Serialize, Deserialize)]
pub struct HttpQueryTls {
    /// The name that the server's certificate must hold.
    pub server_name: String,
    /// The authorities that it is verified by, PEM.
    pub authority: Vec<u8>,
    /// The certificate to show and its key, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Without the key that it shows.
impl fmt::Debug for HttpQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpQuery").field("address", &self.address).field("path", &self.path).finish_non_exhaustive()
    }
}

/// The status of the answer; else why there is none, by its innermost cause.
pub(super) async fn ask(access: &MachineAccess, question: &HttpQuery) -> Result<u16, String> {
    match timeout(ANSWER, get(access, question)).await {
        Ok(answer) => answer.map_err(|error| root_cause(error.as_ref())),
        Err(_) => Err(format!("{} does not answer within {} s", question.path, ANSWER.as_secs())),
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

fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
