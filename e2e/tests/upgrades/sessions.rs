//! `kubectl exec` and `kubectl logs`, again and again. As a client that resolves a name to all ingresses does, a session uses another ingress if one
//! refuses its connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use keelway_e2e::Kubectl;

/// What kubectl prints if nothing listens at the address.
const REFUSED: &str = "was refused - did you specify the right host or port?";

/// A loop of commands that runs until it is ended.
pub(crate) struct Sessions {
    stop: Arc<AtomicBool>,
    worker: thread::JoinHandle<SessionReport>,
}

#[derive(Debug, Default)]
pub(crate) struct SessionReport {
    ended_well: usize,
    failures: Vec<String>,
    longest: Duration,
}

impl Sessions {
    pub(crate) fn start(kubectl: &Kubectl, pod: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let contexts = kubectl.kubeconfig()["contexts"].as_array().unwrap().clone();
        let ingresses: Vec<Kubectl> =
            contexts.iter().map(|context| kubectl.by(context["name"].as_str().unwrap())).collect();
        let (pod, stopped) = (pod.to_owned(), Arc::clone(&stop));
        let worker = thread::spawn(move || {
            let mut report = SessionReport::default();
            while !stopped.load(Ordering::SeqCst) {
                report.add(
                    &ingresses,
                    &["exec", &pod, "--", "/bin/bash", "-c", "echo in $HOSTNAME"],
                    &format!("in {pod}"),
                );
                report.add(&ingresses, &["logs", &pod, "--tail=5"], "");
            }
            report
        });
        Self { stop, worker }
    }

    pub(crate) fn end(self) -> SessionReport {
        self.stop.store(true, Ordering::SeqCst);
        self.worker.join().unwrap()
    }
}

impl SessionReport {
    fn add(&mut self, ingresses: &[Kubectl], command: &[&str], wanted: &str) {
        let started = Instant::now();
        let mut attempts = ingresses.iter().map(|ingress| ingress.run(command));
        let finished = attempts.find(|finished| !finished.stderr.contains(REFUSED));
        self.longest = self.longest.max(started.elapsed());
        match finished {
            Some(finished) if finished.code() == 0 && finished.text().contains(wanted) => self.ended_well += 1,
            Some(finished) => self.failures.push(format!("{command:?}: {}{}", finished.text(), finished.stderr)),
            None => self.failures.push(format!("{command:?}: each ingress refused the connection")),
        }
    }

    pub(crate) fn assert_good(&self) {
        let Self { ended_well, failures, longest } = self;
        println!(
            "exec and logs: {ended_well} ended well, {} failed; the longest took {} ms",
            failures.len(),
            longest.as_millis()
        );
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        assert!(*ended_well > 0, "no session ended");
    }
}
