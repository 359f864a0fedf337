//! The structure of the file (`k8s.io/client-go/tools/clientcmd/api/v1`). Fields are in alphabetical order, as kubectl writes them.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use zeroize::Zeroizing;

use super::{AuthoritySource, ClientIdentity, Kubeconfig, KubeconfigCluster};
use crate::PrivateKeyPem;

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct KubeconfigDocument<'a> {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    clusters: Vec<NamedCluster<'a>>,
    contexts: Vec<NamedContext<'a>>,
    current_context: &'a str,
    kind: &'static str,
    users: Vec<NamedUser<'a>>,
}

#[derive(Serialize)]
struct NamedCluster<'a> {
    cluster: ClusterEntry<'a>,
    name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterEntry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<&'a str>,
}

#[derive(Serialize)]
struct NamedContext<'a> {
    context: ContextEntry<'a>,
    name: &'a str,
}

#[derive(Serialize)]
struct ContextEntry<'a> {
    cluster: &'a str,
    user: &'a str,
}

#[derive(Serialize)]
struct NamedUser<'a> {
    name: &'a str,
    user: UserEntry<'a>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::struct_field_names, reason = "the file's fields have these names")]
struct UserEntry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key_data: Option<EncodedKey>,
}

/// A key in base64. Its memory is zeroed on drop.
struct EncodedKey(Zeroizing<String>);

impl EncodedKey {
    fn new(key: &PrivateKeyPem) -> Self {
        Self(Zeroizing::new(STANDARD.encode(key.expose())))
    }
}

impl Serialize for EncodedKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'a> From<&'a Kubeconfig> for KubeconfigDocument<'a> {
    fn from(kubeconfig: &'a Kubeconfig) -> Self {
        let clusters = kubeconfig.clusters.iter();
        let contexts = kubeconfig.contexts.iter();
        let users = kubeconfig.users.iter();
        Self {
            api_version: "v1",
            clusters: clusters.map(|(name, cluster)| NamedCluster { cluster: cluster.into(), name }).collect(),
            contexts: contexts.map(|(name, context)| NamedContext { context: context.into(), name }).collect(),
            current_context: &kubeconfig.current_context,
            kind: "Config",
            users: users.map(|(name, user)| NamedUser { name, user: user.into() }).collect(),
        }
    }
}

impl<'a> From<&'a KubeconfigCluster> for ClusterEntry<'a> {
    fn from(cluster: &'a KubeconfigCluster) -> Self {
        let (file, data) = match &cluster.authority {
            AuthoritySource::Embedded(pem) => (None, Some(STANDARD.encode(pem))),
            AuthoritySource::File(path) => (Some(path.as_str()), None),
        };
        Self {
            certificate_authority: file,
            certificate_authority_data: data,
            server: &cluster.server,
            tls_server_name: cluster.tls_server_name.as_deref(),
        }
    }
}

impl<'a> From<&'a super::KubeconfigContext> for ContextEntry<'a> {
    fn from(context: &'a super::KubeconfigContext) -> Self {
        Self { cluster: &context.cluster, user: &context.user }
    }
}

impl<'a> From<&'a ClientIdentity> for UserEntry<'a> {
    fn from(identity: &'a ClientIdentity) -> Self {
        match identity {
            ClientIdentity::Embedded(issued) => Self {
                client_certificate_data: Some(STANDARD.encode(&issued.certificate_pem)),
                client_key_data: Some(EncodedKey::new(&issued.key_pem)),
                ..Self::default()
            },
            ClientIdentity::Files { certificate, key } => {
                Self { client_certificate: Some(certificate), client_key: Some(key), ..Self::default() }
            }
        }
    }
}
