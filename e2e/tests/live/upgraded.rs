//! The programs of an earlier release beside those of this version, on the same machines.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use keelway_api::Documents;
use keelway_e2e::{Keelway, TestControlPlane, TestFleet, host::on_own_host, process};

use crate::life::born;

const RELEASE: &str = "v0.1.0";

/// The components that this version replaces once. `e2e/tests/compatibility.rs` lists them with the reasons.
const REPLACED: [&str; 3] = ["etcd-0", "ingress-0", "kube-apiserver-0"];

#[test]
#[ignore = "soak: programs of v0.1.0 are built for it"]
fn agents_of_a_release_obey_this_driver() {
    on_own_host("upgraded::agents_of_a_release_obey_this_driver", || {
        let mut world = TestFleet::new("e2eold");
        let (old, new) = both(&mut world);
        let made = world.create_two();
        let plane = born(&old, &made, &[]);
        is_taken_over(&plane, &new);
    });
}

#[test]
#[ignore = "soak: programs of v0.1.0 are built for it"]
fn agents_of_this_tree_obey_the_driver_of_a_release() {
    on_own_host("upgraded::agents_of_this_tree_obey_the_driver_of_a_release", || {
        let mut world = TestFleet::new("e2enew");
        let (old, new) = both(&mut world);
        let made = world.create_two();
        let plane = born(&old, &made, &[]);
        let before = plane.running();
        for machine in &plane.machines {
            process::kill(machine.agent_pid());
        }
        world.keelway = new.clone();
        assert_eq!(world.restart_missing(), made);
        let again = old.run(&["reconcile"], &plane.text).succeeded();
        assert_eq!(old.run(&["plan", "--exit-code"], &again.stdout).code(), 0);
        assert_eq!(plane.running(), before, "nothing restarts, nothing stops");
        is_taken_over(&plane, &new);
    });
}

/// Returns a driver of that release, which the fleet uses from now on, and a driver of this version.
fn both(world: &mut TestFleet) -> (Keelway, Keelway) {
    let new = world.keelway.clone();
    let old = new.of_programs(programs());
    world.keelway = old.clone();
    (old, new)
}

fn programs() -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/releases").join(RELEASE).join("debug");
    assert!(programs.join("keelway").exists(), "{} has no programs: hack/release.sh makes them", programs.display());
    fs::canonicalize(programs).unwrap()
}

/// This version replaces the listed components, and no others.
fn is_taken_over(plane: &TestControlPlane<'_>, new: &Keelway) {
    let before = plane.running();
    let taken = new.run(&["reconcile"], &plane.text).succeeded().stdout;
    let after = plane.running();
    let replaced: BTreeSet<&str> = before
        .iter()
        .filter(|(name, running)| after.get(*name) != Some(running))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(replaced, BTreeSet::from(REPLACED));
    assert_eq!(new.run(&["plan", "--exit-code"], &taken).code(), 0);
    let names = |documents: &Documents| documents.components.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&Documents::read(&taken).unwrap()), names(&plane.documents));
    let _ = plane.kubectl.run(&["create", "configmap", "kept", "--from-literal=from=after"]).succeeded();
}
