//! Refused input: a command whose output is documents writes its input back unchanged, and one whose output is a view writes nothing to
//! stdout. Every command is in one of the lists.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Output, Stdio},
};

/// Not YAML, not UTF-8, and without a newline at the end.
const BROKEN: &[u8] = b"kind: [Cluster\n\xff  spaces   are kept";

/// Commands whose output is documents, with valid arguments.
const DOCUMENTS: &[&[&str]] = &[
    &[
        "hypervisor",
        "inject",
        "--name",
        "hv-9",
        "--role",
        "private",
        "--private-address",
        "10.0.0.9",
        "--socket",
        "/run/x.sock",
    ],
    &["hypervisor", "enroll", "--name", "hv-9", "--role", "private", "--address", "10.0.0.9:7443"],
    &["hypervisor", "delete", "hv-1"],
    &["hypervisor", "revoke", "hv-1"],
    &["hypervisor", "cordon", "hv-1"],
    &["hypervisor", "uncordon", "hv-1"],
    &["hypervisor", "drain", "hv-1"],
    &["hypervisor", "adopt", "--from", "0123456789abcdef"],
    &["hypervisor", "local", "enroll"],
    &["hypervisor", "local", "destroy"],
    &["cluster", "inject", "--name", "c9"],
    &["cluster", "restore", "--name", "c1", "--snapshot", "20261127T115200Z-48213"],
    &["cluster", "scale", "--name", "c1", "--etcd-replicas", "3"],
    &["cluster", "upgrade", "--name", "c1", "--to", "1.37.0"],
    &["cluster", "sleep", "--name", "c1"],
    &["cluster", "wake", "--name", "c1"],
    &["cluster", "recover-quorum", "--name", "c1", "--lost", "etcd-1"],
    &["cluster", "rotate", "--name", "c1", "--service-account-key", "--encryption-key"],
    &["cluster", "delete", "--name", "c1"],
    &["fleet", "inject", "--name", "f9"],
    &["reconcile"],
    &["recover"],
];
const VIEWS: &[&[&str]] = &[
    &["hypervisor", "get"],
    &["hypervisor", "describe", "hv-1"],
    &["hypervisor", "proxy", "hv-1", "--listen", "unix:///run/x.sock"],
    &["cluster", "get"],
    &["cluster", "kubeconfig", "--name", "c1"],
    &["component", "get"],
    &["plan"],
    &["observe"],
    &["status"],
    &["validate"],
    &["apply"],
    &["pivot", "--to", "kubernetes"],
    &["diff", "-", "/dev/null"],
    &["logs", "c1/etcd-0"],
    &["events"],
    &["exec", "c1/etcd-0", "--", "true"],
    &["join-token", "create", "--cluster", "c1"],
    &["join-token", "list", "--cluster", "c1"],
    &["join-token", "revoke", "abcdef", "--cluster", "c1"],
    &["node", "evict", "w1", "--cluster", "c1"],
    &["backup", "--recipient", "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"],
    &["snapshot", "create", "c1"],
    &["snapshot", "list", "c1"],
    &["snapshot", "delete", "c1", "20261127T115200Z-48213"],
    &["snapshot", "key", "c1"],
];
/// Commands that read no documents.
const NEITHER: &[&[&str]] = &[
    &["hypervisor", "local", "create"],
    &["hypervisor", "local", "stop"],
    &["hypervisor", "local", "start"],
    &["hypervisor", "local", "reboot"],
    &["fleet", "token", "create"],
    &["fleet", "agent-manifests"],
    &["fleet", "cluster", "remove"],
    &["fleet", "cordon"],
    &["fleet", "drain"],
    &["fleet", "uncordon"],
    &["fleet", "status"],
    &["fleet", "diff"],
    &["fleet", "explain"],
    &["fleet", "observe"],
    &["fleet", "convert"],
    &["fleet", "manifests"],
    &["fleet", "kubeconfig"],
    &["kubectl-install"],
    &["node", "join"],
    &["node", "run"],
    &["node", "status"],
    &["node", "upgrade"],
    &["node", "leave"],
    &["node", "forget"],
    &["node", "local", "create"],
    &["node", "local", "list"],
    &["node", "local", "exec"],
    &["node", "local", "stop"],
    &["node", "local", "start"],
    &["node", "local", "reboot"],
    &["node", "local", "unplug"],
    &["node", "local", "plug"],
    &["node", "local", "forget"],
    &["node", "local", "renumber"],
    &["node", "local", "destroy"],
    &["get"],
    &["edit"],
    &["delete"],
    &["watch"],
    &["explain"],
    &["completion"],
    &["version"],
];

fn keelway(arguments: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keelway"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    let mut child = command.spawn().unwrap();
    let mut to = child.stdin.take().unwrap();
    // A command that reads nothing may have exited already.
    let _ = to.write_all(stdin);
    drop(to);
    child.wait_with_output().unwrap()
}

#[test]
fn a_failed_command_echoes_its_input_unchanged() {
    for arguments in DOCUMENTS {
        let refused = keelway(arguments, BROKEN);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(refused.stdout == BROKEN, "{arguments:?}: {}", String::from_utf8_lossy(&refused.stdout));
        assert!(said.contains("line"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_failed_view_writes_nothing_to_stdout() {
    for arguments in VIEWS {
        let refused = keelway(arguments, BROKEN);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(refused.stdout.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&refused.stdout));
        assert!(said.contains("line"), "{arguments:?}: {said}");
    }
}

#[test]
fn every_command_is_in_one_list() {
    let listed = String::from_utf8(keelway(&["reference", "commands"], b"").stdout).unwrap();
    let all: BTreeSet<&str> = listed.lines().collect();
    for command in &all {
        let words: Vec<&str> = command.split(' ').collect();
        let times = DOCUMENTS.iter().chain(VIEWS).chain(NEITHER).filter(|known| known.starts_with(&words)).count();
        assert_eq!(times, 1, "{command} belongs to one of the three lists");
    }
    assert_eq!(all.len(), DOCUMENTS.len() + VIEWS.len() + NEITHER.len());
}
