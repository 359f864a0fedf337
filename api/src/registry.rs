//! Credentials of container registries, from Secrets as `kubectl create secret docker-registry` makes them.

use core::fmt;
use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use crate::Secret;

/// The type of such a Secret.
pub const PULL_SECRET: &str = "kubernetes.io/dockerconfigjson";
/// Its one value that is read.
pub const PULL_SECRET_KEY: &str = ".dockerconfigjson";
/// Where images without a registry in their names are.
const DOCKER: &str = "docker.io";

/// Who pulls an image.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryCredentials {
    /// The user.
    pub username: String,
    /// The user's password or token.
    pub password: String,
}

/// The user alone.
impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryCredentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// The registry that an image is pulled from, as its name says.
#[must_use]
pub fn registry_of(image: &str) -> &str {
    let host = image.split_once('/').map_or("", |(host, _)| host);
    let is_host = host.contains(['.', ':']) || host == "localhost";
    if is_host { host } else { DOCKER }
}

/// Whether a Secret is for pulling images.
#[must_use]
pub fn is_pull_secret(secret: &Secret) -> bool {
    secret.type_.as_deref() == Some(PULL_SECRET)
}

/// What a Secret for pulling images holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullSecret {
    /// By registry, with or without the beginning of a path.
    registries: BTreeMap<String, RegistryCredentials>,
}

/// Why a Secret for pulling images is none. No value is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullSecretError {
    /// The value is missing.
    #[error("there is no {PULL_SECRET_KEY}")]
    Missing,
    /// It is no configuration of docker's.
    #[error("{PULL_SECRET_KEY} is no JSON of the form {{\"auths\": {{REGISTRY: {{..}}}}}}")]
    Form,
    /// A registry has no credentials.
    #[error("{PULL_SECRET_KEY} has no username and password for {0:?}")]
    Without(String),
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: BTreeMap<String, RegistryAuth>,
}

#[derive(Deserialize)]
struct RegistryAuth {
    username: Option<String>,
    password: Option<String>,
    auth: Option<String>,
}

impl RegistryAuth {
    /// Written out, or both together in base64, with a colon between them.
    fn credentials(self) -> Option<RegistryCredentials> {
        if let (Some(username), Some(password)) = (self.username, self.password) {
            return Some(RegistryCredentials { username, password });
        }
        let both = String::from_utf8(STANDARD.decode(self.auth?).ok()?).ok()?;
        let (username, password) = both.split_once(':')?;
        Some(RegistryCredentials { username: username.to_owned(), password: password.to_owned() })
    }
}

impl PullSecret {
    /// Reads a Secret.
    ///
    /// # Errors
    /// It does not hold what its type promises.
    pub fn of(secret: &Secret) -> Result<Self, PullSecretError> {
        let value = secret.data.as_ref().and_then(|data| data.get(PULL_SECRET_KEY)).ok_or(PullSecretError::Missing)?;
        let read: DockerConfig = serde_json::from_slice(&value.0).map_err(|_| PullSecretError::Form)?;
        let registries = read.auths.into_iter().map(|(registry, entry)| {
            let credentials = entry.credentials().ok_or_else(|| PullSecretError::Without(registry.clone()))?;
            Ok((plain(&registry), credentials))
        });
        Ok(Self { registries: registries.collect::<Result<_, _>>()? })
    }

    /// The credentials for an image: those of the longest registry and path that its name begins with, as a kubelet takes them.
    #[must_use]
    pub fn for_image(&self, image: &str) -> Option<&RegistryCredentials> {
        let whole = if image.starts_with(registry_of(image)) { image.to_owned() } else { format!("{DOCKER}/{image}") };
        let begins = |registry: &str| whole.strip_prefix(registry).is_some_and(|rest| rest.starts_with('/'));
        let found = self.registries.iter().filter(|(registry, _)| begins(registry));
        found.max_by_key(|(registry, _)| registry.len()).map(|(_, credentials)| credentials)
    }
}

/// A registry as docker writes it (`https://index.docker.io/v1/`), by the name that images have.
fn plain(registry: &str) -> String {
    let text = registry.split_once("://").map_or(registry, |(_, rest)| rest).trim_end_matches('/');
    let text = text.strip_suffix("/v1").or_else(|| text.strip_suffix("/v2")).unwrap_or(text);
    if text == "index.docker.io" { DOCKER.to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(config: &str) -> Secret {
        let data = [(PULL_SECRET_KEY.to_owned(), ByteString(config.as_bytes().to_vec()))];
        Secret { data: Some(data.into()), type_: Some(PULL_SECRET.to_owned()), ..Secret::default() }
    }

    #[test]
    fn the_longest_registry_and_path_wins() {
        let config = r#"{"auths": {
            "registry.example.com": {"username": "all", "password": "a"},
            "registry.example.com/mirror": {"auth": "bWlycm9yOmI6Yw=="},
            "https://index.docker.io/v1/": {"username": "docker", "password": "d"}
        }}"#;
        let found = PullSecret::of(&secret(config)).unwrap();
        let user = |image: &str| found.for_image(image).map(|found| (found.username.as_str(), found.password.as_str()));
        assert_eq!(user("registry.example.com/pause:3"), Some(("all", "a")));
        assert_eq!(user("registry.example.com/mirror/pause:3"), Some(("mirror", "b:c")));
        assert_eq!(user("registry.example.com/mirrored/pause:3"), Some(("all", "a")));
        assert_eq!(user("docker.io/library/haproxy:2"), Some(("docker", "d")));
        assert_eq!(user("haproxy:2"), Some(("docker", "d")));
        assert_eq!(user("registry.example.com:5000/pause:3"), None);
        assert_eq!(registry_of("localhost/a"), "localhost");
    }

    #[test]
    fn no_value_is_in_an_error_or_in_debug_output() {
        let bad = [
            (r#"{"auths": "hunter2"}"#, PullSecretError::Form),
            (r#"{"auths": {"r.io": {"username": "hunter2"}}}"#, PullSecretError::Without("r.io".to_owned())),
            (r#"{"auths": {"r.io": {"auth": "aHVudGVyMg=="}}}"#, PullSecretError::Without("r.io".to_owned())),
        ];
        for (config, wanted) in bad {
            let error = PullSecret::of(&secret(config)).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert_eq!(error, wanted);
        }
        assert_eq!(PullSecret::of(&Secret::default()).unwrap_err(), PullSecretError::Missing);
        let good = PullSecret::of(&secret(r#"{"auths": {"r.io": {"username": "u", "password": "hunter2"}}}"#)).unwrap();
        assert!(!format!("{good:?}").contains("hunter2"));
    }
}
