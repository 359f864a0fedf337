//! Credentials for container registries, from Secrets that `kubectl create secret docker-registry` creates.

use core::fmt;
use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Secret;

/// The type of pull Secrets.
pub const PULL_SECRET: &str = "kubernetes.io/dockerconfigjson";
/// The key of the value that Keelway reads.
pub const PULL_SECRET_KEY: &str = ".dockerconfigjson";
/// The registry of images whose names contain no registry.
const DOCKER: &str = "docker.io";

/// The credentials for pulling an image.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryCredentials {
    /// The name of the user.
    pub username: String,
    /// The password or token.
    pub password: String,
}

/// Prints the name of the user only.
impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryCredentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Returns the registry in the name of an image.
#[must_use]
pub fn registry_of(image: &str) -> &str {
    let host = image.split_once('/').map_or("", |(host, _)| host);
    let is_host = host.contains(['.', ':']) || host == "localhost";
    if is_host { host } else { DOCKER }
}

/// Returns whether a Secret is for pulling images.
#[must_use]
pub fn is_pull_secret(secret: &Secret) -> bool {
    secret.type_.as_deref() == Some(PULL_SECRET)
}

/// The content of a pull Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullSecret {
    /// The credentials by registry, which may include a path prefix.
    registries: BTreeMap<String, RegistryCredentials>,
}

/// An error while reading a pull Secret. It contains no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullSecretError {
    /// The value is missing.
    #[error("{PULL_SECRET_KEY} is required")]
    Missing,
    /// The value is not a configuration of docker.
    #[error("{PULL_SECRET_KEY} must be JSON of the form {{\"auths\": {{REGISTRY: {{..}}}}}}")]
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
    /// Returns the credentials, which are either two fields or base64 of both, separated by a colon.
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
    /// Reads a pull Secret.
    ///
    /// # Errors
    /// The value is missing or malformed, or a registry has no credentials.
    pub fn of(secret: &Secret) -> Result<Self, PullSecretError> {
        let value = secret.data.as_ref().and_then(|data| data.get(PULL_SECRET_KEY)).ok_or(PullSecretError::Missing)?;
        let read: DockerConfig = serde_json::from_slice(&value.0).map_err(|_| PullSecretError::Form)?;
        let registries = read.auths.into_iter().map(|(registry, entry)| {
            let credentials = entry.credentials().ok_or_else(|| PullSecretError::Without(registry.clone()))?;
            Ok((plain(&registry), credentials))
        });
        Ok(Self { registries: registries.collect::<Result<_, _>>()? })
    }

    /// Returns the credentials for an image: those of the longest registry and path that is a prefix of its name, as a kubelet does.
    #[must_use]
    pub fn for_image(&self, image: &str) -> Option<&RegistryCredentials> {
        let whole = if image.starts_with(registry_of(image)) { image.to_owned() } else { format!("{DOCKER}/{image}") };
        let repository = repository_of(&whole);
        let begins = |registry: &str| {
            repository.strip_prefix(registry).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let found = self.registries.iter().filter(|(registry, _)| begins(registry));
        found.max_by_key(|(registry, _)| registry.len()).map(|(_, credentials)| credentials)
    }
}

/// Returns a configuration of docker with these credentials, by registry or repository, as [`PullSecret::of`] and kubelets read it.
#[must_use]
pub fn docker_config(credentials: &BTreeMap<String, RegistryCredentials>) -> serde_json::Value {
    let entry = |found: &RegistryCredentials| {
        let both = STANDARD.encode(format!("{}:{}", found.username, found.password));
        json!({ "username": found.username, "password": found.password, "auth": both })
    };
    let entries: BTreeMap<&String, serde_json::Value> =
        credentials.iter().map(|(registry, found)| (registry, entry(found))).collect();
    json!({ "auths": entries })
}

/// Returns an image's repository: its name without tag and digest.
#[must_use]
pub fn repository_of(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let path = name.rfind('/').map_or(0, |slash| slash + 1);
    name[path..].find(':').map_or(name, |colon| &name[..path + colon])
}

/// Returns the name that images use for a registry in docker's notation (`https://index.docker.io/v1/`).
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
    fn credentials_of_a_repository_apply_to_its_images() {
        let image = "registry.example.com:5000/mirror/coredns:v1.14.6";
        assert_eq!(repository_of(image), "registry.example.com:5000/mirror/coredns");
        assert_eq!(repository_of("r.io/a@sha256:00"), "r.io/a");
        assert_eq!(repository_of("haproxy"), "haproxy");
        let given = RegistryCredentials { username: "user".to_owned(), password: "b:c".to_owned() };
        let config = docker_config(&[(repository_of(image).to_owned(), given.clone())].into());
        let found = PullSecret::of(&secret(&config.to_string())).unwrap();
        assert_eq!(found.for_image(image), Some(&given));
        assert_eq!(found.for_image("registry.example.com:5000/mirror/other:v1"), None);
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
