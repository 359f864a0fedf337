//! A fake kube-apiserver: it serves health and the few objects that Keelway stores in a new cluster.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, ensure};
use http::{Method, Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use rustix::process::kill_process;
use rustls::{ClientConfig, crypto::ring};
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinSet};
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{
    program::{StartedProgram, address_of},
    serving::{self, ClientAuthentication, HttpResponse, ShownCertificate, text},
    signal_order::{SignalOrder, SignalTrigger},
};

/// The path of ClusterRoleBindings, without a name.
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/";
/// The ClusterRoleBinding that grants the driver its rights. The user name of the driver is the same.
const DRIVER: &str = "keelway:driver";
/// The group that has all rights without a binding.
const MASTERS: &str = "system:masters";

/// An order to send a signal when objects are stored.
#[derive(Debug, Default)]
pub(super) struct StorageTrigger(Mutex<Option<SignalOrder>>);

impl StorageTrigger {
    pub(super) fn set(&self, order: SignalOrder) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
    }

    /// Counts one stored object, and sends the signal if the order names this one.
    fn stored(&self) {
        let mut order = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(SignalOrder { signal, moment: SignalTrigger::Stored(nth, pid) }) = *order else { return };
        if nth > 1 {
            *order = Some(SignalOrder { signal, moment: SignalTrigger::Stored(nth - 1, pid) });
            return;
        }
        *order = None;
        // If the process has already ended, it gets no signal. The test detects that.
        let _ = kill_process(pid, signal);
    }
}

struct FakeApiServer {
    store: EtcdConnection,
    /// Objects by path.
    objects: Mutex<BTreeMap<String, Value>>,
    watch: Arc<StorageTrigger>,
}

pub(super) async fn serve(program: &StartedProgram, watch: Arc<StorageTrigger>) -> anyhow::Result<()> {
    let clients = ClientAuthentication::Known(program.read_flag("client-ca-file")?);
    let pair = (program.read_flag("tls-cert-file")?, program.read_flag("tls-private-key-file")?);
    let config = serving::config(&pair.0, &pair.1, clients)?;
    let server = Arc::new(FakeApiServer { store: EtcdConnection::of(program)?, objects: Mutex::default(), watch });
    serving::serve(program.bind_address()?, config, move |shown, request| {
        let server = Arc::clone(&server);
        async move { server.answer(shown, request).await }
    })
    .await
}

impl FakeApiServer {
    async fn answer(&self, shown: ShownCertificate, request: Request<Incoming>) -> HttpResponse {
        let path = decoded(request.uri().path());
        if path == "/readyz" {
            return match self.store.ready().await {
                Ok(()) => text(StatusCode::OK, "ok"),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("etcd: {error:#}")),
            };
        }
        let (method, user) = (request.method().clone(), shown.and_then(|der| ApiUser::of(&der)));
        if !user.is_some_and(|user| self.allows(&user, &method, &path)) {
            return failure(StatusCode::FORBIDDEN);
        }
        if method == Method::PATCH { self.apply(path, request).await } else { self.get(&path) }
    }

    fn objects(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver may read its own binding, if the binding exists.
    fn allows(&self, user: &ApiUser, method: &Method, path: &str) -> bool {
        let own = format!("{BINDINGS}{DRIVER}");
        user.groups.iter().any(|group| group == MASTERS)
            || (user.name == DRIVER && *method == Method::GET && path == own && self.objects().contains_key(&own))
    }

    fn get(&self, path: &str) -> HttpResponse {
        self.objects().get(path).map_or_else(|| failure(StatusCode::NOT_FOUND), object)
    }

    async fn apply(&self, path: String, request: Request<Incoming>) -> HttpResponse {
        let is_apply = request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/apply-patch+yaml");
        let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        match serde_json::from_slice::<Value>(&body) {
            Ok(value) if is_apply => {
                self.objects().insert(path, value.clone());
                self.watch.stored();
                object(&value)
            }
            _ => failure(StatusCode::BAD_REQUEST),
        }
    }
}

fn object(value: &Value) -> HttpResponse {
    text(StatusCode::OK, value.to_string())
}

fn failure(code: StatusCode) -> HttpResponse {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": code.canonical_reason(), "message": code.to_string(),
    });
    text(code, status.to_string())
}

/// Returns a path with `%3A` decoded to a colon.
fn decoded(path: &str) -> String {
    path.replace("%3A", ":").replace("%3a", ":")
}

/// The user that a client certificate identifies.
struct ApiUser {
    name: String,
    groups: Vec<String>,
}

impl ApiUser {
    fn of(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|group| Some(group.as_str().ok()?.to_owned()));
        Some(Self { name, groups: groups.collect() })
    }
}

/// A client of etcd.
struct EtcdConnection {
    address: SocketAddr,
    tls: TlsConnector,
}

impl EtcdConnection {
    fn of(program: &StartedProgram) -> anyhow::Result<Self> {
        let url = program.flag("etcd-servers")?.split(',').next().unwrap_or_default();
        let (chain, key) = serving::pair(&program.read_flag("etcd-certfile")?, &program.read_flag("etcd-keyfile")?)?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(serving::authorities(&program.read_flag("etcd-cafile")?)?)
            .with_client_auth_cert(chain, key)?;
        Ok(Self { address: address_of(url)?, tls: TlsConnector::from(Arc::new(config)) })
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let stream = TcpStream::connect(self.address).await?;
        let stream = self.tls.connect(ServerName::IpAddress(self.address.ip().into()), stream).await?;
        let (mut sender, connection) = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await?;
        let mut background = JoinSet::new();
        background.spawn(connection);
        let request = Request::get("/readyz").header("host", "etcd").body(Empty::new()).context("no request")?;
        let status = sender.send_request(request).await?.status();
        ensure!(status == StatusCode::OK, "it answers {status}");
        Ok(())
    }
}
