//! Key material is only in Secret documents and in the files of components that use it, for every kind of endpoint.

use std::{collections::BTreeMap, fs, path::Path};

use keelway_e2e::{TestControlPlane, TestMachine, leak_patterns::LeakPatterns, machine_facts::tree, process};

/// The contents that were searched, by their place.
type Places = BTreeMap<String, Vec<u8>>;

/// The directories in which a runtime stores its database and other state, and those of logs and events.
const KEPT: [&str; 4] = ["/run/containerd", "/var/lib/containerd", "/var/log", "/var/lib/keelway/events"];
/// Images and the file systems of containers are not searched. No component that writes into them has keys.
const OF_IMAGES: [&str; 3] = ["containerd.content.", "containerd.snapshotter.", "/rootfs"];
/// The commands with which users look at an installation.
const LOOKS: [&[&str]; 6] = [
    &["plan", "-v"],
    &["status", "-ojson"],
    &["status", "-oyaml"],
    &["status", "-owide"],
    &["events", "-oyaml"],
    &["observe"],
];

/// Asserts that no key is in another place.
pub(crate) fn are_nowhere_else(plane: &TestControlPlane<'_>) {
    let keys = LeakPatterns::of(&plane.documents);
    assert_eq!(keys.found_in(&plane.text), keys.count(), "the search finds what documents hold");
    let used = plane.machines.iter().flat_map(|machine| tree(&machine.path("/var/lib/keelway")));
    let used: usize = used.map(|path| keys.found_in(&fs::read(path).unwrap_or_default())).sum();
    assert!(used > 0, "the same search finds keys where they are used");

    let mut places: Places = outputs(plane);
    places.extend(of_processes());
    places.extend(plane.machines.iter().flat_map(of_machine));
    println!("{:>7} places hold none of {} keys", places.len(), keys.count());
    for (place, bytes) in places {
        assert_eq!(keys.found_in(&bytes), 0, "a key is in {place}");
    }
}

/// Returns the output of `keelway`, of these commands and of earlier ones.
fn outputs(plane: &TestControlPlane<'_>) -> Places {
    let run = |arguments: &[&str]| {
        let finished = plane.keelway.run(arguments, &plane.text).succeeded();
        (arguments.join(" "), [finished.stdout, finished.stderr.into_bytes()].concat())
    };
    let before = ("what keelway says".to_owned(), plane.keelway.stderr().into_bytes());
    let events = plane.machines.iter().map(|machine| run(&["events", machine.name(), "-oyaml"]));
    let logs = plane.components().into_keys().map(|component| run(&["logs", &format!("c1/{component}")]));
    LOOKS.into_iter().map(run).chain(events).chain(logs).chain([before]).collect()
}

/// Returns the arguments and the environment of all processes. Processes that end meanwhile count as empty.
fn of_processes() -> Places {
    let files = process::all().into_iter().flat_map(|pid| ["cmdline", "environ"].map(|file| (pid, file)));
    files.map(|(pid, file)| (format!("/proc/{pid}/{file}"), process::file(pid, file).unwrap_or_default())).collect()
}

fn of_machine(machine: &TestMachine) -> Places {
    let is_of_images = |path: &Path| OF_IMAGES.iter().any(|part| path.display().to_string().contains(part));
    let below = KEPT.iter().flat_map(|kept| {
        let path = machine.path(kept);
        if path.is_file() { vec![path] } else { tree(&path) }
    });
    let files = below.filter(|path| path.is_file() && !is_of_images(path));
    // The runtime removes the state of a command that has just ended shortly afterwards, so a file can be missing.
    let mut places: Places =
        files.map(|path| (path.display().to_string(), fs::read(path).unwrap_or_default())).collect();
    let log = if machine.has_started_agent() { "/var/log/keelway-agent/" } else { "/keelway-hypervisor-agent.log" };
    let agent = machine.has_agent().then_some(["/events", log]);
    let known = ["/var/log/keelway/", "/meta.db", "/config.json", "io.containerd.grpc.v1.cri/", "/containerd.log"];
    for known in known.into_iter().chain(agent.into_iter().flatten()) {
        assert!(places.keys().any(|place| place.contains(known)), "nothing was found in {known} of {}", machine.name());
    }
    let inspected = machine.inspect();
    assert!(inspected.contains("\"runtimeSpec\""), "{inspected}");
    places.insert(format!("crictl inspect on {}", machine.name()), inspected.into_bytes());
    places
}
