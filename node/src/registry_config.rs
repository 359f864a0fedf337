//! Credentials for registries, in docker's format: for the images that the worker pulls itself, and for those of pods without pull Secrets, such as
//! the pods of add-ons.

use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use keelway_api::{
    Secret,
    registry::{PULL_SECRET, PULL_SECRET_KEY, PullSecret, PullSecretError},
};
use keelway_cri::Login;
use zeroize::Zeroizing;

use crate::{
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
    /// The file is not a configuration of docker with credentials.
    #[error("cannot use {} as the credentials of registries", path.display())]
    Form {
        /// The path of the file.
        path: PathBuf,
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

    /// Returns the credentials with which this worker joined.
    pub(crate) fn load(layout: &Layout) -> Result<Option<Self>, RegistryConfigError> {
        Self::read_if_present(&layout.registry_config())
    }

    fn read_if_present(path: &Path) -> Result<Option<Self>, RegistryConfigError> {
        let Some(text) = files::read(path)?.map(Zeroizing::new) else { return Ok(None) };
        let value = ByteString(text.as_bytes().to_vec());
        let data = Some([(PULL_SECRET_KEY.to_owned(), value)].into());
        let secret = Secret { data, type_: Some(PULL_SECRET.to_owned()), ..Secret::default() };
        let secret =
            PullSecret::of(&secret).map_err(|source| RegistryConfigError::Form { path: path.to_owned(), source })?;
        Ok(Some(Self { text, secret }))
    }

    /// Stores the credentials for this worker and its kubelet, readable by root only.
    pub(crate) fn store(&self, layout: &Layout, options: &NodeOptions) -> Result<(), NodeFileError> {
        files::write(&layout.registry_config(), self.text.as_bytes(), 0o600)?;
        files::make_dir(&options.kubelet_root_dir, 0o755)?;
        files::write(&options.kubelet_root_dir.join(OF_KUBELET), self.text.as_bytes(), 0o600)
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
        RegistryConfig::read(&given).unwrap().store(&layout, &options).unwrap();
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
