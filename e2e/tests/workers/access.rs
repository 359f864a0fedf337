//! What users do with pods through the API.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::Stdio,
};

use keelway_e2e::{
    deadline,
    worker_fleet::{AGNHOST, KUBECTL, TestCluster},
};

pub(crate) fn logs(cluster: &TestCluster) {
    for worker in cluster.workers {
        cluster.wait_for_log(&format!("on-{worker}"), "Started HTTP server on port 8080");
    }
}

/// The pod returns the text that is sent to it.
pub(crate) fn attach(cluster: &TestCluster) {
    cluster.kubectl.apply(&format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: echo}}
spec:
  nodeName: w2
  restartPolicy: Never
  containers: [{{name: echo, image: '{AGNHOST}', command: [/bin/cat], stdin: true, stdinOnce: true}}]
"
    ));
    cluster.kubectl.wait("condition=Ready", &["pod/echo"]);
    let finished = cluster.kubectl.run_with(&["attach", "-i", "echo"], b"the quick brown fox\n");
    assert!(finished.text().contains("the quick brown fox"), "{}{}", finished.text(), finished.stderr);
}

pub(crate) fn port_forward(cluster: &TestCluster) {
    let mut command = cluster.kubectl.command(&["port-forward", "pod/on-w2", ":8080"]);
    let mut forwards = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    // kubectl continues to write to this pipe.
    let mut lines = BufReader::new(forwards.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    // The line is `Forwarding from 127.0.0.1:34567 -> 8080`.
    let address = line.split_whitespace().nth(2).unwrap_or_else(|| panic!("kubectl printed {line:?}")).to_owned();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(deadline::REQUEST)).unwrap();
    stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    forwards.kill().unwrap();
    forwards.wait().unwrap();
    assert!(answer.ends_with("on-w2"), "{answer}");
}

/// The metrics API is an aggregated API, which pods serve.
pub(crate) fn top(cluster: &TestCluster) {
    cluster.kubectl.wait("condition=Available", &["apiservice/v1beta1.metrics.k8s.io"]);
    let took = deadline::until("all workers are measured", deadline::KUBERNETES, || {
        let finished = cluster.kubectl.run(&["top", "nodes", "--no-headers"]);
        finished.code() == 0
            && finished.text().lines().filter(|line| !line.contains("unknown")).count() == cluster.workers.len()
    });
    println!("{:>7} ms  until all workers are measured", took.as_millis());
}

/// A pod watches with its ServiceAccount, through the Service `kubernetes`.
pub(crate) fn watch_from_a_pod(cluster: &TestCluster) {
    cluster.add_reader("watcher");
    cluster.kubectl.apply(&format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: watcher}}
spec:
  nodeName: w2
  serviceAccountName: watcher
  terminationGracePeriodSeconds: 1
  containers: [{{name: watcher, image: '{KUBECTL}', args: [get, configmaps, --watch, -o, name]}}]
"
    ));
    cluster.kubectl.wait("condition=Ready", &["pod/watcher"]);
    // The watch receives existing and new objects.
    cluster.wait_for_log("watcher", "configmap/kube-root-ca.crt");
    let _ = cluster.kubectl.run(&["create", "configmap", "news"]).succeeded();
    cluster.wait_for_log("watcher", "configmap/news");
    // A NAT that loses its connections would end this kubectl, so the pod is deleted first.
    let _ = cluster.kubectl.run(&["delete", "pod/watcher", "pod/echo"]).succeeded();
}
