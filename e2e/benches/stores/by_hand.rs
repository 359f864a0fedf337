//! A store of plain processes that a person operates: copies of the programs and certificates of a cluster's members, on ports beside theirs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use keelway_api::{
    Component,
    role::{CLIENT, PEER, Role},
};
use keelway_e2e::{Plane, TestMachine, deadline, plane::store::PlaneStore, process};
use serde_json::Value;

use crate::etcdctl;

/// A directory on the same file system as the state of the machines.
const DIRECTORY: &str = "/var/lib/keelway-bench";
/// The paths in containers.
const FILES: &str = "/etc/keelway";
const DATA: &str = "/var/lib/etcd";
/// The distance from the ports of the cluster's members.
const PORTS: u16 = 10_000;

/// The running members. They are killed on drop.
pub(crate) struct StoreByHand(Vec<MemberByHand>);

struct MemberByHand {
    name: String,
    /// The name of its machine.
    machine: String,
    endpoint: String,
    peer_url: String,
    home: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl StoreByHand {
    /// Starts a store with as many members as the cluster's.
    pub(crate) fn start(plane: &Plane<'_>) -> Self {
        let members = plane.of_role(Role::Etcd);
        let ports: Vec<u16> =
            members.iter().flat_map(|member| [CLIENT, PEER].map(|port| member.spec.port(port))).collect();
        let mut store = Self(members.into_iter().map(|member| MemberByHand::of(plane, member, &ports)).collect());
        for member in &mut store.0 {
            member.start(plane.machine_named(&member.machine.clone()), "new");
        }
        deadline::until("the store by hand has a leader", deadline::KUBERNETES, || store.leader(plane).is_some());
        store
    }

    /// Writes as much as the cluster's store has.
    pub(crate) fn fill(&self, plane: &Plane<'_>, mebibytes: usize) {
        let store = PlaneStore::of(plane);
        let leader = self.leader(plane).unwrap();
        let client = store.client(&leader.endpoint);
        etcdctl::fill(plane.machine_named(&leader.machine), &client, Path::new(DIRECTORY), mebibytes);
    }

    /// A follower loses its process and its data. Returns the seconds until it is a voter again, with other data and another id, and responds to clients.
    pub(crate) fn replace(&mut self, plane: &Plane<'_>) -> f64 {
        let leader = self.leader(plane).unwrap().name.clone();
        let lost = self.0.iter().position(|member| member.name != leader).unwrap();
        let through = self.0.iter().position(|member| member.name == leader).unwrap();
        self.0[lost].lose_data();
        let (name, peer_url) = (self.0[lost].name.clone(), format!("--peer-urls={}", self.0[lost].peer_url));
        let started = Instant::now();
        let listing = self.0[through].etcdctl(plane, &["member", "list"]).unwrap();
        let found =
            listing["members"].as_array().unwrap().iter().find(|member| member["name"] == name.as_str()).unwrap();
        self.0[through].etcdctl(plane, &["member", "remove", &id(&found["ID"])]).unwrap();
        let added = self.0[through].etcdctl(plane, &["member", "add", &name, "--learner", &peer_url]).unwrap();
        let machine = self.0[lost].machine.clone();
        self.0[lost].start(plane.machine_named(&machine), "existing");
        let promote = ["member", "promote", &id(&added["member"]["ID"])];
        deadline::until("the learner is promoted", deadline::KUBERNETES, || {
            self.0[through].etcdctl(plane, &promote).is_some()
        });
        // A voter may need seven more seconds: etcd sends its own request to publish a new member again only after that time.
        deadline::until("the voter responds", deadline::KUBERNETES, || {
            self.0[lost].etcdctl(plane, &["endpoint", "health"]).is_some()
        });
        started.elapsed().as_secs_f64()
    }

    fn leader(&self, plane: &Plane<'_>) -> Option<&MemberByHand> {
        self.0.iter().find(|member| {
            let status = member.etcdctl(plane, &["endpoint", "status"]);
            status.is_some_and(|status| status[0]["Status"]["leader"] == status[0]["Status"]["header"]["member_id"])
        })
    }
}

/// etcdctl writes an id as a number, and reads it in hexadecimal.
fn id(number: &Value) -> String {
    format!("{:x}", number.as_u64().unwrap())
}

impl MemberByHand {
    fn of(plane: &Plane<'_>, member: &Component, ports: &[u16]) -> Self {
        let machine = plane.machine(member);
        let pid = machine.container_pid(&plane.running(member).unwrap().container);
        let home = Path::new(DIRECTORY).join(member.spec.name().unwrap().as_str());
        fs::create_dir_all(home.join("files")).unwrap();
        for file in fs::read_dir(format!("/proc/{pid}/root{FILES}")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), home.join("files").join(file.file_name())).unwrap();
        }
        fs::copy(format!("/proc/{pid}/exe"), home.join("etcd")).unwrap();
        let line = String::from_utf8(process::file(pid, "cmdline").unwrap()).unwrap();
        let moved = |text: &str| beside(text, &home, ports);
        let arguments = line.trim_end_matches('\0').split('\0').skip(1).map(moved).collect::<Vec<String>>();
        let value = |flag: &str| {
            let found = arguments.iter().find_map(|argument| argument.strip_prefix(&format!("--{flag}=")));
            found.unwrap().to_owned()
        };
        Self {
            name: value("name"),
            machine: machine.name().to_owned(),
            endpoint: value("advertise-client-urls"),
            peer_url: value("initial-advertise-peer-urls"),
            home,
            arguments,
            child: None,
        }
    }

    fn start(&mut self, machine: &TestMachine, state: &str) {
        let log = fs::File::options().create(true).append(true).open(self.home.join("log")).unwrap();
        let mut command = Command::new(self.home.join("etcd"));
        let others = self.arguments.iter().filter(|argument| !argument.starts_with("--initial-cluster-state="));
        command.args(others).arg(format!("--initial-cluster-state={state}"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(machine.within(|| command.spawn().unwrap()));
    }

    fn lose_data(&mut self) {
        self.end();
        fs::remove_dir_all(self.home.join("data")).unwrap();
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns the output of `etcdctl`, or none if it fails.
    fn etcdctl(&self, plane: &Plane<'_>, arguments: &[&str]) -> Option<Value> {
        let mut command = PlaneStore::of(plane).client(&self.endpoint);
        let ran = plane.machine_named(&self.machine).run(command.args(arguments).arg("--write-out=json"));
        (ran.code() == 0).then(|| ran.json())
    }
}

impl Drop for MemberByHand {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns an argument with the paths of the copies, and with the ports beside those of the cluster's members.
fn beside(text: &str, home: &Path, ports: &[u16]) -> String {
    let home = home.display();
    let text = text.replace(FILES, &format!("{home}/files")).replace(DATA, &format!("{home}/data"));
    ports.iter().fold(text, |text, port| text.replace(&format!(":{port}"), &format!(":{}", port + PORTS)))
}
