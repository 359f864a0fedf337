//! The etcd of the cluster: the leader, which remains, and the two followers that are lost.

use std::{fs, path::PathBuf};

use keelway_api::{Component, Documents, Observation, cluster::EtcdStatus, machine::STATE_DIRECTORY, role::Role};
use keelway_e2e::{Keelway, TestFleet, TestMachine};

pub(crate) struct LostStore {
    pub(crate) survivor: String,
    /// The followers.
    pub(crate) lost: Vec<String>,
    /// Their machines, in the same order.
    pub(crate) lost_machines: Vec<String>,
    cluster: String,
    machine: TestMachine,
}

impl LostStore {
    pub(crate) fn of(keelway: &Keelway, text: &[u8]) -> Self {
        let documents = Documents::read(text).unwrap();
        let observation = Observation::read(&keelway.run(&["observe"], text).succeeded().stdout).unwrap();
        let store = observation.stores.values().next().unwrap();
        let leader = store.leader().unwrap();
        let leads = |component: &&Component| {
            store.report(&component.spec.name().unwrap()).is_some_and(|report| report.id == leader)
        };
        let members: Vec<&Component> = documents
            .components
            .values()
            .map(|component| &**component)
            .filter(|component| component.spec.role == Role::Etcd)
            .collect();
        let survivor = members.iter().copied().find(leads).unwrap();
        let others: Vec<&Component> = members.into_iter().filter(|component| !leads(component)).collect();
        let name = |component: &Component| component.spec.name().unwrap().to_string();
        let mut machines = TestMachine::all(&documents).into_iter();
        Self {
            survivor: name(survivor),
            lost: others.iter().map(|component| name(component)).collect(),
            lost_machines: others.iter().map(|component| component.spec.hypervisor.to_string()).collect(),
            cluster: survivor.spec.cluster_id.to_string(),
            machine: machines.find(|machine| machine.name() == survivor.spec.hypervisor.as_str()).unwrap(),
        }
    }

    fn path(&self, machine: &TestMachine, member: &str) -> PathBuf {
        machine.path(&format!("{STATE_DIRECTORY}/{}/{member}", self.cluster))
    }

    /// A directory of the survivor, as this process sees it.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.path(&self.machine, &self.survivor).join(name)
    }

    /// The directory of a member on a machine that may be away now.
    pub(crate) fn directory_of<'a>(&'a self, machine: &'a str, member: &'a str) -> impl Fn(&TestFleet) -> PathBuf + 'a {
        move |world| {
            let machines = world.machines();
            self.path(machines.iter().find(|found| found.name() == machine).unwrap(), member)
        }
    }

    /// The path in this process for a path of the survivor's machine.
    pub(crate) fn machine_path(&self, path: &str) -> PathBuf {
        self.machine.path(path)
    }

    /// The command lines of etcd on the survivor's machine.
    pub(crate) fn commands(&self) -> Vec<String> {
        let command = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).ok();
        let all = self.machine.processes().into_iter().filter_map(command);
        let text = all.map(|command| String::from_utf8_lossy(&command).replace('\0', " "));
        text.filter(|command| command.starts_with("etcd ")).collect()
    }
}

/// The etcd of the only cluster.
pub(crate) fn status(documents: &Documents) -> &EtcdStatus {
    let cluster = documents.clusters.values().next().unwrap();
    cluster.status.as_ref().unwrap().etcd.as_ref().unwrap()
}
