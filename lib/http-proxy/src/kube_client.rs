//! Clients of a Kubernetes API server, directly or through a proxy.

use std::{
    future::Future,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioIo},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt, DynBody, retry::RetryPolicy},
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, retry::RetryLayer, util::BoxService};

use crate::{
    connect::{HttpProxy, HttpProxyError},
    proxies::{HttpProxies, InvalidHttpProxy},
    settings::ProxySettings,
};

/// The HTTP client of a Kubernetes client.
pub type KubeService = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

/// A Kubernetes client cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum KubeClientError {
    /// A proxy cannot be used.
    #[error(transparent)]
    Proxy(#[from] InvalidHttpProxy),
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// There is neither a kubeconfig nor a pod's ServiceAccount.
    #[error("no kubeconfig can be read ({kubeconfig}), and this is not a pod")]
    NoKubeconfig {
        /// Why there is no kubeconfig.
        kubeconfig: Box<KubeconfigError>,
        /// Why there is no ServiceAccount.
        #[source]
        source: InClusterError,
    },
    /// The process does not run in a pod with a ServiceAccount.
    #[error(transparent)]
    InCluster(#[from] InClusterError),
}

/// The configuration of a Kubernetes client.
#[derive(Debug, Clone)]
pub struct KubeClientConfig {
    config: Config,
    proxy: Option<HttpProxy>,
}

impl KubeClientConfig {
    /// Uses the proxy for the API server of `config` among these, if there is one. `config.proxy_url` has no effect.
    #[must_use]
    pub fn new(mut config: Config, proxies: &HttpProxies) -> Self {
        config.proxy_url = None;
        let proxy = proxies.of(&config.cluster_url).cloned();
        Self { config, proxy }
    }

    /// Uses the current context of a kubeconfig. If its cluster has a `proxy-url`, that proxy is used, and the environment's are not.
    pub async fn from_kubeconfig(kubeconfig: Kubeconfig, settings: &ProxySettings) -> Result<Self, KubeClientError> {
        let proxies = HttpProxies::parse(settings)?;
        let own = proxy_url(&kubeconfig).map(|url| HttpProxies::always("proxy-url of the kubeconfig", url));
        let own = own.transpose()?.flatten();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let found = Self::new(config, &proxies);
        Ok(Self { proxy: own.or(found.proxy), ..found })
    }

    /// Uses the kubeconfig in this file.
    pub async fn read(path: &Path, settings: &ProxySettings) -> Result<Self, KubeClientError> {
        Self::from_kubeconfig(Kubeconfig::read_from(path)?, settings).await
    }

    /// Uses the kubeconfig that kubectl would use or, without one, the ServiceAccount of this pod.
    pub async fn infer(settings: &ProxySettings) -> Result<Self, KubeClientError> {
        match Kubeconfig::read() {
            Ok(kubeconfig) => Self::from_kubeconfig(kubeconfig, settings).await,
            Err(error) => {
                let config = Config::incluster();
                let kubeconfig = Box::new(error);
                let config = config.map_err(|source| KubeClientError::NoKubeconfig { kubeconfig, source })?;
                Ok(Self { config, proxy: None })
            }
        }
    }

    /// Uses the ServiceAccount of this pod. Its API server is in the pod's own cluster, so no proxy is used.
    pub fn in_cluster() -> Result<Self, KubeClientError> {
        Ok(Self { config: Config::incluster()?, proxy: None })
    }

    /// Returns the URL of the API server.
    #[must_use]
    pub fn server(&self) -> &Uri {
        &self.config.cluster_url
    }

    /// Returns a client.
    pub fn client(&self) -> Result<Client, kube::Error> {
        self.builder().map(ClientBuilder::build)
    }

    /// Returns the builder of a client, for further layers.
    pub fn builder(&self) -> Result<ClientBuilder<KubeService>, kube::Error> {
        let Some(proxy) = self.proxy.clone() else { return ClientBuilder::try_from(self.config.clone()) };
        through(&self.config, proxy)
    }
}

/// Returns the `proxy-url` of the current context's cluster.
fn proxy_url(kubeconfig: &Kubeconfig) -> Option<&str> {
    let current = kubeconfig.current_context.as_deref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == current)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.as_deref().filter(|url| !url.is_empty())
}

/// Builds what `ClientBuilder::try_from(config)` does, without traces, over connections through a proxy. kube's own proxies apply `NO_PROXY` to the
/// proxy instead of the API server, and their errors do not name the proxy.
fn through(config: &Config, proxy: HttpProxy) -> Result<ClientBuilder<KubeService>, kube::Error> {
    let connector = config.rustls_https_connector_with_connector(ProxyConnector(proxy))?;
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    let boxed = |response: Response<hyper::body::Incoming>| {
        response.map(|body| Box::new(body.map_err(BoxError::from)) as Box<DynBody>)
    };
    let service = service.map_response(boxed).boxed();
    Ok(ClientBuilder::new(service, config.default_namespace.clone()))
}

/// Connects through a proxy to the host of a URL.
#[derive(Clone)]
struct ProxyConnector(HttpProxy);

impl Service<Uri> for ProxyConnector {
    type Response = TokioIo<TcpStream>;
    type Error = HttpProxyError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, HttpProxyError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), HttpProxyError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let proxy = self.0.clone();
        let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 });
        let target = format!("{}:{port}", url.host().unwrap_or_default());
        Box::pin(async move { proxy.connect(&target).await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(proxy_url: &str) -> Kubeconfig {
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: a, contexts: [{{name: a, context: {{cluster: c, user: u}}}}], \
             users: [{{name: u, user: {{token: t}}}}], \
             clusters: [{{name: c, cluster: {{server: 'https://203.0.113.7:6443', proxy-url: '{proxy_url}'}}}}]}}"
        );
        Kubeconfig::from_yaml(&text).unwrap()
    }

    async fn chosen(proxy_url: &str, no_proxy: &str) -> String {
        let settings = ProxySettings {
            https_proxy: "http://environment.test:3128".to_owned(),
            no_proxy: no_proxy.to_owned(),
            ..ProxySettings::default()
        };
        let found = KubeClientConfig::from_kubeconfig(kubeconfig(proxy_url), &settings).await.unwrap();
        found.proxy.map_or("direct".to_owned(), |proxy| proxy.to_string())
    }

    #[tokio::test]
    async fn a_kubeconfig_uses_its_own_proxy_before_the_environments() {
        assert_eq!(chosen("", "").await, "http://environment.test:3128");
        assert_eq!(chosen("", "203.0.113.0/24").await, "direct");
        assert_eq!(chosen("", "environment.test").await, "http://environment.test:3128");
        assert_eq!(chosen("http://own.test:8080", "").await, "http://own.test:8080");
        assert_eq!(chosen("http://own.test:8080", "*,203.0.113.7").await, "http://own.test:8080");
    }
}
