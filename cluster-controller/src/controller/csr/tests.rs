use std::collections::BTreeSet;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::{
    machine::sha256_hex,
    worker::{ApprovedCertificate, BOOTSTRAPPERS, GATEWAY_USER, NodeNameFault, WorkerIdentitySpec},
};

use keelway_component::certificate_request::{CsrSubject, MalformedRequest, Request};

use super::decision::{CLIENT, CsrDecision, Denial, NODES, NodeFacts, SERVING, decide, node_of};

const TOKEN: &str = "system:bootstrap:abcdef";

fn set<T: Ord + Clone>(items: &[T]) -> BTreeSet<T> {
    items.iter().cloned().collect()
}

fn subject(node: &str) -> CsrSubject {
    CsrSubject {
        common_names: vec![format!("system:node:{node}")],
        organizations: vec![NODES.to_owned()],
        key: b"key".to_vec(),
        ..CsrSubject::default()
    }
}

/// A worker that joins.
fn joining() -> Request {
    Request {
        signer: CLIENT.to_owned(),
        username: TOKEN.to_owned(),
        groups: set(&["system:bootstrappers".to_owned(), BOOTSTRAPPERS.to_owned()]),
        usages: set(&["digital signature".to_owned(), "client auth".to_owned()]),
        subject: Ok(subject("w1")),
        credential: None,
        decided: false,
        created: None,
        proven: None,
    }
}

/// A node that renews its client certificate.
fn renewing() -> Request {
    Request { username: "system:node:w1".to_owned(), groups: set(&[NODES.to_owned()]), ..joining() }
}

/// A node that requests a serving certificate.
fn serving() -> Request {
    let mut subject = subject("w1");
    subject.dns_names = set(&["w1".to_owned()]);
    subject.addresses = set(&["100.80.0.17".parse().unwrap()]);
    Request {
        signer: SERVING.to_owned(),
        usages: set(&["digital signature".to_owned(), "server auth".to_owned()]),
        subject: Ok(subject),
        ..renewing()
    }
}

fn with_peer() -> NodeFacts {
    NodeFacts { peer: Some(set(&["100.80.0.17".parse().unwrap()])), ..NodeFacts::default() }
}

fn changed(mut request: Request, change: impl FnOnce(&mut Request, &mut CsrSubject)) -> Request {
    let mut subject = request.subject.clone().unwrap();
    change(&mut request, &mut subject);
    request.subject = Ok(subject);
    request
}

fn denial(request: &Request, facts: &NodeFacts) -> &'static str {
    let verdict = decide(request, facts);
    let CsrDecision::Deny(denial) = verdict else { panic!("{verdict:?}") };
    denial.reason()
}

/// A worker that was approved at the epoch, and whose certificate expires at `until`.
fn identity(key: &[u8], id: Option<&str>, until: i64) -> WorkerIdentitySpec {
    let until = Time(Timestamp::from_second(until).unwrap());
    let certificate = ApprovedCertificate { key: sha256_hex(key), id: id.map(str::to_owned), until };
    let approved = Some(Time(Timestamp::UNIX_EPOCH));
    WorkerIdentitySpec { approved, certificates: vec![certificate], ..WorkerIdentitySpec::default() }
}

#[test]
fn a_certificate_of_an_earlier_worker_of_the_name_is_rejected() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let known = |id| NodeFacts { identity: Some(identity(b"key", id, 10)), ..with_peer() };
    for request in [renewing(), serving()] {
        let with = |credential: &str| Request { credential: Some(credential.to_owned()), ..request.clone() };
        assert!(matches!(decide(&with("X509SHA256=new"), &known(Some("new"))), CsrDecision::Approve(_)));
        assert_eq!(denial(&with("X509SHA256=old"), &known(Some("new"))), "FormerWorker");
        assert_eq!(denial(&request, &known(Some("new"))), "FormerWorker", "without a certificate");
        let asked = |second| Request { created: Some(at(second)), ..with("X509SHA256=new") };
        let later = |known: NodeFacts| NodeFacts { now: at(70), ..known };
        let long = |id| NodeFacts { identity: Some(identity(b"key", id, 100)), ..with_peer() };
        assert_eq!(decide(&with("X509SHA256=new"), &known(None)), CsrDecision::WaitForIdentity);
        assert_eq!(decide(&asked(11), &later(long(None))), CsrDecision::WaitForIdentity);
        assert!(
            matches!(decide(&asked(10), &later(long(None))), CsrDecision::Approve(_)),
            "the wait for the identity has ended"
        );
    }
}

#[test]
fn a_worker_with_expired_certificates_joins_again() {
    let at = |second| {
        let now = Timestamp::from_second(second).unwrap();
        NodeFacts { identity: Some(identity(b"old", Some("old"), 10)), now, ..with_peer() }
    };
    assert_eq!(denial(&joining(), &at(9)), "NameTaken");
    assert!(matches!(decide(&joining(), &at(10)), CsrDecision::Approve(_)));
    assert_eq!(denial(&joining(), &NodeFacts { tombstone: true, ..at(10) }), "NameRests");
}

#[test]
fn workers_join_renew_and_serve() {
    assert!(matches!(decide(&joining(), &NodeFacts::default()), CsrDecision::Approve(_)));
    assert!(matches!(decide(&renewing(), &with_peer()), CsrDecision::Approve(_)));
    assert!(matches!(decide(&serving(), &with_peer()), CsrDecision::Approve(_)));
    let rsa = changed(joining(), |request, _| {
        request.usages.insert("key encipherment".to_owned());
    });
    assert!(matches!(decide(&rsa, &NodeFacts::default()), CsrDecision::Approve(_)));
    assert_eq!(node_of(&joining()), Some("w1"));
}

#[test]
fn a_name_belongs_to_one_worker() {
    assert_eq!(denial(&joining(), &with_peer()), "NameTaken");
    let tombstone = NodeFacts { tombstone: true, ..NodeFacts::default() };
    assert_eq!(denial(&joining(), &tombstone), "NameRests");
    let evicted = NodeFacts { tombstone: true, ..with_peer() };
    assert_eq!(denial(&renewing(), &evicted), "NameRests");
    assert_eq!(denial(&serving(), &evicted), "NameRests");
    let asked = |key: &[u8]| NodeFacts { identity: Some(identity(key, None, 10)), ..NodeFacts::default() };
    assert_eq!(denial(&joining(), &asked(b"another")), "NameAsked");
    // A join that was interrupted is run again, with its key.
    assert!(matches!(decide(&joining(), &asked(b"key")), CsrDecision::Approve(_)));
}

#[test]
fn a_node_without_a_peer_gets_no_certificate() {
    assert_eq!(denial(&renewing(), &NodeFacts::default()), "NoPeer");
    assert_eq!(denial(&serving(), &NodeFacts::default()), "NoPeer");
    let without_addresses = NodeFacts { peer: Some(BTreeSet::new()), ..NodeFacts::default() };
    assert_eq!(decide(&serving(), &without_addresses), CsrDecision::Wait);
}

#[test]
fn a_node_may_only_request_its_own_certificate() {
    for request in [renewing(), serving()] {
        let another = changed(request, |request, _| request.username = "system:node:w2".to_owned());
        assert_eq!(denial(&another, &with_peer()), "AnotherNode");
    }
}

#[test]
fn a_serving_certificate_has_allocated_names_only() {
    let foreign: [fn(&mut Request, &mut CsrSubject); 4] = [
        |_, subject| {
            subject.addresses.insert("100.80.0.18".parse().unwrap());
        },
        |_, subject| {
            subject.dns_names.insert("w2".to_owned());
        },
        |_, subject| {
            subject.dns_names.insert("*".to_owned());
        },
        |_, subject| subject.has_other_names = true,
    ];
    for change in foreign {
        assert_eq!(denial(&changed(serving(), change), &with_peer()), "NotAllocated");
    }
    let nameless = changed(serving(), |_, subject| {
        subject.dns_names.clear();
        subject.addresses.clear();
    });
    assert_eq!(denial(&nameless, &with_peer()), "NoName");
}

#[test]
fn a_request_has_exactly_the_form_of_its_signer() {
    let subjects: [fn(&mut Request, &mut CsrSubject); 6] = [
        |_, subject| subject.organizations.push("system:masters".to_owned()),
        |_, subject| subject.organizations = vec!["system:masters".to_owned()],
        |_, subject| subject.organizations.clear(),
        |_, subject| subject.common_names = vec!["admin".to_owned()],
        |_, subject| subject.common_names.push("system:node:w2".to_owned()),
        |_, subject| subject.has_others = true,
    ];
    for change in subjects {
        assert_eq!(denial(&changed(joining(), change), &NodeFacts::default()), "WrongSubject");
    }
    for name in ["system:node:", "system:node:W1", "system:node:w 1", "system:node:../w1"] {
        let named = changed(joining(), |_, subject| subject.common_names = vec![name.to_owned()]);
        assert_eq!(denial(&named, &NodeFacts::default()), "WrongSubject", "{name}");
    }
    let usages: [&[&str]; 4] = [
        &["digital signature"],
        &["client auth"],
        &["digital signature", "client auth", "server auth"],
        &["digital signature", "client auth", "key encipherment", "any"],
    ];
    for usages in usages {
        let wrong = changed(joining(), |request, _| request.usages = usages.iter().map(|&u| u.to_owned()).collect());
        assert_eq!(denial(&wrong, &NodeFacts::default()), "WrongUsages", "{usages:?}");
    }
    let names = changed(joining(), |_, subject| subject.dns_names = set(&["w1".to_owned()]));
    assert_eq!(denial(&names, &NodeFacts::default()), "UnexpectedNames");
    let unreadable = Request { subject: Err(MalformedRequest::Pem), ..joining() };
    assert_eq!(denial(&unreadable, &NodeFacts::default()), "IllFormed");
}

#[test]
fn a_worker_cannot_have_a_name_of_the_api() {
    for fault in [NodeNameFault::Reserved, NodeNameFault::Address, NodeNameFault::Form] {
        assert_eq!(denial(&joining(), &NodeFacts { fault: Some(fault), ..NodeFacts::default() }), "NameReserved");
        for request in [renewing(), serving()] {
            assert_eq!(denial(&request, &NodeFacts { fault: Some(fault), ..with_peer() }), "NameReserved");
        }
    }
}

#[test]
fn requests_of_others_are_left_alone() {
    let others: [fn(&mut Request, &mut CsrSubject); 6] = [
        |request, _| request.signer = "kubernetes.io/kube-apiserver-client".to_owned(),
        |request, _| request.signer = "example.com/own".to_owned(),
        |request, _| request.username = "kubernetes-admin".to_owned(),
        // A token that is not for workers.
        |request, _| request.groups = set(&["system:bootstrappers".to_owned()]),
        |request, _| request.decided = true,
        // Only nodes request serving certificates.
        |request, _| request.signer = SERVING.to_owned(),
    ];
    for change in others {
        assert_eq!(decide(&changed(joining(), change), &NodeFacts::default()), CsrDecision::LeaveAlone);
    }
    let imposter = changed(renewing(), |request, _| request.groups.clear());
    assert_eq!(decide(&imposter, &with_peer()), CsrDecision::LeaveAlone);
}

#[test]
fn each_denial_names_a_remedy() {
    let denials = [
        Denial::NameTaken("w1".to_owned()),
        Denial::NoPeer("w1".to_owned()),
        Denial::IllFormed(MalformedRequest::Twice),
    ];
    for denial in denials {
        assert!(denial.to_string().contains([':', ';']), "{denial}");
    }
}

/// A worker whose certificate `old` expired at 10 renews through a gateway.
fn renewing_after_the_end() -> Request {
    Request { username: GATEWAY_USER.to_owned(), groups: set(&[]), proven: Some("old".to_owned()), ..joining() }
}

/// The worker of that certificate, at this second.
fn away(second: i64) -> NodeFacts {
    let identity = WorkerIdentitySpec { peer: Some("uid".to_owned()), ..identity(b"key", Some("old"), 10) };
    let (now, grace) = (Timestamp::from_second(second).unwrap(), SignedDuration::from_secs(90));
    NodeFacts { identity: Some(identity), now, grace, ..with_peer() }
}

#[test]
fn an_expired_certificate_is_renewed_with_its_key() {
    let request = renewing_after_the_end();
    assert_eq!(node_of(&request), Some("w1"));
    for second in [10, 99] {
        assert!(matches!(decide(&request, &away(second)), CsrDecision::Approve(_)), "{second}");
    }
}

#[test]
fn an_expired_certificate_is_not_renewed_without_its_key() {
    let request = renewing_after_the_end();
    for proven in [None, Some("other".to_owned())] {
        assert_eq!(denial(&Request { proven, ..request.clone() }, &away(50)), "Unproven");
    }
    let of = |identity: WorkerIdentitySpec| NodeFacts { identity: Some(identity), ..away(50) };
    let another = WorkerIdentitySpec { peer: Some("uid".to_owned()), ..identity(b"key", Some("w1s"), 10) };
    assert_eq!(denial(&request, &of(another)), "Unproven", "a certificate of another name");
    let revoked = WorkerIdentitySpec {
        certificates: vec![],
        revoked: identity(b"key", Some("old"), 10).certificates,
        peer: Some("uid".to_owned()),
        ..WorkerIdentitySpec::default()
    };
    assert_eq!(denial(&request, &of(revoked)), "Unproven", "a worker that left");
    let newer = WorkerIdentitySpec {
        certificates: [identity(b"key", Some("old"), 10), identity(b"next", Some("new"), 60)]
            .into_iter()
            .flat_map(|identity| identity.certificates)
            .collect(),
        peer: Some("uid".to_owned()),
        ..WorkerIdentitySpec::default()
    };
    assert_eq!(denial(&request, &of(newer)), "Unproven", "a newer certificate is valid");
    assert_eq!(denial(&request, &away(100)), "Unproven", "beyond the grace");
    assert_eq!(denial(&request, &away(9)), "Unproven", "it is valid, so the worker renews it itself");
    assert_eq!(denial(&request, &NodeFacts { grace: SignedDuration::ZERO, ..away(50) }), "Unproven", "it is off");
    assert_eq!(denial(&request, &NodeFacts { peer: None, ..away(50) }), "NoPeer");
    assert_eq!(denial(&request, &NodeFacts { tombstone: true, ..away(50) }), "NameRests");
    assert_eq!(denial(&request, &NodeFacts { identity: None, ..away(50) }), "Unproven");
}
