//! Connections through the HTTP proxies that an environment names (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`), also of Kubernetes clients.
//!
//! A proxy gets `CONNECT`, and then forwards bytes of TLS that it cannot read. Its credentials are in no error and no log.

mod connect;
mod kube_client;
mod proxies;
mod settings;

pub use self::{
    connect::{HttpProxy, HttpProxyError},
    kube_client::{KubeClientConfig, KubeClientError, KubeService},
    proxies::{HttpProxies, InvalidHttpProxy},
    settings::ProxySettings,
};
