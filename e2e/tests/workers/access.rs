//! What people do with pods, by way of the API.

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

/// What is typed comes back.
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
    let said = cluster.kubectl.run_with(&["attach", "-i", "echo"], b"the quick brown fox\n");
    assert!(said.text().contains("the quick brown fox"), "{}{}", said.text(), said.stderr);
}

pub(crate) fn port_forward(cluster: &TestCluster) {
    let mut command = cluster.kubectl.command(&["port-forward", "pod/on-w2", ":8080"]);
    let mut forwards = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    // It goes on writing there.
    let mut said = BufReader::new(forwards.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    // Forwarding from 127.0.0.1:34567 -> 8080
    let address = line.split_whitespace().nth(2).unwrap_or_else(|| panic!("kubectl said {line:?}")).to_owned();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(deadline::REQUEST)).unwrap();
    stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    forwards.kill().unwrap();
    forwards.wait().unwrap();
    assert!(answer.ends_with("on-w2"), "{answer}");
}

/// An aggregated API: it is served by pods.
pub(crate) fn top(cluster: &TestCluster) {
    cluster.kubectl.wait("condition=Available", &["apiservice/v1beta1.metrics.k8s.io"]);
    let took = deadline::until("all workers are measured", deadline::KUBERNETES, || {
        let said = cluster.kubectl.run(&["top", "nodes", "--no-headers"]);
        said.code() == 0
            && said.text().lines().filter(|line| !line.contains("unknown")).count() == cluster.workers.len()
    });
    println!("{:>7} ms  until all workers are measured", took.as_millis());
}

/// By its ServiceAccount, through the Service `kubernetes`.
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
    // It sees what was there, and what comes.
    cluster.wait_for_log("watcher", "configmap/kube-root-ca.crt");
    let _ = cluster.kubectl.run(&["create", "configmap", "news"]).succeeded();
    cluster.wait_for_log("watcher", "configmap/news");
    // kubectl ends with its connection, which no NAT that forgets leaves alone.
    let _ = cluster.kubectl.run(&["delete", "pod/watcher", "pod/echo"]).succeeded();
}
