//! Join tokens: Kubernetes bootstrap tokens, which are Secrets in `kube-system` of the managed cluster.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret;
use keelway_api::{
    ObjectMeta, Time,
    jiff::Timestamp,
    worker::{BOOTSTRAPPERS, WorkerIdentity},
};
use keelway_pki::BootstrapToken;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};

use super::{ClusterWorkers, WorkersError};

/// Defined in `k8s.io/cluster-bootstrap/token/api`.
const TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";
/// The label of Keelway's tokens. Other tokens, such as those of kubeadm, are ignored.
const OURS: (&str, &str) = ("app.kubernetes.io/managed-by", "keelway");

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// The id of the token. It identifies the token to revoke.
    pub id: String,
    /// When the token was created.
    pub created: Option<Time>,
    /// When the token expires.
    pub expires: Option<Timestamp>,
}

impl ClusterWorkers {
    /// Creates a token in the cluster. It is valid until it expires.
    pub async fn create_token(&self, token: &BootstrapToken, expires: Timestamp) -> Result<(), WorkersError> {
        let secret = secret(token, expires);
        Self::call("create the token", self.tokens_api().create(&PostParams::default(), &secret)).await.map(drop)
    }

    /// Returns all tokens, including expired ones that the cluster has not removed yet.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>, WorkersError> {
        let parameters =
            ListParams::default().labels(&format!("{}={}", OURS.0, OURS.1)).fields(&format!("type={TYPE}"));
        let secrets = Self::call("list tokens", self.tokens_api().list(&parameters)).await?;
        Ok(secrets.items.iter().filter_map(record).collect())
    }

    /// Revokes a token. API servers accept it for up to 10 s more (`TokenSuccessCacheTTL`).
    pub async fn revoke_token(&self, id: &str) -> Result<(), WorkersError> {
        let name = format!("{PREFIX}{id}");
        let api = self.tokens_api();
        let found = Self::call("read the token", api.get_opt(&name)).await?;
        let found =
            found.filter(|secret| record(secret).is_some()).ok_or_else(|| WorkersError::NoToken(id.to_owned()))?;
        let this = Preconditions { uid: found.metadata.uid, resource_version: None };
        let parameters = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
        match Self::call("delete the token", api.delete(&name, &parameters)).await {
            Err(error) if error.code() == Some(404) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Returns the workers that were approved with a token, including those that have no peer at the moment.
    pub async fn joined_with(&self, id: &str) -> Result<BTreeSet<String>, WorkersError> {
        let identities = Api::<WorkerIdentity>::all(self.client.clone());
        match Self::call("list the identities of workers", identities.list(&ListParams::default())).await {
            Err(error) if error.code() == Some(404) => Err(WorkersError::NoKinds),
            identities => {
                let all = identities?.items.into_iter();
                let joined = all.filter(|identity| identity.spec.join_token.as_deref() == Some(id));
                Ok(joined.filter_map(|identity| identity.metadata.name).collect())
            }
        }
    }

    fn tokens_api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), "kube-system")
    }
}

fn secret(token: &BootstrapToken, expires: Timestamp) -> Secret {
    let data = [
        ("token-id", token.id().to_owned()),
        ("token-secret", token.secret().to_owned()),
        // RFC 3339 in whole seconds, which is the format that Kubernetes parses.
        ("expiration", expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("auth-extra-groups", BOOTSTRAPPERS.to_owned()),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(format!("{PREFIX}{}", token.id())),
            namespace: Some("kube-system".to_owned()),
            labels: Some(BTreeMap::from([(OURS.0.to_owned(), OURS.1.to_owned())])),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        string_data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
        ..Secret::default()
    }
}

/// Returns the token of a Secret; none if it is not a token of Keelway.
fn record(secret: &Secret) -> Option<TokenRecord> {
    let is_ours = secret.metadata.labels.as_ref()?.get(OURS.0).is_some_and(|by| by == OURS.1);
    let is_token = secret.type_.as_deref() == Some(TYPE);
    let id = secret.metadata.name.as_deref()?.strip_prefix(PREFIX).filter(|_| is_ours && is_token)?;
    let expires = secret.data.as_ref().and_then(|data| String::from_utf8(data.get("expiration")?.0.clone()).ok());
    Some(TokenRecord {
        id: id.to_owned(),
        created: secret.metadata.creation_timestamp.clone(),
        expires: expires.and_then(|text| text.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use keelway_api::ByteString;

    use super::*;

    fn kept() -> Secret {
        let token: BootstrapToken = "abcdef.0123456789abcdef".parse().unwrap();
        let mut secret = secret(&token, "2026-11-22T05:00:00.5Z".parse().unwrap());
        let data = secret.string_data.take().unwrap();
        secret.data = Some(data.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect());
        secret
    }

    #[test]
    fn a_token_is_one_of_kubernetes() {
        let secret = kept();
        let data = secret.data.unwrap();
        assert_eq!(secret.metadata.name.unwrap(), "bootstrap-token-abcdef");
        assert_eq!(data["expiration"].0, b"2026-11-22T05:00:00Z");
        assert_eq!(data["auth-extra-groups"].0, b"system:bootstrappers:keelway:workers");
        assert!(!data.contains_key("usage-bootstrap-signing"));
    }

    #[test]
    fn a_record_holds_no_secret() {
        let record = record(&kept()).unwrap();
        assert_eq!(record.id, "abcdef");
        assert_eq!(record.expires, Some("2026-11-22T05:00:00Z".parse().unwrap()));
        assert!(!format!("{record:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn tokens_of_other_programs_are_ignored() {
        let mut kubeadms = kept();
        kubeadms.metadata.labels = None;
        let mut opaque = kept();
        opaque.type_ = Some("Opaque".to_owned());
        assert_eq!((record(&kubeadms), record(&opaque)), (None, None));
    }
}
