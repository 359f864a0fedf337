//! The files of components, and the privileges of their processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
};

use keelway_e2e::{TestControlPlane, TestMachine, machine_facts::tree, process};

/// Only its component can read a file of a component. A component cannot add or replace files in directories that it reads.
pub(crate) fn files_are_private(plane: &TestControlPlane<'_>) {
    for (name, component) in plane.components() {
        let machine = machine_of(plane, component.spec.hypervisor.as_str());
        let home = machine.path(&format!("/var/lib/keelway/{}/{name}", plane.id()));
        let user = component.spec.user;
        let read = tree(&home.join("files"));
        assert!(!read.is_empty(), "{name}");
        for path in read {
            let seen = fs::symlink_metadata(&path).unwrap();
            if seen.is_dir() {
                assert!(not_writable(&path), "{}", path.display());
            } else {
                let is = (seen.is_file(), seen.uid(), seen.mode() & 0o7777);
                assert_eq!(is, (true, user, 0o600), "{}", path.display());
            }
        }
        for path in [&home, &home.join("files")] {
            assert!(not_writable(path), "{}", path.display());
        }
        for entry in fs::read_dir(&home).unwrap().flatten().filter(|entry| entry.file_name() != "files") {
            let seen = entry.metadata().unwrap();
            assert_eq!(
                (seen.is_dir(), seen.uid(), seen.mode() & 0o7777),
                (true, user, 0o700),
                "{}",
                entry.path().display()
            );
        }
    }
}

/// Only root can read what agents store about clusters.
pub(crate) fn agents_keep_to_themselves(plane: &TestControlPlane<'_>) {
    for machine in plane.machines.iter().filter(|machine| machine.has_agent()) {
        let socket = machine.document.spec.endpoint.socket().unwrap();
        let within = Path::new("/run/keelway/agent.sock");
        assert!(Path::new(socket).ends_with("run/keelway/agent.sock"), "{socket}");
        let agent = user_of(machine.agent_pid());
        let socket = [(within, 0o140_600), (within.parent().unwrap(), 0o40_700)];
        let socket = socket.map(|(path, mode)| (path.display().to_string(), agent, mode));
        let records =
            ["owner", "applied", "config", "events"].map(|name| (format!("/var/lib/keelway/{name}"), 0, 0o100_600));
        for (path, user, mode) in records.into_iter().chain(socket) {
            let seen = fs::symlink_metadata(machine.path(&path)).unwrap();
            assert_eq!((seen.uid(), seen.gid(), seen.mode()), (user, user, mode), "{path} of {}", machine.name());
        }
        // Other users can pass through the directory to their own files, and cannot list it.
        let seen = fs::symlink_metadata(machine.path("/var/lib/keelway")).unwrap();
        assert_eq!((seen.uid(), seen.mode() & 0o066), (0, 0), "{}", machine.name());
    }
}

/// The capabilities of an agent: the bits of `CAP_CHOWN`, `CAP_DAC_OVERRIDE` and `CAP_FOWNER`.
const RIGHTS: &str = "000000000000000b";

/// Each agent runs as a user of its own, with three capabilities of root, and cannot gain more.
pub(crate) fn agents_are_users_of_their_own(plane: &TestControlPlane<'_>) {
    let machines = plane.machines.iter().filter(|machine| machine.has_agent() && !machine.has_started_agent());
    are_users_of_their_own(plane, machines.map(TestMachine::agent_pid));
}

/// The same for these processes of agents.
pub(crate) fn are_users_of_their_own(plane: &TestControlPlane<'_>, agents: impl Iterator<Item = u32>) {
    let mut users: BTreeSet<u32> = plane.components().values().map(|component| component.spec.user).collect();
    users.insert(0);
    for pid in agents {
        let of = |field: &str| process::status(pid, field).unwrap();
        let user = user_of(pid);
        assert!(users.insert(user), "{user} is two in {users:?}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(of(set), RIGHTS, "{set} of the agent of user {user}");
        }
        assert_eq!((of("NoNewPrivs").as_str(), of("Groups").trim()), ("1", ""), "the agent of user {user}");
    }
}

/// Returns the user of a process. Its real, effective, saved and file system ids are the same.
fn user_of(pid: u32) -> u32 {
    let text = process::status(pid, "Uid").unwrap();
    let users: BTreeSet<u32> = text.split('\t').map(|user| user.parse().unwrap()).collect();
    assert_eq!(users.len(), 1, "{text}");
    users.into_iter().next().unwrap()
}

fn not_writable(directory: &Path) -> bool {
    let seen = fs::symlink_metadata(directory).unwrap();
    seen.is_dir() && seen.uid() == 0 && seen.mode() & 0o022 == 0
}

/// Every process of every pod runs without privileges.
pub(crate) fn processes_have_no_privilege(plane: &TestControlPlane<'_>) {
    let running = plane.running();
    let components = plane.components();
    let users: BTreeSet<u32> = components.values().map(|component| component.spec.user).collect();
    assert_eq!(users.len(), components.len());
    let mut checked = BTreeMap::new();
    for (name, component) in &components {
        let machine = machine_of(plane, component.spec.hypervisor.as_str());
        let Some(seen) = running.get(name) else { panic!("{name} does not run") };
        let (container, sandbox) = (machine.container_pid(&seen.container), machine.sandbox_pid(&seen.sandbox));
        for pid in [container, sandbox] {
            has_no_privilege(name, pid, component.spec.user);
        }
        // The CRI cannot set the bounding set of a sandbox's own process. With `no_new_privs`, the process cannot gain capabilities from it.
        assert_eq!(process::status(container, "CapBnd").unwrap().trim_start_matches('0'), "", "{name}");
        checked.extend([container, sandbox].map(|pid| (pid, component.spec.user)));
    }
    for machine in &plane.machines {
        for (name, beside) in machine.running_beside() {
            let (pid, user) = (machine.container_pid(&beside.container), components[&name].spec.user);
            has_no_privilege(&name, pid, user);
            assert_eq!(process::status(pid, "CapBnd").unwrap().trim_start_matches('0'), "", "beside {name}");
            checked.insert(pid, user);
        }
    }
    // Only the runtime, the agent and haproxy's worker (a child of its master) run besides these.
    for machine in &plane.machines {
        let agent = machine.has_agent().then(|| machine.agent_pid());
        for pid in machine.processes().into_iter().filter(|pid| !checked.contains_key(pid)) {
            let name = process::status(pid, "Name").unwrap_or_default();
            let parent = process::status(pid, "PPid").and_then(|parent| checked.get(&parent.parse().ok()?));
            match parent {
                Some(user) => has_no_privilege(&name, pid, *user),
                None => assert!(name.starts_with("containerd") || Some(pid) == agent, "{pid} {name}"),
            }
        }
    }
}

fn has_no_privilege(name: &str, pid: u32, user: u32) {
    let of = |field: &str| process::status(pid, field).unwrap();
    for field in ["Uid", "Gid"] {
        assert_eq!(of(field), [user; 4].map(|user| user.to_string()).join("\t"), "{name}: {field}");
    }
    for field in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(of(field).trim_start_matches('0'), "", "{name}: {field}");
    }
    assert_eq!((of("NoNewPrivs").as_str(), of("Seccomp").as_str()), ("1", "2"), "{name}");
    let mounts = String::from_utf8(process::file(pid, "mountinfo").unwrap()).unwrap();
    let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[4] == "/").unwrap();
    assert!(root[5].split(',').any(|option| option == "ro"), "{name}: {}", root[5]);
}

fn machine_of<'a>(plane: &'a TestControlPlane<'_>, name: &str) -> &'a TestMachine {
    plane.machines.iter().find(|machine| machine.name() == name).unwrap()
}
