//! Kubeconfigs: the file with the servers and the credentials of a Kubernetes client.

mod document;

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use crate::IssuedCertificate;

/// A server: `clusters[].cluster` of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeconfigCluster {
    /// The server's URL, `https://HOST:PORT`.
    pub server: String,
    /// The authorities that may sign the certificate of the server.
    pub authority: AuthoritySource,
    /// The name that the server's certificate must contain, if it is not the host of the URL.
    pub tls_server_name: Option<String>,
}

/// The source of the trusted authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthoritySource {
    /// Certificates in PEM in the kubeconfig itself.
    Embedded(String),
    /// A path on the machine that reads the kubeconfig. Programs that reload the file follow a rotation.
    File(String),
}

/// The credentials of the client: `users[].user` of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientIdentity {
    /// The certificate and the key are in the kubeconfig itself.
    Embedded(IssuedCertificate),
    /// Paths on the machine that reads the kubeconfig.
    Files {
        /// The path of the certificate.
        certificate: String,
        /// The path of the key.
        key: String,
    },
}

/// A complete kubeconfig: every context names an existing cluster and user, and the current context exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    clusters: BTreeMap<String, KubeconfigCluster>,
    users: BTreeMap<String, ClientIdentity>,
    contexts: BTreeMap<String, KubeconfigContext>,
    current_context: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KubeconfigContext {
    cluster: String,
    user: String,
}

/// Collects the parts of a [`Kubeconfig`], in any order.
#[derive(Clone, Debug, Default)]
pub struct KubeconfigBuilder {
    clusters: Vec<(String, KubeconfigCluster)>,
    users: Vec<(String, ClientIdentity)>,
    contexts: Vec<(String, KubeconfigContext)>,
}

/// An error while building or writing a kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// Two clusters, users or contexts have the same name.
    #[error("the kubeconfig has two {part} named {name:?}")]
    Twice {
        /// `clusters`, `users` or `contexts`.
        part: &'static str,
        /// The duplicate name.
        name: String,
    },
    /// A context names a cluster or user that does not exist, or the current context does not exist.
    #[error("none of the {part} of the kubeconfig is named {name:?}")]
    Dangling {
        /// `clusters`, `users` or `contexts`.
        part: &'static str,
        /// The name that does not exist.
        name: String,
    },
    /// The URL of a server is not https. Client certificates require TLS.
    #[error("the server {server:?} of cluster {cluster:?} is not an https URL")]
    Server {
        /// The name of the cluster.
        cluster: String,
        /// The URL that was passed.
        server: String,
    },
    /// The kubeconfig could not be written as YAML.
    #[error("cannot write the kubeconfig as YAML")]
    Write(#[source] serde_saphyr::ser::Error),
}

impl Kubeconfig {
    /// Returns an empty builder.
    #[must_use]
    pub fn builder() -> KubeconfigBuilder {
        KubeconfigBuilder::default()
    }

    /// Returns the text of the file. Fields and entries are in the order in which kubectl writes them, so that the file does not change if
    /// kubectl rewrites it. The text contains a private key if the credentials of a user are embedded.
    pub fn to_yaml(&self) -> Result<Zeroizing<String>, KubeconfigError> {
        // The base64 of a key stays on one line, as kubectl writes it.
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        serde_saphyr::to_string_with_options(&document::KubeconfigDocument::from(self), options)
            .map(Zeroizing::new)
            .map_err(KubeconfigError::Write)
    }
}

impl KubeconfigBuilder {
    /// Adds a server.
    #[must_use]
    pub fn cluster(mut self, name: impl Into<String>, cluster: KubeconfigCluster) -> Self {
        self.clusters.push((name.into(), cluster));
        self
    }

    /// Adds the credentials of a user.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, identity: ClientIdentity) -> Self {
        self.users.push((name.into(), identity));
        self
    }

    /// Adds a context, which connects to `cluster` as `user`.
    #[must_use]
    pub fn context(mut self, name: impl Into<String>, cluster: impl Into<String>, user: impl Into<String>) -> Self {
        self.contexts.push((name.into(), KubeconfigContext { cluster: cluster.into(), user: user.into() }));
        self
    }

    /// Checks the parts against each other and returns the kubeconfig. Clients use `current_context` if they select no other context.
    pub fn build(self, current_context: impl Into<String>) -> Result<Kubeconfig, KubeconfigError> {
        let kubeconfig = Kubeconfig {
            clusters: unique("clusters", self.clusters)?,
            users: unique("users", self.users)?,
            contexts: unique("contexts", self.contexts)?,
            current_context: current_context.into(),
        };
        for (name, cluster) in &kubeconfig.clusters {
            if !is_https(&cluster.server) {
                return Err(KubeconfigError::Server { cluster: name.clone(), server: cluster.server.clone() });
            }
        }
        for context in kubeconfig.contexts.values() {
            present("clusters", &kubeconfig.clusters, &context.cluster)?;
            present("users", &kubeconfig.users, &context.user)?;
        }
        present("contexts", &kubeconfig.contexts, &kubeconfig.current_context)?;
        Ok(kubeconfig)
    }
}

fn unique<T>(part: &'static str, entries: Vec<(String, T)>) -> Result<BTreeMap<String, T>, KubeconfigError> {
    let mut map = BTreeMap::new();
    for (name, value) in entries {
        if map.contains_key(&name) {
            return Err(KubeconfigError::Twice { part, name });
        }
        map.insert(name, value);
    }
    Ok(map)
}

fn present<T>(part: &'static str, map: &BTreeMap<String, T>, name: &str) -> Result<(), KubeconfigError> {
    if map.contains_key(name) { Ok(()) } else { Err(KubeconfigError::Dangling { part, name: name.to_owned() }) }
}

fn is_https(server: &str) -> bool {
    server.strip_prefix("https://").is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrivateKeyPem;
    use crate::testing::{authority, hours, seeded, server};
    use base64::{Engine, engine::general_purpose::STANDARD};

    fn embedded() -> ClientIdentity {
        ClientIdentity::Embedded(IssuedCertificate {
            certificate_pem: "certificate".to_owned(),
            key_pem: PrivateKeyPem::new("key".to_owned()),
        })
    }

    fn at(server: &str) -> KubeconfigCluster {
        KubeconfigCluster {
            server: server.to_owned(),
            authority: AuthoritySource::Embedded("authority".to_owned()),
            tls_server_name: None,
        }
    }

    #[test]
    fn one_context_for_each_ingress() {
        let mut second = at("https://[2001:db8::2]:20001");
        second.tls_server_name = Some("c1.example.org".to_owned());
        let kubeconfig = Kubeconfig::builder()
            .cluster("c1-1", second)
            .cluster("c1-0", at("https://192.0.2.1:20001"))
            .user("admin", embedded())
            .context("c1-1", "c1-1", "admin")
            .context("c1-0", "c1-0", "admin")
            .build("c1-0")
            .unwrap();
        let expected = "\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: YXV0aG9yaXR5
    server: https://192.0.2.1:20001
  name: c1-0
- cluster:
    certificate-authority-data: YXV0aG9yaXR5
    server: https://[2001:db8::2]:20001
    tls-server-name: c1.example.org
  name: c1-1
contexts:
- context:
    cluster: c1-0
    user: admin
  name: c1-0
- context:
    cluster: c1-1
    user: admin
  name: c1-1
current-context: c1-0
kind: Config
users:
- name: admin
  user:
    client-certificate-data: Y2VydGlmaWNhdGU=
    client-key-data: a2V5
";
        assert_eq!(*kubeconfig.to_yaml().unwrap(), expected);
    }

    #[test]
    fn files_are_named() {
        let kubeconfig = Kubeconfig::builder()
            .cluster(
                "c1",
                KubeconfigCluster {
                    server: "https://10.0.0.1:6443".to_owned(),
                    authority: AuthoritySource::File("/etc/keelway/ca.crt".to_owned()),
                    tls_server_name: None,
                },
            )
            .user(
                "system:kube-scheduler",
                ClientIdentity::Files {
                    certificate: "/etc/keelway/client.crt".to_owned(),
                    key: "/etc/keelway/client.key".to_owned(),
                },
            )
            .context("c1", "c1", "system:kube-scheduler")
            .build("c1")
            .unwrap();
        let expected = "\
apiVersion: v1
clusters:
- cluster:
    certificate-authority: /etc/keelway/ca.crt
    server: https://10.0.0.1:6443
  name: c1
contexts:
- context:
    cluster: c1
    user: system:kube-scheduler
  name: c1
current-context: c1
kind: Config
users:
- name: system:kube-scheduler
  user:
    client-certificate: /etc/keelway/client.crt
    client-key: /etc/keelway/client.key
";
        assert_eq!(*kubeconfig.to_yaml().unwrap(), expected);
    }

    #[test]
    fn keys_are_written_whole_and_on_one_line() {
        let authority = authority(1);
        let leaf = authority.issue(&server(hours(1)), &mut seeded(2)).unwrap();
        let kubeconfig = Kubeconfig::builder()
            .cluster("c1", at("https://a"))
            .user("admin", ClientIdentity::Embedded(leaf.clone()))
            .context("c1", "c1", "admin")
            .build("c1")
            .unwrap();
        let yaml = kubeconfig.to_yaml().unwrap();
        let field = |name: &str| {
            let line = yaml.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            String::from_utf8(STANDARD.decode(line.split_once(": ").unwrap().1).unwrap()).unwrap()
        };
        assert_eq!(field("client-certificate-data"), leaf.certificate_pem);
        assert_eq!(field("client-key-data"), leaf.key_pem.expose());
        assert!(!format!("{kubeconfig:?}").contains("PRIVATE KEY"));
    }

    #[test]
    fn a_contradictory_kubeconfig_is_refused() {
        let good = || Kubeconfig::builder().cluster("c", at("https://a")).user("u", embedded()).context("x", "c", "u");
        good().build("x").unwrap();
        let part = |result: Result<Kubeconfig, KubeconfigError>| match result.unwrap_err() {
            KubeconfigError::Twice { part, name } => format!("two {part} {name}"),
            KubeconfigError::Dangling { part, name } => format!("no {part} {name}"),
            other @ (KubeconfigError::Server { .. } | KubeconfigError::Write(_)) => other.to_string(),
        };
        assert_eq!(part(good().build("y")), "no contexts y");
        assert_eq!(part(good().context("z", "d", "u").build("x")), "no clusters d");
        assert_eq!(part(good().context("z", "c", "v").build("x")), "no users v");
        assert_eq!(part(good().cluster("c", at("https://b")).build("x")), "two clusters c");
        assert_eq!(part(good().user("u", embedded()).build("x")), "two users u");
        assert_eq!(part(good().context("x", "c", "u").build("x")), "two contexts x");
        for server in ["http://a", "a:6443", "https://", "https://a b"] {
            let result = good().cluster("d", at(server)).build("x");
            assert!(matches!(result, Err(KubeconfigError::Server { .. })), "{server}");
        }
    }
}
