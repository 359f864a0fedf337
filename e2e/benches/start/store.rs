//! What a cluster's store holds, so that two are known to do the same work.

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

/// All that Kubernetes keeps.
const ALL: &str = "/registry/";
/// What comes and goes by itself.
const PASSING: [&str; 2] = ["/registry/events/", "/registry/leases/"];
/// By whom a store is asked: flags of `etcdctl`, and the Secrets with their values.
const IDENTITY: [(&str, &str, &str); 3] = [
    ("--cacert", "etcd-ca", "bundle.crt"),
    ("--cert", DRIVER_SECRET, "etcd-client.crt"),
    ("--key", DRIVER_SECRET, "etcd-client.key"),
];
/// How often a store is asked again that does not hold the same yet: seldom, as it takes memory itself.
const AGAIN: Duration = Duration::from_secs(1);

/// How many keys a store has in each directory. Not which: the names of pods end in random characters.
pub(crate) struct Keys(BTreeMap<String, usize>);

impl Keys {
    /// Of the store that serves the cluster now, whoever runs it.
    pub(crate) fn of(plane: &TestControlPlane<'_>) -> Self {
        let probes = probes(&plane.documents).unwrap();
        let member = probes.iter().find(|probe| probe.component.component.as_str() == "etcd-0").unwrap();
        let mut command = Command::new(cache().unwrap().join("bin/etcdctl"));
        command.arg(format!("--endpoints=https://{}", member.address));
        for (flag, secret, key) in IDENTITY {
            command.arg(flag).arg(file(plane, secret, key));
        }
        let ran = plane.private().run(command.args(["get", "--prefix", "--keys-only", ALL])).succeeded();
        let is_kept = |key: &&str| key.starts_with(ALL) && !PASSING.iter().any(|passing| key.starts_with(passing));
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (directory, _) in ran.text().lines().filter(is_kept).filter_map(|key| key.rsplit_once('/')) {
            *counts.entry(directory.to_owned()).or_default() += 1;
        }
        Self(counts)
    }

    /// Waits until the store that serves the cluster now has as many.
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

    /// The directories of which one has other keys, with both numbers; empty where there are none.
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
