//! Passes that are interrupted on real machines, and that restart components: there are no agents.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use keelway_api::Documents;
use keelway_e2e::{
    FinishedCommand, Keelway, TestControlPlane, TestFleet, TestMachine,
    failpoint::{FailpointSelector, FailpointSignal},
    host::on_own_host,
};
use rustix::process::Signal;

use crate::recovery;

#[test]
fn interrupted() {
    on_own_host("interrupted::interrupted", scenario);
}

/// The failpoints at which the creation of a cluster is interrupted, in the order in which the program reaches them. After SIGTERM, the program
/// continues to the end of the current effect.
const BIRTH: [(Signal, &str); 10] = [
    (Signal::KILL, "saves"),
    (Signal::KILL, "saved"),
    (Signal::KILL, "begins take the machine"),
    (Signal::TERM, "done take the machine"),
    (Signal::KILL, "begins create sandbox"),
    (Signal::KILL, "done create sandbox"),
    (Signal::KILL, "begins create container etcd"),
    (Signal::TERM, "done start container etcd"),
    (Signal::KILL, "binds"),
    (Signal::KILL, "bound"),
];
/// The failpoints at which the deletion is interrupted.
const END: [(Signal, &str); 4] = [
    (Signal::KILL, "done stop sandbox"),
    (Signal::KILL, "begins remove sandbox"),
    (Signal::TERM, "done remove files, data and logs"),
    (Signal::KILL, "begins leave the machine"),
];

fn scenario() {
    let mut world = TestFleet::new("e2eint");
    let made = world.create_two_without_agents();
    let keelway = &world.keelway;
    let mut text = keelway.run(&["cluster", "inject", "--name", "c1"], &made).succeeded().stdout;
    for point in BIRTH {
        text = cut_off(keelway, point, text);
    }
    text = keelway.run(&["reconcile"], &text).succeeded().stdout;
    let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    let plane = TestControlPlane::new(keelway, text.clone(), "c1.kubeconfig");
    assert_eq!(plane.kubectl.run(&["get", "--raw", "/readyz"]).succeeded().text(), "ok");
    assert_eq!(plane.running().len(), 7);
    for machine in &plane.machines {
        assert_eq!(machine.sandboxes(), (machine.running().len(), 0), "no pod was made twice");
    }
    recovery::container(&plane, "kube-scheduler-0");
    recovery::sandbox(&plane, "ingress-0");

    text = keelway.run(&["cluster", "delete", "--name", "c1"], &text).succeeded().stdout;
    for point in END {
        text = cut_off(keelway, point, text);
    }
    text = keelway.run(&["reconcile"], &text).succeeded().stdout;
    let left = Documents::read(&text).unwrap();
    assert!(left.clusters.is_empty() && left.components.is_empty() && left.secrets.is_empty());
    for machine in TestMachine::all(&left) {
        assert_eq!(machine.sandboxes(), (0, 0));
        assert!(!machine.path("/var/lib/keelway").exists());
    }
}

/// Runs `reconcile` until a failpoint, and returns the documents to continue from.
pub(crate) fn cut_off(keelway: &Keelway, (signal, at): (Signal, &str), text: Vec<u8>) -> Vec<u8> {
    let ran = keelway.interrupt(
        &["reconcile"],
        &text,
        &FailpointSignal { signal, at: FailpointSelector::First(at.to_owned()) },
    );
    println!("            {signal:?} at {at:?}");
    if signal == Signal::KILL { killed(&ran, text, &keelway.state()) } else { terminated(&ran, &text) }
}

/// After SIGTERM, stdout has documents with all keys of the input.
fn terminated(ran: &FinishedCommand, before: &[u8]) -> Vec<u8> {
    assert_eq!(ran.code(), 143, "{}", ran.stderr);
    assert!(ran.stderr.contains("stopped; to continue, run the command again on the documents"), "{}", ran.stderr);
    let (before, after) = (Documents::read(before).unwrap(), Documents::read(&ran.stdout).unwrap());
    assert!(before.secrets.iter().all(|(name, secret)| after.secrets.get(name) == Some(secret)));
    ran.stdout.clone()
}

/// After SIGKILL, the file that the program named is complete. If the program named no file, it had saved and done nothing.
fn killed(ran: &FinishedCommand, before: Vec<u8>, state: &Path) -> Vec<u8> {
    assert_eq!((ran.code(), ran.stdout.len()), (137, 0));
    let named = ran.stderr.lines().find_map(|line| {
        line.strip_prefix("documents are kept in ")?.strip_suffix(" until they are written").map(PathBuf::from)
    });
    let Some(file) = named else {
        println!("            it had saved nothing yet");
        return before;
    };
    assert!(file.starts_with(state), "{}", file.display());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read(&file).unwrap();
    let documents = Documents::read(&text).unwrap();
    let known = Documents::read(&before).unwrap();
    assert!(known.secrets.iter().all(|(name, secret)| documents.secrets.get(name) == Some(secret)));
    text
}
