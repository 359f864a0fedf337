//! Passes that are cut short on real machines, and mend what dies: there are no agents.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use keelway_api::Documents;
use keelway_e2e::{ControlPlane, Machine, Ran, World, host::on_own_host};
use rustix::process::Signal;

use crate::recovery;

#[test]
fn interrupted() {
    on_own_host("interrupted::interrupted", scenario);
}

/// Signals come at times that no test run shares with another; each run says which.
fn scenario() {
    let mut world = World::new("e2eint");
    let made = world.create_two_without_agents();
    let keelway = &world.keelway;
    let mut text = keelway.run(&["cluster", "inject", "--name", "c1"], &made).succeeded().stdout;
    let mut times = Times::new();

    for span in [400, 4_000] {
        let ran = keelway.interrupt(&["reconcile"], &text, times.within(span), Signal::TERM);
        text = terminated(&ran, &text);
    }
    for span in [400, 4_000] {
        let ran = keelway.interrupt(&["reconcile"], &text, times.within(span), Signal::KILL);
        text = killed(&ran, text, &keelway.state());
    }
    text = keelway.run(&["reconcile"], &text).succeeded().stdout;
    let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    let plane = ControlPlane::new(keelway, text.clone(), "c1.kubeconfig");
    assert_eq!(plane.kubectl.run(&["get", "--raw", "/readyz"]).succeeded().text(), "ok");
    assert_eq!(plane.running().len(), 5);
    for machine in &plane.machines {
        assert_eq!(machine.sandboxes(), (machine.running().len(), 0), "no pod was made twice");
    }
    recovery::container(&plane, "kube-scheduler-0");
    recovery::sandbox(&plane, "ingress-0");

    text = keelway.run(&["cluster", "delete", "--name", "c1"], &text).succeeded().stdout;
    let ran = keelway.interrupt(&["reconcile"], &text, times.within(1_500), Signal::TERM);
    text = terminated(&ran, &text);
    let ran = keelway.interrupt(&["reconcile"], &text, times.within(1_500), Signal::KILL);
    text = killed(&ran, text, &keelway.state());
    text = keelway.run(&["reconcile"], &text).succeeded().stdout;
    let left = Documents::read(&text).unwrap();
    assert!(left.clusters.is_empty() && left.components.is_empty() && left.secrets.is_empty());
    for machine in Machine::all(&left) {
        assert_eq!(machine.sandboxes(), (0, 0));
        assert!(!machine.path("/var/lib/keelway").exists());
    }
}

/// Whatever it was at: documents on stdout, with all keys that there were.
fn terminated(ran: &Ran, before: &[u8]) -> Vec<u8> {
    assert!(matches!(ran.code(), 143 | 0), "{}: {}", ran.code(), ran.stderr);
    if ran.code() == 143 {
        assert!(ran.stderr.contains("stopped: run the same command on what was written to go on"), "{}", ran.stderr);
    }
    let (before, after) = (Documents::read(before).unwrap(), Documents::read(&ran.stdout).unwrap());
    if ran.code() == 143 {
        assert!(before.secrets.iter().all(|(name, secret)| after.secrets.get(name) == Some(secret)));
    }
    ran.stdout.clone()
}

/// Killed before it saved anything, it had done nothing; else the file that it named is complete.
fn killed(ran: &Ran, before: Vec<u8>, state: &Path) -> Vec<u8> {
    if ran.code() == 0 {
        return ran.stdout.clone();
    }
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

/// Moments from the clock's last digits.
struct Times(u64);

impl Times {
    fn new() -> Self {
        Self(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos().into())
    }

    fn within(&mut self, millis: u64) -> Duration {
        // Knuth's generator (The Art of Computer Programming, volume 2, section 3.3.4).
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let time = Duration::from_millis((self.0 >> 33) % millis);
        println!("            a signal comes after {} ms", time.as_millis());
        time
    }
}
