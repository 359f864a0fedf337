//! A runtime as the subject of the cases, and helpers.

use std::{collections::BTreeMap, fs, time::Duration};

use futures::future::LocalBoxFuture;
use keelway_cri::{ContainerSpec, ContainerStatus, CriError, CriRuntime, SandboxSpec, testing::PROGRAM};

/// An image with the test program.
pub const IMAGE: &str = "registry.k8s.io/keelway-test:v1.0.0";
/// A second name of the same image. Sandboxes run it.
pub const TWIN: &str = "registry.k8s.io/keelway-pause:v1.0.0";

/// A separate image, which one case removes.
pub const SPARE: &str = "registry.k8s.io/keelway-spare:v1.0.0";

/// A time limit longer than any wait of these cases.
pub const DEADLINE: Duration = Duration::from_secs(30);

pub type Case<S> = (&'static str, for<'a> fn(&'a S) -> LocalBoxFuture<'a, ()>);

pub struct Subject {
    pub runtime: CriRuntime,
    /// The directory for logs, or empty if there are none.
    pub logs: String,
    pub cgroup_parent: String,
}

impl Subject {
    /// Returns a sandbox for this case.
    pub fn sandbox(&self, case: &str) -> SandboxSpec {
        let log_directory = self.log_directory(case);
        if !log_directory.is_empty() {
            fs::create_dir_all(&log_directory).unwrap();
        }
        SandboxSpec {
            name: case.into(),
            namespace: "contract".into(),
            uid: format!("uid-of-{case}"),
            log_directory,
            cgroup_parent: self.cgroup_parent.clone(),
            user: 65532,
            group: 65532,
            labels: labels(&[("case", case)]),
            annotations: labels(&[("keelway.dev/note", "kept as it is")]),
            ..SandboxSpec::default()
        }
    }

    pub fn log_directory(&self, case: &str) -> String {
        match self.logs.as_str() {
            "" => String::new(),
            logs => format!("{logs}/{case}"),
        }
    }

    /// Runs a sandbox for this case with one started container. Returns both ids.
    pub async fn started(&self, case: &str, words: &[&str]) -> (String, String) {
        let sandbox = self.sandbox(case);
        let spec = container(case, words);
        let pod = self.runtime.run_pod_sandbox(&sandbox).await.unwrap();
        let id = self.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
        self.runtime.start_container(&id).await.unwrap();
        if matches!(words, ["serve" | "stubborn"]) {
            self.serves(&id).await;
        }
        (pod, id)
    }

    /// Waits until the container's log shows that the program has installed its signal handlers.
    pub async fn serves(&self, id: &str) {
        let log = self.runtime.container_status(id).await.unwrap().log_path;
        if !log.is_empty() {
            eventually("the program to serve", async || {
                fs::read_to_string(&log).ok().filter(|log| log.contains("serving"))
            })
            .await;
        }
    }

    /// Waits until a container has exited, and returns its status.
    pub async fn exited(&self, id: &str) -> ContainerStatus {
        eventually("the container to end", async || {
            let status = self.runtime.container_status(id).await.unwrap();
            status.exit.is_some().then_some(status)
        })
        .await
    }
}

/// Returns a container that runs the test program with these arguments.
pub fn container(name: &str, words: &[&str]) -> ContainerSpec {
    ContainerSpec {
        name: name.into(),
        image: IMAGE.into(),
        command: vec![PROGRAM.into()],
        args: words.iter().map(ToString::to_string).collect(),
        user: 65532,
        group: 65532,
        log_path: format!("{name}.log"),
        labels: labels(&[("container", name)]),
        annotations: labels(&[("keelway.dev/note", "kept as it is")]),
        ..ContainerSpec::default()
    }
}

pub fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

/// Polls until there is a value. Fails at the deadline.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let mut again = tokio::time::interval(Duration::from_millis(20));
    let found = async {
        loop {
            again.tick().await;
            if let Some(found) = ask().await {
                return found;
            }
        }
    };
    tokio::time::timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

pub fn not_found<T: std::fmt::Debug>(answer: &Result<T, CriError>) {
    assert!(matches!(answer, Err(CriError::NotFound { .. })), "{answer:?}");
}

/// containerd looks for the shim of a stopped sandbox, which may still exist or not.
pub fn refused_or_not_found<T: std::fmt::Debug>(answer: &Result<T, CriError>) {
    assert!(matches!(answer, Err(CriError::Refused { .. } | CriError::NotFound { .. })), "{answer:?}");
}

pub fn refused<T: std::fmt::Debug>(answer: &Result<T, CriError>) {
    assert!(matches!(answer, Err(CriError::Refused { .. })), "{answer:?}");
}
