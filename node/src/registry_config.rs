//! Credentials for registries, in docker's format: for the images that the worker pulls itself, and for those of pods without pull Secrets, such as
//! the pods of add-ons. They are a user's, set with `--registry-config`, and the cluster's own for the images of its workers. Those of the user
//! have precedence.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
};

use k8s_openapi::{ByteString, api::core::v1};
use keelway_api::{
    Secret,
    registry::{PULL_SECRET, PULL_SECRET_KEY, PullSecret, PullSecretError},
    worker::REGISTRIES,
};
use keelway_cri::Login;
use kube::{Api, Client};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::{
    api::ApiError,
    files::{self, NodeFileError},
    settings::{Layout, NodeOptions},
};

/// The name of the file in the kubelet's root directory from which a kubelet reads credentials.
const OF_KUBELET: &str = "config.json";

/// The credentials of a worker. No error and no log contains them.
#[derive(Clone)]
pub struct RegistryConfig {
    text: Zeroizing<String>,
    secret: PullSecret,
}

impl std::fmt::Debug for RegistryConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistryConfig").finish_non_exhaustive()
    }
}

/// The credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryConfigError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The file does not exist.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// The cluster's credentials cannot be read.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The credentials are not a configuration of docker.
    #[error("cannot use {place} as the credentials of registries")]
    Form {
        /// The file or the object.
        place: String,
        /// What is wrong. It contains no value.
        #[source]
        source: PullSecretError,
    },
}

impl RegistryConfig {
    /// Reads a `config.json` of docker.
    ///
    /// # Errors
    /// The file cannot be read, or has no credentials.
    pub fn read(path: &Path) -> Result<Self, RegistryConfigError> {
        Self::read_if_present(path)?.ok_or_else(|| RegistryConfigError::Missing(path.to_owned()))
    }

    /// Returns the worker's credentials.
    pub(crate) fn load(layout: &Layout) -> Result<Option<Self>, RegistryConfigError> {
        let of_user = Self::read_if_present(&layout.registry_config())?;
        let of_cluster = Self::read_if_present(&layout.cluster_registry_config())?;
        match (of_user, of_cluster) {
            (Some(of_user), Some(of_cluster)) => of_user.with(&of_cluster).map(Some),
            (one, other) => Ok(one.or(other)),
        }
    }

    /// Returns the credentials that the worker will have: those that a join got, or else those of an earlier one, and those of the cluster.
    pub(crate) fn of_join(
        layout: &Layout,
        of_user: Option<&Self>,
        of_cluster: Option<&Self>,
    ) -> Result<Option<Self>, RegistryConfigError> {
        let stored = Self::read_if_present(&layout.registry_config())?;
        match (of_user.cloned().or(stored), of_cluster) {
            (Some(of_user), Some(of_cluster)) => of_user.with(of_cluster).map(Some),
            (of_user, of_cluster) => Ok(of_user.or(of_cluster.cloned())),
        }
    }

    fn read_if_present(path: &Path) -> Result<Option<Self>, RegistryConfigError> {
        let Some(text) = files::read(path)?.map(Zeroizing::new) else { return Ok(None) };
        Self::parse(text, &path.display()).map(Some)
    }

    /// Reads the cluster's credentials. Returns `None` if there are none.
    pub(crate) async fn fetch(client: Client) -> Result<Option<Self>, RegistryConfigError> {
        let (namespace, name) = REGISTRIES;
        let secret = Api::<v1::Secret>::namespaced(client, namespace).get_opt(name).await;
        let secret = secret.map_err(ApiError::request(format!("get the Secret {namespace}/{name}")));
        secret.map_err(RegistryConfigError::Api)?.as_ref().map(Self::of_cluster).transpose()
    }

    /// Reads the cluster's Secret.
    pub(crate) fn of_cluster(secret: &v1::Secret) -> Result<Self, RegistryConfigError> {
        let value = secret.data.as_ref().and_then(|data| data.get(PULL_SECRET_KEY));
        let text = value.and_then(|value| String::from_utf8(value.0.clone()).ok()).unwrap_or_default();
        let (namespace, name) = REGISTRIES;
        Self::parse(Zeroizing::new(text), &format_args!("the Secret {namespace}/{name}"))
    }

    fn parse(text: Zeroizing<String>, place: &dyn Display) -> Result<Self, RegistryConfigError> {
        let value = ByteString(text.as_bytes().to_vec());
        let data = Some([(PULL_SECRET_KEY.to_owned(), value)].into());
        let secret = Secret { data, type_: Some(PULL_SECRET.to_owned()), ..Secret::default() };
        let wrong = |source| RegistryConfigError::Form { place: place.to_string(), source };
        Ok(Self { secret: PullSecret::of(&secret).map_err(wrong)?, text })
    }

    /// Adds other credentials for registries for which these have none.
    fn with(self, other: &Self) -> Result<Self, RegistryConfigError> {
        // Both were parsed, so they are objects with `auths`.
        let parse = |config: &Self| serde_json::from_str::<Value>(&config.text).unwrap_or_default();
        let (mut both, others) = (parse(&self), parse(other));
        let missing = others["auths"].as_object().into_iter().flatten();
        for (registry, entry) in missing.filter(|(registry, _)| self.login(registry).is_none()) {
            both["auths"][registry] = entry.clone();
        }
        Self::parse(Zeroizing::new(both.to_string()), &"the credentials of this worker")
    }

    /// Stores the credentials of a user, readable by root only.
    pub(crate) fn store(&self, layout: &Layout) -> Result<(), NodeFileError> {
        files::write(&layout.registry_config(), self.text.as_bytes(), 0o600)
    }

    /// Stores the credentials of the cluster, readable by root only. Returns whether they differ from the stored ones.
    pub(crate) fn store_of_cluster(&self, layout: &Layout) -> Result<bool, NodeFileError> {
        let path = layout.cluster_registry_config();
        let differs = files::read(&path)?.map(Zeroizing::new).as_ref() != Some(&self.text);
        if differs {
            files::write(&path, self.text.as_bytes(), 0o600)?;
        }
        Ok(differs)
    }

    /// Stores the credentials in the cluster's Secret, also for the kubelet. Returns whether they differ from the stored ones.
    pub(crate) fn replace_of_cluster(
        secret: &v1::Secret,
        layout: &Layout,
        options: &NodeOptions,
    ) -> Result<bool, RegistryConfigError> {
        let differs = Self::of_cluster(secret)?.store_of_cluster(layout)?;
        Self::write_for_kubelet(layout, options)?;
        Ok(differs)
    }

    /// Writes the worker's credentials for its kubelet, which reads them again within five minutes.
    pub(crate) fn write_for_kubelet(layout: &Layout, options: &NodeOptions) -> Result<(), RegistryConfigError> {
        if let Some(credentials) = Self::load(layout)? {
            files::make_dir(&options.kubelet_root_dir, 0o755)?;
            files::write(&options.kubelet_root_dir.join(OF_KUBELET), credentials.text.as_bytes(), 0o600)?;
        }
        Ok(())
    }

    /// Returns the credentials for an image.
    pub(crate) fn login(&self, image: &str) -> Option<Login<'_>> {
        self.secret.for_image(image).map(|found| Login { username: &found.username, password: &found.password })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::samples::options;

    const CONFIG: &str = r#"{"auths": {"registry.example.com": {"auth": "dXNlcjpodW50ZXIy"}}}"#;

    #[test]
    fn credentials_are_stored_for_root_only_and_used_for_their_registry() {
        let directory = tempfile::tempdir().unwrap();
        let given = directory.path().join("given.json");
        fs::write(&given, CONFIG).unwrap();
        let layout = Layout::new(directory.path().join("state"));
        let options = NodeOptions { kubelet_root_dir: directory.path().join("kubelet"), ..options() };
        assert!(RegistryConfig::load(&layout).unwrap().is_none());
        files::make_dir(layout.root(), 0o700).unwrap();
        RegistryConfig::read(&given).unwrap().store(&layout).unwrap();
        RegistryConfig::write_for_kubelet(&layout, &options).unwrap();
        for path in [layout.registry_config(), options.kubelet_root_dir.join("config.json")] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(fs::read_to_string(&path).unwrap(), CONFIG);
        }
        let stored = RegistryConfig::load(&layout).unwrap().unwrap();
        let login = stored.login("registry.example.com/node:v1").unwrap();
        assert_eq!((login.username, login.password), ("user", "hunter2"));
        assert!(stored.login("registry.keelway.dev/node:v1").is_none());
        assert!(!format!("{stored:?}").contains("hunter2"));
    }

    #[test]
    fn credentials_of_the_cluster_are_used_if_the_user_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path().join("state"));
        let options = NodeOptions { kubelet_root_dir: directory.path().join("kubelet"), ..options() };
        files::make_dir(layout.root(), 0o700).unwrap();
        let config = r#"{"auths": {
            "registry.example.com/mirror/node": {"username": "cluster", "password": "c"},
            "registry.k8s.io/pause": {"username": "cluster", "password": "c"}
        }}"#;
        let data = [(PULL_SECRET_KEY.to_owned(), ByteString(config.as_bytes().to_vec()))];
        let secret = v1::Secret { data: Some(data.into()), ..v1::Secret::default() };
        let of_cluster = RegistryConfig::of_cluster(&secret).unwrap();
        assert!(of_cluster.store_of_cluster(&layout).unwrap());
        assert!(!of_cluster.store_of_cluster(&layout).unwrap());
        let of_user = RegistryConfig::parse(Zeroizing::new(CONFIG.to_owned()), &"test").unwrap();
        // Before the join stores anything.
        let nothing = Layout::new(directory.path().join("nothing"));
        let of_join = RegistryConfig::of_join(&nothing, Some(&of_user), Some(&of_cluster)).unwrap().unwrap();
        of_user.store(&layout).unwrap();
        RegistryConfig::write_for_kubelet(&layout, &options).unwrap();

        let of_kubelet = RegistryConfig::read(&options.kubelet_root_dir.join("config.json")).unwrap();
        for credentials in [RegistryConfig::load(&layout).unwrap().unwrap(), of_kubelet, of_join] {
            let user = |image: &str| credentials.login(image).map(|login| login.username.to_owned());
            assert_eq!(user("registry.example.com/mirror/node:v1.37.0"), Some("user".to_owned()));
            assert_eq!(user("registry.k8s.io/pause:3.10.2"), Some("cluster".to_owned()));
            assert_eq!(user("registry.k8s.io/other:1"), None);
        }
    }

    #[test]
    fn a_file_without_credentials_is_refused_and_not_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        assert!(matches!(RegistryConfig::read(&path), Err(RegistryConfigError::Missing(_))));
        for text in [r#"{"credsStore": "hunter2"}"#, r#"{"auths": {"r.io": {"username": "hunter2"}}}"#, "hunter2"] {
            fs::write(&path, text).unwrap();
            let error = RegistryConfig::read(&path).unwrap_err();
            let text = format!("{}", keelway_base::error_chain::ErrorChain(&error));
            assert!(text.contains("config.json") && !text.contains("hunter2"), "{text}");
        }
    }
}
