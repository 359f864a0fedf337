//! A pod that requests the API again and again while the kubernetes authority is rotated. As a program that follows its files, it reads the token and the
//! authorities of its ServiceAccount for each request.

use keelway_e2e::{deadline, worker_fleet::TestCluster};

/// Prints a line for each request, with the error of one that failed.
const SCRIPT: &str = r#"
while :; do
  if failure=$(/kubectl get --raw '/api/v1/namespaces/default/pods?limit=1' 2>&1 > /dev/null); then
    echo served
  else
    echo "failed: ${failure//$'\n'/ }"
  fi
  sleep 1
done
"#;
const POD: &str = "uses-api";
/// Counts the authorities that the pod trusts.
const TRUSTED: &str = "grep -c BEGIN /var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
/// What a line of a request contains that failed because of an authority: the pod refused the API server, or the API server refused the pod.
const UNTRUSTED: [&str; 4] = ["x509", "certificate", "tls:", "Unauthorized"];

/// Starts the pod, and waits until it was served.
pub(crate) fn start(cluster: &TestCluster) {
    cluster.start_reader(POD, "w2", SCRIPT);
    cluster.wait_for_log(POD, "served");
}

/// Waits until the pod trusts both authorities, as docs/rotation.md says before the command that removes the previous one.
pub(crate) fn trusts_both(cluster: &TestCluster) {
    deadline::until("the kubelet has written both authorities into the pod", deadline::KUBERNETES, || {
        cluster.shell(POD, TRUSTED).text().trim() == "2"
    });
}

/// The pod is served after the rotation, it never restarted, and no request failed because of an authority. Others may fail: an API server that is
/// replaced can end a connection, and `kubectl` does not send its request again.
pub(crate) fn was_always_trusted(cluster: &TestCluster) {
    deadline::until("the pod is served", deadline::KUBERNETES, || {
        cluster.kubectl.run(&["logs", POD, "--since=5s"]).text().lines().any(|line| line == "served")
    });
    assert_eq!(cluster.value(&format!("pod/{POD}"), "{.status.containerStatuses[0].restartCount}"), "0");
    let log = cluster.kubectl.run(&["logs", POD]).succeeded().text().to_owned();
    let failed: Vec<&str> = log.lines().filter(|line| line.starts_with("failed")).collect();
    println!("a pod sent {} requests to the API, of which {} failed", log.lines().count(), failed.len());
    let untrusted = failed.iter().filter(|line| UNTRUSTED.iter().any(|sign| line.contains(sign)));
    assert_eq!(untrusted.count(), 0, "{}", failed.join("\n"));
}
