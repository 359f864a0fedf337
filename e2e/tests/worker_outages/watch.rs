//! A pod with a ServiceAccount that watches as client libraries do: it continues from the last event that it received, and never lists.

use std::collections::BTreeSet;

use keelway_e2e::{deadline, load::Load, worker_fleet::TestCluster};

/// Prints a line for each number that the load wrote, and a line for each time that the watch was interrupted.
const SCRIPT: &str = r#"
events='/apis/coordination.k8s.io/v1/namespaces/default/leases?watch=1&fieldSelector=metadata.name%3Dload'
version='"resourceVersion":"([0-9]+)"' number='"holderIdentity":"([0-9]+)"' since=
while :; do
  while IFS= read -r event; do
    [[ $event =~ $version ]] && since=${BASH_REMATCH[1]}
    [[ $event =~ $number ]] && echo "${BASH_REMATCH[1]}"
  done < <(/kubectl get --raw "$events&resourceVersion=$since")
  echo broke off
  sleep 0.1
done
"#;
const POD: &str = "watcher";

/// Starts the pod, and waits until it has received an event.
pub(crate) fn start(cluster: &TestCluster) {
    cluster.start_reader(POD, "w2", SCRIPT);
    deadline::until("it has seen something", deadline::KUBERNETES, || !numbers(&log(cluster)).is_empty());
}

/// Asserts that the pod received every event from its first to the last one written, and that its watch was interrupted meanwhile.
pub(crate) fn missed_nothing(cluster: &TestCluster, load: &Load) {
    let last = load.written();
    deadline::until("the watch sees what was written last", deadline::KUBERNETES, || {
        numbers(&log(cluster)).last() >= Some(&last)
    });
    let log = log(cluster);
    let seen = numbers(&log);
    let first = *seen.first().unwrap();
    let missed: Vec<u64> = (first..=last).filter(|number| !seen.contains(number)).collect();
    assert!(missed.is_empty(), "of {first} to {last} it missed {missed:?}");
    let broke = log.lines().filter(|line| *line == "broke off").count();
    println!("{broke} times a pod's watch broke off; it saw all of {} events", seen.len());
    assert!(broke > 0, "the watch went through no machine that was lost");
}

fn log(cluster: &TestCluster) -> String {
    String::from_utf8(cluster.kubectl.run(&["logs", POD, "--request-timeout=5s"]).stdout).unwrap()
}

fn numbers(log: &str) -> BTreeSet<u64> {
    log.lines().filter_map(|line| line.parse().ok()).collect()
}
