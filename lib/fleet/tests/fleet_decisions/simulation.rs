//! Histories of a simulated fleet: each converges, and no step breaks a rule.

use crate::simulator::{FleetBug, FleetSimulation};

#[test]
fn every_history_converges() {
    let mut log = String::new();
    for seed in 0..260 {
        let mut simulation = FleetSimulation::new(seed, None);
        if let Err(violation) = simulation.run(150) {
            panic!("seed {seed}: {violation}\n{}", simulation.log.join("\n"));
        }
        log += &simulation.log.join("\n");
    }
    // The histories contain what they are for.
    for event in [
        "Moved",
        "ObjectDeleted",
        "is removed",
        "readable false",
        "reported false",
        "listed false",
        "caught up false",
        "answered false",
        "the cluster has not been ready since",
        "the object returns to",
        "does not select the cluster any more, and the object has volumes",
        "orchestrator: submits",
        "orchestrator: removes",
        "releases",
        "delegates true",
        "pinned true",
    ] {
        let number = log.matches(event).count();
        assert!(number > 20, "{event}: {number}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let log = |seed| {
        let mut simulation = FleetSimulation::new(seed, None);
        simulation.run(100).unwrap();
        simulation.log
    };
    assert_eq!(log(7), log(7));
    assert_ne!(log(7), log(8));
}

#[test]
fn every_planted_bug_is_found() {
    for bug in FleetBug::ALL {
        let is_found = (0..300).any(|seed| FleetSimulation::new(seed, Some(bug)).run(150).is_err());
        assert!(is_found, "{bug:?}");
    }
}
