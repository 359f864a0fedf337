//! `kubectl exec` and `kubectl logs`, again and again. As a client that resolves a name to all ingresses does, a session uses another ingress if one
//! refuses its connection.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use keelway_e2e::{Kubectl, outage};

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
    /// The end of the newest session that ended well.
    newest: Option<Instant>,
    /// The longest time between the ends of two sessions that ended well.
    longest_outage: Duration,
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

    /// Ends the loop after its current command, and prints and returns its report.
    pub(crate) fn end(self) -> SessionReport {
        self.stop.store(true, Ordering::SeqCst);
        let report = self.worker.join().unwrap();
        println!("{report}");
        report
    }
}

impl SessionReport {
    fn add(&mut self, ingresses: &[Kubectl], command: &[&str], wanted: &str) {
        let started = Instant::now();
        let mut attempts = ingresses.iter().map(|ingress| ingress.run(command));
        let finished = attempts.find(|finished| !finished.stderr.contains(REFUSED));
        self.longest = self.longest.max(started.elapsed());
        let failure = match finished {
            Some(finished) if finished.code() == 0 && finished.text().contains(wanted) => {
                self.ended_well += 1;
                let outage = self.newest.replace(Instant::now()).map_or(Duration::ZERO, |newest| newest.elapsed());
                self.longest_outage = self.longest_outage.max(outage);
                return;
            }
            Some(finished) => format!("{}{}", finished.text(), finished.stderr),
            None => "each ingress refused the connection".to_owned(),
        };
        // With the time, the cause can be found in the logs of components.
        self.failures.push(format!("{command:?}, ended at {:.3}: {failure}", outage::now()));
    }

    /// Fails the test unless there were sessions and all of them ended well.
    pub(crate) fn assert_good(&self) {
        assert!(self.failures.is_empty(), "{self}\n{}", self.failures.join("\n"));
        assert!(self.ended_well > 0, "{self}");
    }

    /// Prints what kubectl printed in sessions that failed.
    pub(crate) fn print_failures(&self) {
        self.failures.iter().for_each(|failure| println!("{}", failure.trim_end()));
    }

    /// Returns the sessions that ended well, those that failed, and the longest time without one that ended well, as cells of a table.
    pub(crate) fn cells(&self) -> String {
        let Self { ended_well, failures, longest_outage, .. } = self;
        format!("{ended_well} | {} | {:.1} s", failures.len(), longest_outage.as_secs_f64())
    }
}

impl fmt::Display for SessionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ended_well, failures, longest, longest_outage, .. } = self;
        let (failed, longest, outage) = (failures.len(), longest.as_millis(), longest_outage.as_millis());
        write!(f, "exec and logs: {ended_well} ended well, {failed} failed; longest {longest} ms, none for {outage} ms")
    }
}
