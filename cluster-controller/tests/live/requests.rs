//! Certificate signing requests, and the decisions about them.

use std::net::IpAddr;

use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
        core::v1::Secret,
    },
};
use keelway_api::worker::{WireGuardPeer, WorkerIdentity};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::json;

use crate::{
    peers::{given, peer},
    plane::Plane,
    wait,
};

const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";

/// One case of the table.
struct Row<'a> {
    what: &'static str,
    asker: &'a Client,
    signer: &'static str,
    subject: &'static str,
    organization: &'static str,
    dns: &'a [&'a str],
    addresses: &'a [IpAddr],
    usages: [&'static str; 2],
    /// The condition and its reason. `None` if the controller does not decide.
    outcome: Option<(&'static str, &'static str)>,
}

const CLIENT_USAGES: [&str; 2] = ["digital signature", "client auth"];
const SERVER_USAGES: [&str; 2] = ["digital signature", "server auth"];
/// The API server refuses to create the request: the admission plugin `NodeRestriction` runs before the controller.
const REFUSED: Option<(&str, &str)> = Some(("Refused", "Forbidden"));
const APPROVED: Option<(&str, &str)> = Some(("Approved", "KeelwayApproved"));

impl<'a> Row<'a> {
    /// The request for a client certificate, the first one of a kubelet.
    fn client(what: &'static str, asker: &'a Client, subject: &'static str) -> Self {
        Self {
            what,
            asker,
            signer: CLIENT,
            subject,
            organization: "system:nodes",
            dns: &[],
            addresses: &[],
            usages: CLIENT_USAGES,
            outcome: APPROVED,
        }
    }

    /// The request for a serving certificate with these names and addresses.
    fn serving(
        what: &'static str,
        asker: &'a Client,
        subject: &'static str,
        (dns, addresses): (&'a [&'a str], &'a [IpAddr]),
    ) -> Self {
        Self { signer: SERVING, dns, addresses, usages: SERVER_USAGES, ..Self::client(what, asker, subject) }
    }
}

fn denied(reason: &'static str) -> (&'static str, &'static str) {
    ("Denied", reason)
}

/// Creates a token as `keelway join-token` does.
async fn token(plane: &Plane, admin: &Client) -> Client {
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": "bootstrap-token-abcdef", "namespace": "kube-system" },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef",
            "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:keelway:workers",
        },
    }))
    .unwrap();
    Api::namespaced(admin.clone(), "kube-system").create(&PostParams::default(), &secret).await.unwrap();
    plane.bearer("abcdef.0123456789abcdef").await
}

/// Runs all cases in order: an approval for a name affects the next requests for it.
pub(crate) async fn table(plane: &Plane, admin: &Client) {
    let (token, w1, w9) = (token(plane, admin).await, plane.node("w1").await, plane.node("w9").await);
    let own: Vec<IpAddr> = given(admin, "w1").await.iter().map(|text| text.parse().unwrap()).collect();
    let others: Vec<IpAddr> = given(admin, "w9").await.iter().map(|text| text.parse().unwrap()).collect();
    let client = Row::client("a worker joins under a free name", &token, "system:node:new");
    let serving = Row::serving("its own name and address", &w1, "system:node:w1", (&["w1"], &own));
    let rows = [
        Row { ..client },
        Row { what: "another key for the same name", outcome: Some(denied("NameAsked")), ..client },
        Row {
            what: "the name of a live peer",
            subject: "system:node:w1",
            outcome: Some(denied("NameTaken")),
            ..client
        },
        Row {
            what: "a name of the API",
            subject: "system:node:kubernetes",
            outcome: Some(denied("NameReserved")),
            ..client
        },
        Row { what: "no node's name", subject: "admin", outcome: Some(denied("WrongSubject")), ..client },
        Row {
            what: "a group of power",
            subject: "system:node:x1",
            organization: "system:masters",
            outcome: Some(denied("WrongSubject")),
            ..client
        },
        Row {
            what: "a client with names",
            subject: "system:node:x2",
            dns: &["x2"],
            outcome: Some(denied("UnexpectedNames")),
            ..client
        },
        Row {
            what: "a client that serves",
            subject: "system:node:x3",
            usages: SERVER_USAGES,
            outcome: Some(denied("WrongUsages")),
            ..client
        },
        Row { what: "a node renews", asker: &w1, subject: "system:node:w1", ..client },
        Row { what: "a node renews another's", asker: &w9, subject: "system:node:w1", outcome: REFUSED, ..client },
        Row { what: "a stranger to us", asker: admin, subject: "system:node:x4", outcome: None, ..client },
        Row { ..serving },
        Row { what: "the address of another", addresses: &others, outcome: Some(denied("NotAllocated")), ..serving },
        Row { what: "the name of another", dns: &["w9"], outcome: Some(denied("NotAllocated")), ..serving },
        Row { what: "another's certificate", subject: "system:node:w9", outcome: REFUSED, ..serving },
        Row { what: "no name at all", dns: &[], addresses: &[], outcome: Some(denied("NoName")), ..serving },
        Row { what: "serving, by a token", asker: &token, outcome: REFUSED, ..serving },
    ];
    let requests = Api::<CertificateSigningRequest>::all(admin.clone());
    let mut alone = Vec::new();
    for row in &rows {
        let made = ask(row).await;
        if row.outcome == REFUSED {
            assert!(matches!(made, Err(kube::Error::Api(status)) if status.code == 403), "{}", row.what);
            continue;
        }
        let name = made.unwrap_or_else(|error| panic!("{}: {error}", row.what));
        match row.outcome {
            Some(outcome) => decided(&requests, &name, row.what, outcome).await,
            None => alone.push(name),
        }
    }
    knows_its_token(plane, admin).await;
    // By now, the controller has decided about all later requests.
    for name in alone {
        let status = requests.get(&name).await.unwrap().status.unwrap_or_default();
        assert!(status.conditions.unwrap_or_default().is_empty(), "{name} was decided about");
    }
}

/// Requests a node's next certificate with its current one.
pub(crate) async fn renewal_of_w2(
    plane: &Plane,
    admin: &Client,
    what: &'static str,
    outcome: (&'static str, &'static str),
) {
    let w2 = plane.node("w2").await;
    let row = Row::client(what, &w2, "system:node:w2");
    let name = ask(&row).await.unwrap();
    decided(&Api::all(admin.clone()), &name, what, outcome).await;
}

/// Without the controller, the requests that its rules deny are signed once an administrator approves them.
pub(crate) async fn without_guards(plane: &Plane, admin: &Client) {
    let token = plane.bearer("abcdef.0123456789abcdef").await;
    let client = Row::client("without the controller: the name of a live peer", &token, "system:node:w1");
    let others: Vec<IpAddr> = given(admin, "w5").await.iter().map(|text| text.parse().unwrap()).collect();
    let w4 = plane.node("w4").await;
    let what = "without the controller: the address of another";
    let serving = Row::serving(what, &w4, "system:node:w4", (&["w4"], &others));
    let requests = Api::<CertificateSigningRequest>::all(admin.clone());
    for row in [client, serving] {
        let name = ask(&row).await.unwrap();
        let approved = json!({ "status": { "conditions": [{
            "type": "Approved", "status": "True", "reason": "Test", "message": "whatever it asks for",
        }] } });
        requests.patch_approval(&name, &PatchParams::default(), &Patch::Merge(&approved)).await.unwrap();
        decided(&requests, &name, row.what, ("Approved", "Test")).await;
    }
}

/// The identity of a worker records the token with which it joined, so that the workers of a revoked token are known.
async fn knows_its_token(plane: &Plane, admin: &Client) {
    let worker = Api::<WireGuardPeer>::all(plane.node("new").await);
    worker.create(&PostParams::default(), &peer("new", 120)).await.unwrap();
    given(admin, "new").await;
    let identity = Api::<WorkerIdentity>::all(admin.clone()).get("new").await.unwrap();
    assert_eq!(identity.spec.join_token.as_deref(), Some("abcdef"));
}

async fn ask(row: &Row<'_>) -> kube::Result<String> {
    let mut parameters = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, row.organization);
    subject.push(DnType::CommonName, row.subject);
    parameters.distinguished_name = subject;
    let dns = row.dns.iter().map(|name| SanType::DnsName((*name).try_into().unwrap()));
    parameters.subject_alt_names = dns.chain(row.addresses.iter().copied().map(SanType::IpAddress)).collect();
    let request = parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let csr = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("test-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: row.signer.to_owned(),
            usages: Some(row.usages.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    Ok(Api::all(row.asker.clone()).create(&PostParams::default(), &csr).await?.name_any())
}

/// Waits for the decision, and for the certificate if it is an approval.
pub(crate) async fn decided(
    requests: &Api<CertificateSigningRequest>,
    name: &str,
    what: &str,
    (kind, reason): (&str, &str),
) {
    let status = async || {
        let status = requests.get(name).await.unwrap().status?;
        let is_done = status.certificate.is_some() || status.conditions.iter().flatten().any(|c| c.type_ == "Denied");
        is_done.then_some(status)
    };
    let status = wait::some(what, status).await;
    let condition = &status.conditions.unwrap()[0];
    let found = (condition.type_.as_str(), condition.reason.as_deref().unwrap());
    assert_eq!(found, (kind, reason), "{what}: {:?}", condition.message);
    assert!(condition.message.as_ref().is_some_and(|message| !message.is_empty()));
}
