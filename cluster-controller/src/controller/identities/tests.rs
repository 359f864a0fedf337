use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::worker::{ApprovedCertificate, CERTIFICATES, WorkerIdentitySpec};

use super::decision::{self, CertificateHolder, IdentityStep, is_asked, joined, learned, renewed, step};

/// How long an expired certificate proves its key.
const GRACE: SignedDuration = SignedDuration::from_secs(200);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn certificate(key: &str, id: Option<&str>, until: i64) -> ApprovedCertificate {
    ApprovedCertificate { key: key.to_owned(), id: id.map(str::to_owned), until: Time(at(until)) }
}

/// Returns the owner of a certificate that was just used.
fn holder(identity: &WorkerIdentitySpec, credential: Option<&str>) -> CertificateHolder {
    decision::holder(identity, credential, SignedDuration::ZERO)
}

fn token() -> String {
    "abcdef".to_owned()
}

/// A worker that joined, and whose certificate is signed.
fn worker() -> WorkerIdentitySpec {
    let asked = joined(None, Some(token()), certificate("k1", None, 100), at(0)).unwrap();
    learned(&asked, &certificate("k1", Some("c1"), 90))
}

fn with_peer() -> WorkerIdentitySpec {
    let IdentityStep::Write(identity) = step(&worker(), Some("uid1"), at(1), GRACE) else { panic!() };
    identity
}

fn gone(identity: &WorkerIdentitySpec) -> WorkerIdentitySpec {
    let IdentityStep::Leave(identity) = step(identity, None, at(2), GRACE) else { panic!() };
    identity
}

#[test]
fn a_worker_is_identified_by_its_certificate() {
    let worker = with_peer();
    assert_eq!(worker.join_token, Some(token()));
    assert_eq!(worker.peer.as_deref(), Some("uid1"));
    assert_eq!(holder(&worker, Some("X509SHA256=c1")), CertificateHolder::Current);
    for other in [Some("X509SHA256=c2"), Some("c1"), Some("X509SHA256="), Some(""), None] {
        assert_eq!(holder(&worker, other), CertificateHolder::Former, "{other:?}");
    }
    assert_eq!(step(&worker, Some("uid1"), at(2), GRACE), IdentityStep::Keep(Some(Time(at(90)))));
}

#[test]
fn each_certificate_leads_to_the_next() {
    let asked = renewed(&with_peer(), certificate("k2", None, 160), at(60)).unwrap();
    assert_eq!(holder(&asked, Some("X509SHA256=c1")), CertificateHolder::Current);
    // It is signed, but its id is not recorded yet.
    assert_eq!(holder(&asked, Some("X509SHA256=c2")), CertificateHolder::Unknown);
    let signed = learned(&asked, &certificate("k2", Some("c2"), 150));
    assert_eq!(holder(&signed, Some("X509SHA256=c2")), CertificateHolder::Current);
    assert_eq!(learned(&signed, &certificate("k2", Some("c2"), 150)), signed, "learning it twice changes nothing");
    // The first one expires.
    let IdentityStep::Write(later) = step(&signed, Some("uid1"), at(90), GRACE) else { panic!() };
    assert_eq!(holder(&later, Some("X509SHA256=c1")), CertificateHolder::Former);
    assert_eq!(holder(&later, Some("X509SHA256=c2")), CertificateHolder::Current);
}

/// The request was signed, and deleted before a controller observed it.
#[test]
fn an_unknown_certificate_is_accepted_only_while_one_is_not_recorded() {
    let later = |identity: &WorkerIdentitySpec, credential: &str| {
        decision::holder(identity, Some(credential), SignedDuration::from_mins(1))
    };
    let asked = renewed(&with_peer(), certificate("k2", None, 160), at(60)).unwrap();
    assert_eq!(later(&asked, "X509SHA256=c2"), CertificateHolder::Current);
    assert_eq!(
        later(&with_peer(), "X509SHA256=c2"),
        CertificateHolder::Former,
        "every certificate of this worker is recorded"
    );
    // All certificates of an earlier worker must be recorded. Otherwise an unknown certificate is not trusted.
    let next = joined(Some(&gone(&with_peer())), Some(token()), certificate("k3", None, 160), at(60)).unwrap();
    assert_eq!(later(&next, "X509SHA256=c3"), CertificateHolder::Current);
    assert_eq!(later(&next, "X509SHA256=c1"), CertificateHolder::Former);
    let next = joined(Some(&gone(&asked)), Some(token()), certificate("k3", None, 160), at(60)).unwrap();
    assert_eq!(later(&next, "X509SHA256=c3"), CertificateHolder::Former);
}

#[test]
fn the_certificates_of_a_worker_that_left_are_revoked() {
    let left = gone(&with_peer());
    assert_eq!(left.peer, None);
    assert_eq!(holder(&left, Some("X509SHA256=c1")), CertificateHolder::Former);
    // A peer that was deleted and created again has another uid.
    assert!(matches!(step(&with_peer(), Some("uid2"), at(2), GRACE), IdentityStep::Leave(_)));
    // A peer that the worker creates after it left is not adopted.
    assert_eq!(step(&left, Some("uid3"), at(3), GRACE), IdentityStep::Keep(Some(Time(at(90)))));
}

#[test]
fn a_new_worker_of_the_name_does_not_inherit_certificates() {
    let left = gone(&with_peer());
    assert!(!is_asked(&left, "k2", at(3)), "a machine that left joins again at once");
    let next = joined(Some(&left), Some(token()), certificate("k2", None, 103), at(3)).unwrap();
    assert_eq!(holder(&next, Some("X509SHA256=c1")), CertificateHolder::Former);
    let next = learned(&next, &certificate("k2", Some("c2"), 103));
    assert_eq!(holder(&next, Some("X509SHA256=c2")), CertificateHolder::Current);
    assert_eq!(holder(&next, Some("X509SHA256=c1")), CertificateHolder::Former);
}

#[test]
fn earlier_certificates_end_with_the_next_join() {
    let long = learned(
        &joined(None, Some(token()), certificate("k1", None, 9999), at(0)).unwrap(),
        &certificate("k1", Some("c1"), 9999),
    );
    assert!(is_asked(&long, "k2", at(299)));
    assert!(!is_asked(&long, "k1", at(10)), "an interrupted join continues");
    assert!(!is_asked(&long, "k2", at(300)), "its certificate is valid for much longer");
    assert!(!is_asked(&worker(), "k2", at(100)), "an expired certificate does not reserve the name");
    let next = joined(Some(&long), Some(token()), certificate("k2", None, 9999), at(300)).unwrap();
    assert_eq!(holder(&next, Some("X509SHA256=c1")), CertificateHolder::Former);
    // This also holds for a certificate that is signed only then.
    let unsigned = joined(None, Some(token()), certificate("k1", None, 9999), at(0)).unwrap();
    let next = joined(Some(&unsigned), Some(token()), certificate("k2", None, 9999), at(300)).unwrap();
    let next = learned(&next, &certificate("k1", Some("c1"), 9999));
    assert_eq!(holder(&next, Some("X509SHA256=c1")), CertificateHolder::Former);
}

#[test]
fn an_interrupted_join_continues_with_its_key() {
    let again = joined(Some(&worker()), Some(token()), certificate("k1", None, 110), at(10)).unwrap();
    assert_eq!(holder(&again, Some("X509SHA256=c1")), CertificateHolder::Current);
    assert!(again.revoked.is_empty());
}

#[test]
fn an_identity_lasts_as_long_as_its_certificates() {
    let left = gone(&with_peer());
    assert_eq!(step(&left, None, at(89), GRACE), IdentityStep::Keep(Some(Time(at(90)))));
    assert_eq!(step(&left, None, at(90), GRACE), IdentityStep::Delete);
    // The identity stays while its peer exists.
    let IdentityStep::Write(offline) = step(&with_peer(), Some("uid1"), at(500), GRACE) else { panic!() };
    assert_eq!(step(&offline, Some("uid1"), at(501), GRACE), IdentityStep::Keep(None));
}

#[test]
fn the_number_of_certificates_of_a_name_is_limited() {
    let mut identity = with_peer();
    for number in 1..CERTIFICATES {
        identity = renewed(&identity, certificate(&format!("n{number}"), None, 100), at(2)).unwrap();
    }
    assert_eq!(renewed(&identity, certificate("more", None, 100), at(2)), None);
    let left = gone(&identity);
    assert_eq!(left.revoked.len(), CERTIFICATES, "none is forgotten");
    assert_eq!(joined(Some(&left), Some(token()), certificate("more", None, 100), at(2)), None);
    assert!(joined(Some(&left), Some(token()), certificate("more", None, 200), at(100)).is_some());
}

#[test]
fn the_last_expired_certificate_proves_its_key_for_the_grace() {
    let worker = with_peer();
    let ids = |identity: &WorkerIdentitySpec, second| {
        let kept = decision::kept(identity, at(second), GRACE).certificates;
        kept.into_iter().filter_map(|one| one.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&worker, 90), ["c1"]);
    assert_eq!(step(&worker, Some("uid1"), at(90), GRACE), IdentityStep::Keep(Some(Time(at(290)))));
    assert_eq!(ids(&worker, 289), ["c1"]);
    assert!(ids(&worker, 290).is_empty());
    assert!(decision::kept(&worker, at(90), SignedDuration::ZERO).certificates.is_empty(), "it is off");

    let asked = renewed(&worker, certificate("k2", None, 400), at(200)).unwrap();
    let signed = learned(&asked, &certificate("k2", Some("c2"), 390));
    assert_eq!(ids(&signed, 201), ["c2"], "the next certificate replaces it");
    assert_eq!(ids(&signed, 391), ["c2"]);
    assert!(ids(&gone(&worker), 91).is_empty(), "its worker left");
    let taken = joined(Some(&worker), Some(token()), certificate("k3", None, 400), at(100)).unwrap();
    assert!(!ids(&taken, 101).contains(&"c1".to_owned()), "another worker has the name");
}
