//! The state of a host, for comparison before and after a test.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Returns the facts about the host as lines that begin with their kind.
pub(crate) fn facts(fleet: &str) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    let mut add = |kind: &str, lines: Vec<String>| facts.extend(lines.iter().map(|line| format!("{kind}: {line}")));
    add("mount", lines(&fs::read_to_string("/proc/mounts").unwrap()));
    add("link", output(&["ip", "-oneline", "link"]));
    // The kernel adds a link-local address to each link by itself, some time after the link is up (RFC 4862).
    let is_made = |line: &String| !line.contains(" fe80::");
    add("address", output(&["ip", "-oneline", "address"]).into_iter().filter(is_made).collect());
    add("route", output(&["ip", "route", "show", "table", "all"]).into_iter().filter(is_made).collect());
    add("rule", output(&["ip", "rule"]));
    add("nftables", output(&["nft", "list", "ruleset"]));
    add("process", processes());
    add("cgroup", cgroups(fleet));
    for directory in ["/run", "/var/lib", "/var/log"] {
        add("file", tree(Path::new(directory), true));
    }
    for directory in ["/", "/etc", "/opt", "/usr/local/bin", "/var", "/etc/cni", "/opt/cni"] {
        add("entry", tree(Path::new(directory), false));
    }
    add("sysctl", settings(Path::new("/proc/sys/net")));
    facts
}

/// Returns the facts that were added or removed.
pub(crate) fn difference(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let new = after.difference(before).map(|fact| format!("+ {fact}"));
    let gone = before.difference(after).map(|fact| format!("- {fact}"));
    new.chain(gone).collect()
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn output(words: &[&str]) -> Vec<String> {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}");
    lines(&String::from_utf8_lossy(&output.stdout))
}

/// Returns the processes by id and name, without zombies.
fn processes() -> Vec<String> {
    let pids = tree(Path::new("/proc"), false).into_iter().filter_map(|path| {
        let pid: u32 = path.rsplit('/').next()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        (!rest.starts_with('Z')).then(|| format!("{pid} {name}"))
    });
    pids.collect()
}

/// Returns the cgroups with the fleet's name: a test shares the cgroups of its host with others.
fn cgroups(fleet: &str) -> Vec<String> {
    tree(Path::new("/sys/fs/cgroup"), true)
        .into_iter()
        .filter(|path| path.contains(fleet) && Path::new(path).is_dir())
        .collect()
}

fn settings(directory: &Path) -> Vec<String> {
    let value = |path: String| {
        let text = fs::read_to_string(&path).ok()?;
        Some(format!("{path} = {}", text.trim()))
    };
    tree(directory, true).into_iter().filter_map(value).collect()
}

fn tree(directory: &Path, deep: bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if deep && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
            found.push(entry.path().display().to_string());
        }
    }
    found
}
