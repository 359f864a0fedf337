//! An OpenTelemetry collector that keeps the spans that it receives.

use std::{
    cell::RefCell,
    path::PathBuf,
    sync::mpsc::{self, Receiver, Sender},
    time::{Duration, Instant},
};

use keelway_api::jiff::{SignedDuration, Timestamp};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{AnyValue, KeyValue, any_value::Value},
};
use rand::{SeedableRng as _, rngs::ChaCha20Rng};
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Identity, Server, ServerTlsConfig},
};

/// The time within which a span must arrive.
const SENT: Duration = Duration::from_secs(30);

/// A span, with the name of the service that sent it.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) service: String,
    pub(crate) name: String,
    pub(crate) attributes: Vec<(String, String)>,
    /// The log messages in it.
    pub(crate) events: Vec<String>,
}

impl Span {
    pub(crate) fn has(&self, attribute: &str, value: &str) -> bool {
        self.attributes.iter().any(|(name, has)| name == attribute && has == value)
    }
}

pub(crate) struct Collector {
    pub(crate) endpoint: String,
    /// The certificate of its authority.
    pub(crate) authority: PathBuf,
    spans: Receiver<Span>,
    /// Spans that arrived while the test waited for another one.
    others: RefCell<Vec<Span>>,
    _folder: TempDir,
    _runtime: Runtime,
}

struct Taken(Sender<Span>);

#[tonic::async_trait]
impl TraceService for Taken {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of in request.into_inner().resource_spans {
            let resource = pairs(of.resource.unwrap_or_default().attributes);
            let service = resource.into_iter().find(|(name, _)| name == "service.name").unwrap_or_default().1;
            for span in of.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let events = span.events.into_iter().map(|event| event.name).collect();
                let attributes = pairs(span.attributes);
                // If the test has ended, the receiver does not exist any more.
                let _ = self.0.send(Span { service: service.clone(), name: span.name, attributes, events });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn pairs(attributes: Vec<KeyValue>) -> Vec<(String, String)> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        other => format!("{other:?}"),
    };
    attributes.into_iter().map(|pair| (pair.key, text(pair.value))).collect()
}

impl Collector {
    /// Starts a collector with TLS on loopback.
    pub(crate) fn start() -> Self {
        let mut rng = ChaCha20Rng::from_rng(&mut rand::rng());
        let validity = Validity::starting(Timestamp::now(), SignedDuration::from_hours(24)).unwrap();
        let authority = Authority::mint("collectors", validity, &mut rng).unwrap();
        let request = LeafRequest {
            common_name: "collector".to_owned(),
            organizations: Vec::new(),
            dns_names: vec!["localhost".to_owned()],
            ip_addresses: Vec::new(),
            usages: vec![CertificateUsage::ServerAuth],
            validity,
        };
        let issued = authority.issue(&request, &mut rng).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, authority.certificate().pem()).unwrap();
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let (sender, spans) = mpsc::channel();
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(&issued.certificate_pem, issued.key_pem.expose()));
        let mut server = runtime.block_on(async { Server::builder().tls_config(tls) }).unwrap();
        let serving = server.add_service(TraceServiceServer::new(Taken(sender)));
        runtime.spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { endpoint, authority: file, spans, others: RefCell::default(), _folder: folder, _runtime: runtime }
    }

    pub(crate) fn has_nothing(&self) -> bool {
        self.spans.try_recv().is_err()
    }

    /// Waits for a span that matches, and returns it. Each span is returned once.
    pub(crate) fn takes(&self, is_it: impl Fn(&Span) -> bool) -> Span {
        let deadline = Instant::now() + SENT;
        let mut others = self.others.borrow_mut();
        if let Some(at) = others.iter().position(&is_it) {
            return others.remove(at);
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(span) = self.spans.recv_timeout(left) else { panic!("it took only {others:#?}") };
            if is_it(&span) {
                return span;
            }
            others.push(span);
        }
    }
}
