//! Agents of workload clusters, as far as the fleet sees them.

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec, CertificateSigningRequestStatus},
        coordination::v1::Lease,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::{SignedDuration, Timestamp},
};
use keelway_fleet::{
    BootstrapToken, ClusterLocation,
    bootstrap::token_secret,
    names::{AGENT_LEASE, AGENT_LEASE_SECONDS, AGENT_SIGNER, AGENTS_GROUP, agent_user, works_namespace},
};
use keelway_pki::{PrivateKeyPem, client_signing_request};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use serde_json::json;

use crate::{plane::Plane, wait};

/// The region that all tokens state.
pub(crate) const REGION: &str = "eu";

/// An agent with a certificate.
pub(crate) struct TestAgent {
    pub(crate) cluster: String,
    pub(crate) client: Client,
}

pub(crate) fn new_key() -> PrivateKeyPem {
    PrivateKeyPem::mint(&mut ChaCha8Rng::from_rng(&mut rand::rng())).unwrap()
}

/// Creates a token for a cluster, as `keelway fleet token create` does, and returns a client with it.
pub(crate) async fn with_token(plane: &Plane, admin: &Client, cluster: &str) -> (Client, BootstrapToken) {
    let token = BootstrapToken::mint(&mut ChaCha8Rng::from_rng(&mut rand::rng()));
    let mut secret = token_secret(&token, cluster, Timestamp::now() + SignedDuration::from_mins(10));
    let location = ClusterLocation { region: Some(REGION.to_owned()), ..ClusterLocation::default() };
    secret.annotations_mut().extend(location.annotations());
    Api::namespaced(admin.clone(), "kube-system").create(&PostParams::default(), &secret).await.unwrap();
    let client = plane.bearer(token.expose().as_ref()).await;
    (client, token)
}

/// A request for a certificate.
pub(crate) struct Asked<'a> {
    pub(crate) common_name: &'a str,
    pub(crate) organization: &'a str,
    pub(crate) usages: &'a [&'a str],
}

/// Returns the request that an agent sends.
pub(crate) fn usual(user: &str) -> Asked<'_> {
    Asked { common_name: user, organization: AGENTS_GROUP, usages: &["digital signature", "client auth"] }
}

/// Requests a certificate, and waits for the decision: a certificate, or the reason of the denial.
pub(crate) async fn request(client: &Client, asked: &Asked<'_>, key: &PrivateKeyPem) -> Result<String, String> {
    let request = client_signing_request(key, asked.common_name, asked.organization).unwrap();
    let csr = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("test-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: AGENT_SIGNER.to_owned(),
            usages: Some(asked.usages.iter().map(|&usage| usage.to_owned()).collect()),
            expiration_seconds: Some(3600),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let api = Api::<CertificateSigningRequest>::all(client.clone());
    // API servers observe a new token within a moment.
    let name = wait::some("a request is created", async || {
        api.create(&PostParams::default(), &csr).await.ok().map(|created| created.name_any())
    })
    .await;
    let what = format!("{} is decided", asked.common_name);
    wait::some(&what, async || outcome(api.get(&name).await.ok()?.status?)).await
}

fn outcome(status: CertificateSigningRequestStatus) -> Option<Result<String, String>> {
    let denied = status.conditions.iter().flatten().find(|condition| condition.type_ == "Denied");
    if let Some(denied) = denied {
        return Some(Err(denied.reason.clone().unwrap()));
    }
    status.certificate.map(|certificate| Ok(String::from_utf8(certificate.0).unwrap()))
}

impl TestAgent {
    pub(crate) async fn new(plane: &Plane, cluster: &str, certificate: &str, key: &PrivateKeyPem) -> Self {
        let client = plane.identified(&STANDARD.encode(certificate), &STANDARD.encode(key.expose())).await;
        Self { cluster: cluster.to_owned(), client }
    }

    pub(crate) fn user(&self) -> String {
        agent_user(&self.cluster)
    }

    /// Renews the Lease once.
    pub(crate) async fn beat(&self) -> kube::Result<Lease> {
        self.beat_for(AGENT_LEASE_SECONDS).await
    }

    /// Renews the Lease once, for so many seconds.
    pub(crate) async fn beat_for(&self, seconds: i32) -> kube::Result<Lease> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": AGENT_LEASE },
            "spec": { "holderIdentity": "test", "leaseDurationSeconds": seconds, "renewTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string() },
        });
        let api = Api::<Lease>::namespaced(self.client.clone(), &works_namespace(&self.cluster));
        api.patch(AGENT_LEASE, &PatchParams::apply("keelway-fleet-agent").force(), &Patch::Apply(&lease)).await
    }
}
