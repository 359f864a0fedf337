//! What is remembered of an agent.

use k8s_openapi::jiff::Timestamp;
use keelway_fleet_controller::registration::record::AgentRecord;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_name_rests_until_its_last_certificate_has_expired() {
    let joined = AgentRecord::default().approved(Some("abcdef"), "k1", at(1000));
    assert_eq!(joined.rests_until(at(0)), None, "it is in the fleet");
    let issued = joined.issued("k1", at(100));
    assert_eq!((issued.ends(), &issued.pending), (Some(at(100)), &None));
    // A renewal that was approved and never seen.
    let renewed = issued.approved(None, "k2", at(500));
    assert_eq!(renewed.token, joined.token);
    let removed = AgentRecord { removed: true, ..renewed };
    assert_eq!(removed.rests_until(at(499)), Some(at(500)));
    assert_eq!(removed.rests_until(at(500)), None);
}

#[test]
fn no_end_is_forgotten() {
    let twice = AgentRecord::default().approved(None, "k1", at(900)).approved(None, "k2", at(500));
    assert_eq!(twice.ends(), Some(at(900)));
    assert_eq!(twice.issued("k2", at(300)).ends(), Some(at(900)));
}
