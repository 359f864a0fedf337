//! Facts about a machine or the host: files, mounts, network, settings, cgroups and processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    str,
};

use keelway_cri::testing::cache;
use sha2::{Digest, Sha256};

use crate::{TestMachine, command::run, deadline, host, machine, process};

/// Facts by kind and name: `file /etc/hosts` is `0:0 100644 120 HASH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFacts(BTreeMap<String, String>);

/// Collects the facts of one machine or host.
struct FactCollector {
    /// A process with the root, the mounts and the network to examine.
    pid: u32,
    /// Whether to include only the processes in that network.
    is_machine: bool,
    /// Whether images are facts, so that added images must be removed again.
    with_images: bool,
    /// The path of the cgroups to include, as a part of their full path.
    cgroups: String,
    facts: BTreeMap<String, String>,
}

impl MachineFacts {
    /// Collects the facts of a machine.
    pub fn on(machine: &TestMachine, fleet: &str) -> Self {
        let name = machine.name().strip_prefix(&format!("{fleet}-")).unwrap_or(machine.name());
        let cgroups = format!("/keelway-local/{fleet}/{name}");
        Self::behind(&machine.socket(), cgroups, false)
    }

    /// Collects the facts of a worker.
    pub fn on_worker(fleet: &str, name: &str) -> Self {
        let socket = format!("/run/keelway-local/{fleet}/worker-{name}/run/containerd/containerd.sock");
        Self::behind(Path::new(&socket), format!("/keelway-local/{fleet}/worker-{name}"), true)
    }

    /// Collects the facts of the machine behind the socket of a runtime. Its cgroups are below `cgroups`.
    fn behind(socket: &Path, cgroups: String, with_images: bool) -> Self {
        let pid = machine::peer(socket);
        let mut place = FactCollector { pid, is_machine: true, with_images, cgroups, facts: BTreeMap::new() };
        machine::within(pid, || place.look());
        place.runtime(socket);
        Self(place.facts)
    }

    /// Collects the facts of the test's host.
    pub fn on_host(fleet: &str) -> Self {
        let cgroups = format!("/keelway-local/{fleet}");
        let pid = std::process::id();
        let mut place = FactCollector { pid, is_machine: false, with_images: false, cgroups, facts: BTreeMap::new() };
        place.look();
        Self(place.facts)
    }

    /// Returns the differences, one per line: `+` is new, `-` is gone, `~` has changed.
    pub fn difference(&self, after: &Self) -> String {
        let names: BTreeSet<&String> = self.0.keys().chain(after.0.keys()).collect();
        let mut text = String::new();
        for name in names {
            match (self.0.get(name), after.0.get(name)) {
                (None, Some(new)) => writeln!(text, "+ {name}: {new}").unwrap(),
                (Some(old), None) => writeln!(text, "- {name}: {old}").unwrap(),
                (Some(old), Some(new)) if old != new => writeln!(text, "~ {name}: {old} -> {new}").unwrap(),
                _ => {}
            }
        }
        text
    }
}

impl FactCollector {
    fn look(&mut self) {
        self.mounts();
        self.commands();
        self.settings();
        self.groups();
        self.processes();
        for directory in ["/var/lib", "/var/log", "/run", "/etc", "/opt/cni"] {
            self.files(Path::new(directory));
        }
    }

    fn add(&mut self, kind: &str, name: impl std::fmt::Display, value: impl Into<String>) {
        let fact = self.facts.entry(format!("{kind} {name}")).or_default();
        if !fact.is_empty() {
            fact.push_str(" | ");
        }
        fact.push_str(&value.into());
    }

    /// The numbers of mounts and devices are left out, because the kernel assigns them anew.
    fn mounts(&mut self) {
        let text = String::from_utf8(process::file(self.pid, "mountinfo").unwrap()).unwrap();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let of = words.iter().position(|word| *word == "-").unwrap();
            if !host::is_work(Path::new(words[4])) {
                self.add("mount", words[4], format!("{} {} {}", words[3], words[5], words[of + 1]));
            }
        }
    }

    fn commands(&mut self) {
        // For one second, the kernel checks whether another host has a new IPv6 address.
        let tentative = || !output("ip -oneline address").contains(" tentative");
        deadline::until("every address is settled", deadline::READ, tentative);
        for (kind, line) in [
            ("interface", "ip -oneline link"),
            ("address", "ip -oneline address"),
            ("route", "ip route show table all"),
            ("route6", "ip -6 route show table all"),
            ("rule", "ip rule"),
            ("nftables", "nft list ruleset"),
        ] {
            output(line).lines().for_each(|line| self.add(kind, line.trim(), "here"));
        }
    }

    fn settings(&mut self) {
        for path in tree(Path::new("/proc/sys/net")) {
            let value = fs::read(&path).unwrap_or_default();
            let name = path.display().to_string();
            // These are counters, not settings.
            if !name.ends_with("_count") {
                self.add("sysctl", name, String::from_utf8_lossy(&value).trim());
            }
        }
    }

    fn groups(&mut self) {
        for path in tree(Path::new("/sys/fs/cgroup")) {
            let name = path.display().to_string();
            if name.contains(&format!("{}/", self.cgroups)) && path.is_dir() {
                self.add("cgroup", name, "here");
            }
        }
    }

    /// Zombies are left out.
    fn processes(&mut self) {
        let pids = if self.is_machine { machine::processes_beside(self.pid) } else { process::all() };
        for pid in pids {
            let name = process::status(pid, "Name");
            let dead = process::status(pid, "State").is_none_or(|state| state.starts_with('Z'));
            if let (Some(name), false) = (name, dead) {
                self.add("process", pid, name);
            }
        }
    }

    fn files(&mut self, directory: &Path) {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        for path in tree(&root.join(directory.strip_prefix("/").unwrap())) {
            let name = Path::new("/").join(path.strip_prefix(&root).unwrap());
            // These are read by other means, or do not belong to the machine.
            let leave = host::is_work(&name) || is_runtimes(&name) || path.is_dir() && is_below_runtimes(&name);
            if !leave {
                self.add("file", name.display(), describe(&path));
            }
        }
    }

    /// Collects the objects of containerd. Images are included only if those that came with a worker must be removed again.
    fn runtime(&mut self, socket: &Path) {
        let ctr = |arguments: &str| {
            let mut command = Command::new(cache().unwrap().join("bin/ctr"));
            command.arg("--address").arg(socket).args(["--namespace", "k8s.io"]).args(arguments.split(' '));
            run(&mut command, &[], deadline::READ).succeeded().text().to_owned()
        };
        for list in ["containers list", "tasks list", "leases list", "sandboxes list"] {
            ctr(list).lines().skip(1).for_each(|line| self.add("runtime", format!("{list}: {line}"), "here"));
        }
        if self.with_images {
            ctr("images list -q").lines().for_each(|line| self.add("runtime", format!("image: {line}"), "here"));
        }
        let text = ctr("snapshots list");
        let snapshots = text.lines().skip(1).filter(|line| !line.contains("Committed"));
        snapshots.for_each(|line| self.add("runtime", format!("snapshot: {line}"), "here"));
    }
}

/// containerd and runc create directories here with the first pod, and keep the empty directories.
fn is_below_runtimes(path: &Path) -> bool {
    ["/run/containerd", "/var/lib/containerd"].iter().any(|root| path.starts_with(root))
}

/// The paths at which containerd keeps images, and files that it changes with each request.
fn is_runtimes(path: &Path) -> bool {
    let kept = [
        "/var/lib/containerd/io.containerd.content.v1.content",
        "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs",
        "/var/lib/containerd/io.containerd.metadata.v1.bolt",
        "/var/lib/containerd/io.containerd.grpc.v1.introspection/uuid",
        "/run/containerd/io.containerd.mount-manager.v1.bolt/mounts.db",
    ];
    kept.iter().any(|kept| path.starts_with(kept))
}

fn output(line: &str) -> String {
    run(Command::new("sh").args(["-c", line]), &[], deadline::READ).succeeded().text().to_owned()
}

fn describe(path: &Path) -> String {
    let Ok(seen) = fs::symlink_metadata(path) else { return "gone".to_owned() };
    let owner = format!("{}:{} {:o}", seen.uid(), seen.gid(), seen.mode());
    if seen.is_symlink() {
        return format!("{owner} -> {}", fs::read_link(path).unwrap().display());
    }
    // The content of a log is left out, because it changes in normal operation.
    if !seen.is_file() || path.extension().is_some_and(|extension| extension == "log") {
        return owner;
    }
    let digest = fs::read(path).map(Sha256::digest).unwrap_or_default();
    let start = digest.first_chunk().map(|first| u64::from_be_bytes(*first)).unwrap_or_default();
    format!("{owner} {} {start:016x}", seen.len())
}

/// Returns everything below a directory. Links are not followed.
pub fn tree(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}
