//! Which components present certificates and tokens to which others, and a check that every one of them is verified.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{name::PodName, role::Role, rotation::RotatedKey};

use crate::secret_names;

/// A credential of one role that another role verifies. Each is named by its role and its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresentedCredential {
    /// The key or authority that signs it.
    pub key: RotatedKey,
    /// The certificate, or the key that signs tokens.
    pub by: (Role, &'static str),
    /// The authorities, or the keys that verify tokens.
    pub to: (Role, &'static str),
}

const KUBERNETES: RotatedKey = RotatedKey::KubernetesAuthority;

/// Every credential that components of a cluster present to each other.
pub const PRESENTED_CREDENTIALS: [PresentedCredential; 21] = [
    of(RotatedKey::ServiceAccount, (Role::KubeApiserver, TOKEN_KEY), (Role::KubeApiserver, TOKEN_KEYS)),
    of(RotatedKey::ServiceAccount, (Role::KubeControllerManager, TOKEN_KEY), (Role::KubeApiserver, TOKEN_KEYS)),
    of(RotatedKey::EtcdAuthority, (Role::Etcd, "peer.crt"), (Role::Etcd, "ca.crt")),
    of(RotatedKey::EtcdAuthority, (Role::Etcd, "server.crt"), (Role::KubeApiserver, "etcd-ca.crt")),
    of(RotatedKey::EtcdAuthority, (Role::KubeApiserver, "etcd-client.crt"), (Role::Etcd, "ca.crt")),
    of(RotatedKey::FrontProxyAuthority, FRONT_PROXY_CLIENT, (Role::KubeApiserver, "front-proxy-ca.crt")),
    of(RotatedKey::FrontProxyAuthority, FRONT_PROXY_CLIENT, (Role::KubeControllerManager, "front-proxy-ca.crt")),
    of(
        RotatedKey::InfrastructureAuthority,
        (Role::KubeApiserver, "egress.crt"),
        (Role::Gateway, "infrastructure-ca.crt"),
    ),
    of(
        RotatedKey::InfrastructureAuthority,
        (Role::KubeScheduler, "server.crt"),
        (Role::KubeScheduler, "server-ca.crt"),
    ),
    of(
        RotatedKey::InfrastructureAuthority,
        (Role::Gateway, "server.crt"),
        (Role::KubeApiserver, "infrastructure-ca.crt"),
    ),
    of(KUBERNETES, API_SERVER, (Role::KubeControllerManager, "ca.crt")),
    of(KUBERNETES, API_SERVER, (Role::KubeScheduler, "ca.crt")),
    of(KUBERNETES, API_SERVER, (Role::ClusterController, "ca.crt")),
    of(KUBERNETES, API_SERVER, (Role::FleetController, "ca.crt")),
    of(KUBERNETES, API_SERVER, (Role::Ingress, "ca.crt")),
    of(KUBERNETES, API_SERVER, (Role::Gateway, "ca.crt")),
    of(KUBERNETES, (Role::KubeControllerManager, "client.crt"), (Role::KubeApiserver, "ca.crt")),
    of(KUBERNETES, (Role::KubeScheduler, "client.crt"), (Role::KubeApiserver, "ca.crt")),
    of(KUBERNETES, (Role::ClusterController, "client.crt"), (Role::KubeApiserver, "ca.crt")),
    of(KUBERNETES, (Role::FleetController, "client.crt"), (Role::KubeApiserver, "ca.crt")),
    of(KUBERNETES, (Role::Gateway, "client.crt"), (Role::KubeApiserver, "ca.crt")),
];

const API_SERVER: (Role, &str) = (Role::KubeApiserver, "server.crt");
const FRONT_PROXY_CLIENT: (Role, &str) = (Role::KubeApiserver, "front-proxy-client.crt");
const TOKEN_KEY: &str = "service-account.key";
const TOKEN_KEYS: &str = "service-account.pub";

const fn of(key: RotatedKey, by: (Role, &'static str), to: (Role, &'static str)) -> PresentedCredential {
    PresentedCredential { key, by, to }
}

/// A component that runs, with the files that it uses.
#[derive(Debug, Clone)]
pub struct ComponentFiles<'a> {
    /// Its name.
    pub name: &'a PodName,
    /// Its role.
    pub role: Role,
    /// The contents of its files, by path.
    pub files: BTreeMap<&'a str, &'a [u8]>,
}

impl<'a> ComponentFiles<'a> {
    /// The file of a role. None: the component has another role, or lacks the file.
    fn file(&self, (role, path): (Role, &str)) -> Option<&'a [u8]> {
        self.files.get(path).copied().filter(|_| self.role == role)
    }

    /// What it presents. The authorities are appended to the serving certificate of an API server.
    fn presents(&self, place: (Role, &str)) -> Option<&'a [u8]> {
        let content = self.file(place)?;
        let bundle = self.file((self.role, "ca.crt")).filter(|_| place == API_SERVER);
        Some(bundle.and_then(|bundle| content.strip_suffix(bundle)).unwrap_or(content))
    }
}

/// Returns each credential that a component of a cluster presents and another one does not verify. `verifies` decides for the content of two files.
#[must_use]
pub fn unverified(running: &[ComponentFiles], verifies: impl Fn(RotatedKey, &[u8], &[u8]) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for PresentedCredential { key, by, to } in PRESENTED_CREDENTIALS {
        for (one, shown) in running.iter().filter_map(|one| Some((one, one.presents(by)?))) {
            let others = running.iter().filter_map(|other| Some((other, other.file(to)?)));
            found.extend(others.filter(|(_, trusted)| !verifies(key, shown, trusted)).map(|(other, _)| {
                format!("{} does not verify {key} of {}: {} with {}", other.name, one.name, by.1, to.1)
            }));
        }
    }
    found
}

/// Returns the Secret of a key that can be rotated.
#[must_use]
pub fn secret_of(key: RotatedKey) -> &'static str {
    secret_names::secret_of(key)
}

/// Returns the names of the keys in the file with which an API server encrypts Secrets, the one that encrypts first. None: it is no such file.
#[must_use]
pub fn encryption_keys(file: &[u8]) -> Option<Vec<String>> {
    let content: serde_json::Value = serde_json::from_slice(file).ok()?;
    let keys = content.pointer("/resources/0/providers/0/secretbox/keys")?.as_array()?;
    keys.iter().map(|key| Some(key.get("name")?.as_str()?.to_string())).collect()
}
