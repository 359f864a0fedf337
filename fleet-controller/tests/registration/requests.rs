//! Which certificates agents get.

use k8s_openapi::jiff::Timestamp;
use keelway_component::certificate_request::{CsrSubject, MalformedRequest, Request};
use keelway_fleet::{
    bootstrap::{BOOTSTRAPPERS, bootstrap_group},
    names::{AGENT_SIGNER, AGENTS_GROUP, agent_user},
};
use keelway_fleet_controller::registration::{
    decision::{RegistrationDecision, RegistrationFacts, decide},
    record::AgentRecord,
};

const USAGES: [&str; 2] = ["client auth", "digital signature"];

fn subject(cluster: &str) -> CsrSubject {
    CsrSubject {
        common_names: vec![agent_user(cluster)],
        organizations: vec![AGENTS_GROUP.to_owned()],
        key: vec![1],
        ..CsrSubject::default()
    }
}

fn registering() -> Request {
    Request {
        signer: AGENT_SIGNER.to_owned(),
        username: "system:bootstrap:abcdef".to_owned(),
        groups: [BOOTSTRAPPERS.to_owned(), bootstrap_group("west")].into(),
        credential: None,
        usages: USAGES.map(str::to_owned).into(),
        subject: Ok(subject("west")),
        decided: false,
        created: None,
        proven: None,
    }
}

fn renewing() -> Request {
    Request { username: agent_user("west"), groups: [AGENTS_GROUP.to_owned()].into(), ..registering() }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn member() -> RegistrationFacts {
    let record = AgentRecord::default().approved(Some("abcdef"), "k1", at(1000));
    RegistrationFacts { is_member: true, record: Some(record), key: "k1".to_owned(), ..RegistrationFacts::default() }
}

fn denied(request: &Request, facts: &RegistrationFacts) -> &'static str {
    let decision = decide(request, facts);
    let RegistrationDecision::Deny(denial) = decision else { panic!("{decision:?}") };
    denial.reason()
}

#[test]
fn a_token_admits_its_cluster_and_an_agent_renews_its_own() {
    assert_eq!(decide(&registering(), &RegistrationFacts::default()), RegistrationDecision::Approve);
    assert_eq!(decide(&renewing(), &member()), RegistrationDecision::Approve);
}

#[test]
fn a_certificate_of_another_cluster_is_denied() {
    for request in [registering(), renewing()] {
        let other = Request { subject: Ok(subject("east")), ..request };
        assert_eq!(denied(&other, &member()), "AnotherCluster");
    }
}

#[test]
fn others_are_left_alone() {
    let users: [fn(&mut Request); 6] = [
        |request| request.username = "admin".to_owned(),
        |request| request.signer = "kubernetes.io/kubelet-serving".to_owned(),
        |request| request.groups = [BOOTSTRAPPERS.to_owned()].into(),
        |request| request.groups = [bootstrap_group("West_")].into(),
        |request| request.groups = [bootstrap_group("west"), bootstrap_group("east")].into(),
        |request| request.decided = true,
    ];
    for (number, change) in users.into_iter().enumerate() {
        let mut request = registering();
        change(&mut request);
        assert_eq!(decide(&request, &member()), RegistrationDecision::LeaveAlone, "{number}");
    }
    // The user of an agent without its group, such as a ServiceAccount that an administrator lets impersonate users.
    let no_group = Request { groups: [].into(), ..renewing() };
    assert_eq!(decide(&no_group, &member()), RegistrationDecision::LeaveAlone);
}

/// Makes a request one that is not a fleet agent's.
type FormChange = fn(&mut Request, &mut CsrSubject);

#[test]
fn the_form_is_exact() {
    let forms: [(&str, FormChange); 8] = [
        ("WrongSubject", |_, subject| subject.organizations.push("system:masters".to_owned())),
        ("WrongSubject", |_, subject| subject.organizations = vec!["system:masters".to_owned()]),
        ("WrongSubject", |_, subject| subject.common_names.push("admin".to_owned())),
        ("WrongSubject", |_, subject| subject.has_others = true),
        ("AnotherCluster", |_, subject| subject.common_names = vec!["admin".to_owned()]),
        ("UnexpectedNames", |_, subject| subject.dns_names = ["a".to_owned()].into()),
        ("WrongUsages", |request, _| request.usages = ["client auth".to_owned()].into()),
        ("WrongUsages", |request, _| request.usages.extend(["server auth".to_owned()])),
    ];
    for (reason, change) in forms {
        let (mut request, mut own) = (registering(), subject("west"));
        change(&mut request, &mut own);
        assert_eq!(denied(&Request { subject: Ok(own), ..request }, &member()), reason);
    }
    let unreadable = Request { subject: Err(MalformedRequest::Pem), ..registering() };
    assert_eq!(denied(&unreadable, &member()), "IllFormed");
}

#[test]
fn a_token_admits_one_key() {
    let another_key = RegistrationFacts { key: "k2".to_owned(), ..member() };
    assert_eq!(denied(&registering(), &another_key), "TokenUsed");
    assert_eq!(decide(&registering(), &member()), RegistrationDecision::Approve, "the same request again");
    let another_token = Request { username: "system:bootstrap:bcdefg".to_owned(), ..registering() };
    assert_eq!(decide(&another_token, &another_key), RegistrationDecision::Approve, "an administrator allowed it");
}

#[test]
fn a_removed_cluster_does_not_come_back_while_a_certificate_is_valid() {
    let mut removed = member();
    removed.is_member = false;
    removed.record = removed.record.map(|record| AgentRecord { removed: true, ..record });
    assert_eq!(denied(&renewing(), &removed), "ClusterRemoved");
    assert_eq!(denied(&registering(), &removed), "NameRests");
    let later = RegistrationFacts { now: at(1000), ..removed };
    assert_eq!(decide(&registering(), &later), RegistrationDecision::Approve);
    assert_eq!(denied(&renewing(), &later), "ClusterRemoved");
    let forgotten = RegistrationFacts { record: None, ..member() };
    assert_eq!(denied(&renewing(), &forgotten), "ClusterRemoved", "nothing is known of that certificate");
    let leaving = RegistrationFacts { is_leaving: true, is_member: false, ..member() };
    assert_eq!(denied(&renewing(), &leaving), "ClusterLeaving");
    assert_eq!(denied(&registering(), &leaving), "ClusterLeaving");
}
