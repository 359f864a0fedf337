//! The keys in a cluster's store. They show that two clusters do the same work.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use keelway_cri::testing::cache;
use keelway_e2e::{TestControlPlane, deadline};
use keelway_planner::{DRIVER_SECRET, probes};

use crate::size::pause;

/// The prefix of all keys of Kubernetes.
const ALL: &str = "/registry/";
/// Keys that are created and deleted continuously.
const PASSING: [&str; 2] = ["/registry/events/", "/registry/leases/"];
/// The client credentials for etcd: flags of `etcdctl`, and the Secrets with their values.
const IDENTITY: [(&str, &str, &str); 3] = [
    ("--cacert", "etcd-ca", "bundle.crt"),
    ("--cert", DRIVER_SECRET, "etcd-client.crt"),
    ("--key", DRIVER_SECRET, "etcd-client.key"),
];
/// How often a store that does not hold the same keys yet is read again. Reads are rare, because they use memory of the store.
const AGAIN: Duration = Duration::from_secs(1);

/// The number of keys in each directory of a store. Names are not compared, because the names of pods end in random characters.
pub(crate) struct Keys(BTreeMap<String, usize>);

impl Keys {
    /// Reads the store that serves the cluster now, of Keelway or of plain processes.
    pub(crate) fn of(plane: &TestControlPlane<'_>) -> Self {
        let probes = probes(&plane.documents).unwrap();
        let member = probes.iter().find(|probe| probe.component.component.as_str() == "etcd-0").unwrap();
        let mut command = Command::new(cache().unwrap().join("bin/etcdctl"));
        command.arg(format!("--endpoints=https://{}", member.address));
        for (flag, secret, key) in IDENTITY {
            command.arg(flag).arg(file(plane, secret, key));
        }
        let finished = plane.private().run(command.args(["get", "--prefix", "--keys-only", ALL])).succeeded();
        let is_kept = |key: &&str| key.starts_with(ALL) && !PASSING.iter().any(|passing| key.starts_with(passing));
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (directory, _) in finished.text().lines().filter(is_kept).filter_map(|key| key.rsplit_once('/')) {
            *counts.entry(directory.to_owned()).or_default() += 1;
        }
        Self(counts)
    }

    /// Waits until the store that serves the cluster now has as many keys.
    pub(crate) fn awaited_in(&self, plane: &TestControlPlane<'_>) {
        let started = Instant::now();
        loop {
            let unlike = self.unlike(&Self::of(plane));
            if unlike.is_empty() {
                return;
            }
            let limit = deadline::KUBERNETES;
            assert!(started.elapsed() < limit, "the stores do not hold the same after {limit:?}: {unlike}");
            pause(AGAIN);
        }
    }

    /// Lists the directories whose numbers of keys differ, with both numbers. Returns an empty text if there are none.
    fn unlike(&self, plain: &Self) -> String {
        let directories: BTreeSet<&String> = self.0.keys().chain(plain.0.keys()).collect();
        let unlike = directories.into_iter().filter_map(|directory| {
            let [ours, plain] = [self, plain].map(|keys| keys.0.get(directory).copied().unwrap_or_default());
            (ours != plain).then(|| format!("{directory}: {ours} keys, {plain} of plain processes"))
        });
        unlike.collect::<Vec<_>>().join("; ")
    }
}

fn file(plane: &TestControlPlane<'_>, secret: &str, key: &str) -> PathBuf {
    let path = plane.keelway.directory().join(format!("{secret}-{key}"));
    fs::write(&path, plane.secret(secret, key)).unwrap();
    path
}
