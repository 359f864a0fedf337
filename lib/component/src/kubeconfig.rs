//! Clients of a kubeconfig, and the files that it names. A program that uses a kubeconfig depends on all of them.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tower::timeout::TimeoutLayer;

/// A kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig cannot be read.
    #[error("cannot use {}", path.display())]
    Kubeconfig {
        /// The path of the file.
        path: PathBuf,
        /// The error of the client.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// A client cannot be built from the kubeconfig.
    #[error("cannot create an API client")]
    Client(#[source] Box<kube::Error>),
}

/// Returns a client of the kubeconfig. `answer` limits how long a response of an API server may take to begin.
pub async fn client(path: &Path, answer: Duration) -> Result<Client, ClientError> {
    let wrong = |source| ClientError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(wrong)?;
    let builder = ClientBuilder::try_from(config).map_err(|source| ClientError::Client(Box::new(source)))?;
    Ok(builder.with_layer(&TimeoutLayer::new(answer)).build())
}

/// Returns the kubeconfig and the files of its certificates, keys and tokens. If it cannot be parsed, returns only itself.
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    let read = Kubeconfig::read_from(path).unwrap_or_default();
    let clusters = read.clusters.into_iter().filter_map(|named| named.cluster);
    let users = read.auth_infos.into_iter().filter_map(|named| named.auth_info);
    let authorities = clusters.filter_map(|cluster| cluster.certificate_authority);
    let identities = users.flat_map(|user| [user.client_certificate, user.client_key, user.token_file]).flatten();
    [path.to_owned()].into_iter().chain(authorities.chain(identities).map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_kubeconfig_names_are_watched_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        assert_eq!(files_of(&path), [path.as_path()]);
        let text = r#"{
            "clusters": [{"name": "c", "cluster": {"server": "https://a", "certificate-authority": "ca.crt"}}],
            "users": [{"name": "u", "user": {"client-certificate": "/etc/client.crt", "client-key": "client.key"}}]
        }"#;
        std::fs::write(&path, text).unwrap();
        let named =
            [path.clone(), folder.path().join("ca.crt"), "/etc/client.crt".into(), folder.path().join("client.key")];
        assert_eq!(files_of(&path), named);
    }
}
