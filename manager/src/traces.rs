//! Sends spans of passes to an OpenTelemetry collector, if one is configured.
//!
//! The configuration is in the environment variables of OpenTelemetry
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>). Spans are sent over gRPC, and only if
//! `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector.

use std::{env, fs, net::IpAddr, path::PathBuf, time::Duration};

use http::Uri;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter, WithExportConfig as _, WithTonicConfig as _,
    tonic_types::transport::{Certificate, ClientTlsConfig},
};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tokio::task::spawn_blocking;
use tracing::{Level, Metadata, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer,
    filter::{FilterExt as _, filter_fn},
    registry::LookupSpan,
};

/// The name of the service if `OTEL_SERVICE_NAME` is not set.
const SERVICE: &str = "keelway-manager";
/// How long sending the last spans may take.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The endpoint is not a URL of a collector.
    #[error("{variable}: {endpoint} is not a valid address of a collector; must be https://HOST:PORT")]
    Endpoint {
        /// The environment variable with the endpoint.
        variable: &'static str,
        /// The endpoint.
        endpoint: String,
    },
    /// The endpoint is on another machine and has no TLS, so that others could read and change the spans.
    #[error(
        "{variable}: {endpoint} is on another machine and has no TLS; use https://, or a collector on this machine"
    )]
    Plain {
        /// The environment variable with the endpoint.
        variable: &'static str,
        /// The endpoint.
        endpoint: String,
    },
    /// The authorities for the collector's certificate cannot be read.
    #[error("{variable}: could not read {}", path.display())]
    Certificate {
        /// The environment variable with the path.
        variable: &'static str,
        /// The path of the certificates.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The exporter cannot be created with this configuration.
    #[error("could not send spans")]
    Exporter(#[from] ExporterBuildError),
}

/// Sends spans until it is ended.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts sending to the collector that the environment names; none if it names none. Needs a runtime.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn begin() -> Result<Option<Self>, TracesError> {
        let Some((variable, endpoint)) =
            first_set_variable(["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
        else {
            return Ok(None);
        };
        let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(&endpoint);
        if is_secure(variable, &endpoint)? {
            exporter = exporter.with_tls_config(trusted()?);
        }
        let resource = Resource::builder();
        let named = first_set_variable(["OTEL_SERVICE_NAME"]).is_some();
        let resource = if named { resource } else { resource.with_service_name(SERVICE) };
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter.build()?).with_resource(resource.build()).build();
        Ok(Some(Self(provider)))
    }

    /// Returns a layer that collects the spans of Keelway, each with the log lines in it.
    #[must_use]
    pub fn layer<S: Subscriber + for<'span> LookupSpan<'span>>(&self) -> impl Layer<S> {
        let ours = filter_fn(is_told).with_max_level_hint(LevelFilter::DEBUG);
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer(SERVICE))
            .with_location(false)
            .with_threads(false)
            .with_filter(ours.and(LevelFilter::DEBUG))
    }

    /// Sends the remaining spans.
    pub async fn end(self) {
        let ended = spawn_blocking(move || self.0.shutdown_with_timeout(LAST_SPANS)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "could not send the last spans");
        }
    }
}

fn is_told(of: &Metadata<'_>) -> bool {
    of.target().starts_with("keelway") && (of.is_span() || *of.level() <= Level::INFO)
}

/// Returns the first of these variables that is set and not empty.
fn first_set_variable<const N: usize>(variables: [&'static str; N]) -> Option<(&'static str, String)> {
    let value = |variable| env::var(variable).ok().filter(|value| !value.is_empty());
    variables.into_iter().find_map(|variable| Some((variable, value(variable)?)))
}

/// Returns whether the connection to an endpoint is encrypted. An endpoint without TLS must be on this machine.
fn is_secure(variable: &'static str, endpoint: &str) -> Result<bool, TracesError> {
    let no_address = || TracesError::Endpoint { variable, endpoint: endpoint.to_owned() };
    let uri: Uri = endpoint.parse().map_err(|_| no_address())?;
    let host = uri.host().ok_or_else(no_address)?;
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    match uri.scheme_str() {
        Some("https") => Ok(true),
        Some("http") if host == "localhost" || address.is_some_and(|address| address.is_loopback()) => Ok(false),
        Some("http") => Err(TracesError::Plain { variable, endpoint: endpoint.to_owned() }),
        _ => Err(no_address()),
    }
}

/// Returns the authorities for the collector's certificate: those in `OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE` or `OTEL_EXPORTER_OTLP_CERTIFICATE`,
/// else those of the machine.
fn trusted() -> Result<ClientTlsConfig, TracesError> {
    let certificate = first_set_variable(["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"]);
    let Some((variable, path)) = certificate else { return Ok(ClientTlsConfig::new().with_native_roots()) };
    let path = PathBuf::from(path);
    let pem = fs::read(&path).map_err(|cause| TracesError::Certificate { variable, path, cause })?;
    Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_leave_the_machine_only_encrypted() {
        let is_secure = |endpoint| is_secure("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
        assert!(is_secure("https://collector.monitoring:4317").unwrap());
        for beside in ["http://127.0.0.1:4317", "http://[::1]:4317", "http://localhost:4317"] {
            assert!(!is_secure(beside).unwrap(), "{beside}");
        }
        let plain = is_secure("http://collector.monitoring:4317").unwrap_err();
        assert!(matches!(plain, TracesError::Plain { .. }), "{plain}");
        for nowhere in ["collector:4317", "ftp://127.0.0.1", "/run/collector.sock", "https://"] {
            assert!(matches!(is_secure(nowhere), Err(TracesError::Endpoint { .. })), "{nowhere}");
        }
    }
}
