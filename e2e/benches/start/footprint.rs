//! Memory of both sides, counted the same way: by cgroup.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::Duration,
};

use keelway_e2e::{TestControlPlane, TestMachine};

use crate::{
    memory::{anonymous, group_of, used_in},
    plain::Running,
    size::pause,
    table::median,
};

/// The number of samples, and the interval between them. A Go heap grows until a garbage collection, whose time varies.
const SAMPLES: usize = 11;
const EVERY: Duration = Duration::from_secs(2);

/// The processes whose memory is counted.
#[derive(Default)]
pub(crate) struct Side {
    /// Cgroups, by the program that runs in them.
    groups: BTreeMap<String, PathBuf>,
    /// Processes without a cgroup of their own: shims.
    shims: Vec<u32>,
}

/// The memory of each part in MiB, as the median of its samples.
pub(crate) struct Footprint(BTreeMap<String, f64>);

impl Side {
    /// Everything that runs for a cluster. The runtime and the agent of a machine serve all clusters and are not counted.
    pub(crate) fn ours(plane: &TestControlPlane<'_>) -> Self {
        let mut side = Self::default();
        plane.machines.iter().for_each(|machine| side.add(machine));
        side
    }

    /// The plain processes.
    pub(crate) fn plain(running: &Running) -> Self {
        let groups = running.groups.iter().map(|(name, group)| (name.clone(), group.directory().to_owned()));
        Self { groups: groups.collect(), shims: Vec::new() }
    }

    fn add(&mut self, machine: &TestMachine) {
        for (name, running) in machine.running() {
            self.groups.insert(format!("pause of {name}"), group_of(machine.sandbox_pid(&running.sandbox)).unwrap());
            self.groups.insert(name, group_of(machine.container_pid(&running.container)).unwrap());
        }
        for (name, running) in machine.running_beside() {
            let group = group_of(machine.container_pid(&running.container)).unwrap();
            self.groups.insert(format!("beside {name}"), group);
        }
        let of_machine = [machine.pid(), machine.agent_pid()];
        let counted: BTreeSet<&PathBuf> = self.groups.values().collect();
        let is_counted = |pid: u32| group_of(pid).is_none_or(|group| counted.contains(&group));
        let others = machine.processes().into_iter();
        self.shims.extend(others.filter(|pid| !of_machine.contains(pid) && !is_counted(*pid)));
    }

    /// Samples the memory.
    pub(crate) fn footprint(&self) -> Footprint {
        let mut seen: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for sample in 0..SAMPLES {
            if sample > 0 {
                pause(EVERY);
            }
            for (name, group) in &self.groups {
                for (name, used) in [name.clone(), format!("{name} (kernel)")].into_iter().zip(used_in(group)) {
                    seen.entry(name).or_default().push(used);
                }
            }
            seen.entry("shims".to_owned()).or_default().push(anonymous(&self.shims));
        }
        Footprint(seen.into_iter().map(|(name, values)| (name, median(&values))).collect())
    }
}

impl Footprint {
    /// Returns the memory of etcd and of the Kubernetes programs.
    pub(crate) fn of_kubernetes(&self) -> f64 {
        let is_of_kubernetes = |name: &str| name.starts_with("etcd") || name.starts_with("kube-");
        self.0.iter().filter(|(name, _)| is_of_kubernetes(name)).map(|(_, used)| used).sum()
    }

    /// Returns the memory of all parts.
    pub(crate) fn total(&self) -> f64 {
        self.0.values().sum()
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.iter().map(|(name, used)| format!("{name} {used:.1}"));
        f.write_str(&parts.collect::<Vec<_>>().join(", "))
    }
}
