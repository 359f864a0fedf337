//! What users see of running components: logs, commands in them, events.

use std::cell::RefCell;

use keelway_e2e::{Keelway, TestControlPlane, command::RunningCommand, deadline};
use serde_json::Value as Json;

/// `logs` prints the whole log of a component, or the end of it.
pub(crate) fn logs(plane: &TestControlPlane<'_>) {
    let log = |arguments: &[&str]| {
        let arguments = [&["logs", "c1/kube-apiserver-0"], arguments].concat();
        plane.keelway.run(&arguments, &plane.text).succeeded().text().to_owned()
    };
    let whole = log(&[]);
    assert!(whole.contains("--etcd-servers=") || whole.contains("Serving securely on"), "{whole}");
    let last = last_lines(3, || log(&["--tail", "3", "--timestamps"]));
    for line in last.lines() {
        let (time, text) = line.split_once(' ').unwrap();
        assert!(time.parse::<keelway_api::jiff::Timestamp>().is_ok() && !text.is_empty(), "{line}");
    }
    assert!(log(&["--since", "1h"]).lines().count() >= whole.lines().count());
    assert_eq!(plane.keelway.run(&["logs", "c1/etcd-7"], &plane.text).code(), 2);
}

/// Reads until there are exactly this many lines. If a line is written during a read, the result has one more, and the log is read again.
pub(crate) fn last_lines(number: usize, read: impl Fn() -> String) -> String {
    let lines = RefCell::new(String::new());
    deadline::until(&format!("{number} lines are read"), deadline::READ, || {
        lines.replace(read());
        lines.borrow().lines().count() == number
    });
    lines.into_inner()
}

/// A command in a component returns its own exit code and output.
pub(crate) fn commands(plane: &TestControlPlane<'_>) {
    let finished = plane.keelway.run(&["exec", "c1/etcd-0", "--", "etcdctl", "version"], &plane.text).succeeded();
    assert!(finished.text().starts_with("etcdctl version: "), "{}", finished.text());
    let finished = plane.keelway.run(&["exec", "c1/etcd-0", "--", "etcdutl", "no-such-command"], &plane.text);
    assert!(
        finished.code() == 1 && finished.stderr.contains("no-such-command"),
        "{}: {}",
        finished.code(),
        finished.stderr
    );
    let finished = plane.keelway.run(&["exec", "c1/etcd-0", "--", "no-such-program"], &plane.text);
    assert!(
        finished.code() == 1 && finished.stderr.contains("no-such-program"),
        "{}: {}",
        finished.code(),
        finished.stderr
    );
    // With `-i`, the command gets the whole stdin.
    let reads = ["exec", "c1/etcd-0", "-i", "-f", "c1.yaml", "--", "etcdctl", "completion", "bash"];
    assert!(plane.keelway.run(&reads, b"nobody reads this").succeeded().text().contains("etcdctl"));
    let finished = plane.keelway.run(&["exec", "c1/etcd-0", "-i", "--", "etcdctl"], &plane.text);
    assert_eq!(finished.code(), 2, "{}", finished.stderr);
}

/// The events of a killed container include its exit and its restart. `logs --previous` prints its last line.
pub(crate) fn what_died(plane: &TestControlPlane<'_>, component: &str) {
    let title = format!("c1/{component}");
    let before = plane.keelway.run(&["logs", &title, "--previous", "--tail", "1"], &plane.text).succeeded();
    assert_eq!(before.text().lines().count(), 1, "{}", before.text());
    let events = |format: &str| plane.keelway.run(&["events", "c1", "-o", format], &plane.text).succeeded();
    let list = events("json").json();
    let all: Vec<&Json> = list["items"].as_array().unwrap().iter().collect();
    let of = |reason: &str| -> Vec<&&Json> {
        all.iter().filter(|event| event["involvedObject"]["name"] == component && event["reason"] == reason).collect()
    };
    let ended = of("Exited");
    assert!(ended.iter().any(|event| event["type"] == "Warning" && event["message"].as_str().unwrap().contains("137")));
    assert!(of("Started").iter().any(|event| event["count"].as_u64().unwrap() > 1), "{list}");
    assert!(!of("SandboxEnded").is_empty(), "{list}");
    let times: Vec<&str> = all.iter().map(|event| event["lastTimestamp"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let table = events("table");
    assert!(table.text().starts_with("LAST SEEN "), "{}", table.text());
    assert!(table.text().contains(&format!("component/{title}")), "{}", table.text());
}

/// Follows the log of a component that will be deleted.
pub(crate) fn follow(plane: &TestControlPlane<'_>) -> RunningCommand {
    plane.keelway.start(&["logs", "c1/etcd-0", "--follow", "--tail", "0"], &plane.text)
}

/// The log stream ends with its component, after the last line.
pub(crate) fn ended(keelway: &Keelway, following: RunningCommand) {
    let log = keelway.end(following).succeeded();
    assert!(log.text().contains("signal"), "{}", log.text());
}
