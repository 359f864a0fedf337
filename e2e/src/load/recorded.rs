//! A load whose history is checked: every acknowledged write is there, and reads and lists are linearizable.
//!
//! Its workers write and read a few ConfigMaps, and create, list and delete others. Each attempt is an operation of the history: one that fails
//! may take effect later, or never. A repeat writes another number, so that each number has one origin.

mod history;
mod request;

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{KeepAliveConnection, LoadClient, Report, at_interval, servers};
use crate::{Kubectl, deadline, machine::millis};
use history::RecordedHistory;

/// The pause between two requests of one worker. All workers together send 50 requests per second if none takes longer than this.
const PAUSE: Duration = Duration::from_millis(200);
const WORKERS: u64 = 10;
/// The smallest rate of a load that shows anything, in requests per second outside of its longest outage. A free machine reaches 40. Beside other tests, and
/// with shorter outages, it is less.
const SMALLEST_RATE: f64 = 5.0;
const REGISTERS: u64 = 3;
/// The number of objects that each worker keeps in the list. With more, it deletes its oldest one.
const KEPT: usize = 5;

/// A load with a recorded history, until it is ended.
pub struct RecordedLoad {
    shared: Arc<RecordedLoadState>,
    worker: Option<thread::JoinHandle<()>>,
}

/// The results of a load whose history is linearizable.
#[derive(Debug)]
pub struct RecordedReport {
    /// The requests, and those that failed although they were repeated.
    pub report: Report,
    /// The number of writes that were acknowledged. All of them are there.
    pub acknowledged: usize,
}

struct RecordedLoadState {
    client: LoadClient,
    stop: CancellationToken,
    /// The first part of the names of all objects.
    name: String,
    started: Instant,
    numbers: AtomicU64,
    recorded: Mutex<(Report, RecordedHistory)>,
}

impl RecordedLoad {
    /// Starts a load as the user of a kubeconfig, on all servers that the kubeconfig names. No other load of the cluster has this name.
    pub fn start(kubectl: &Kubectl, name: &str) -> Self {
        let config = kubectl.kubeconfig();
        let shared = Arc::new(RecordedLoadState {
            client: LoadClient::of_user(&servers(&config), &config),
            stop: CancellationToken::new(),
            name: name.to_owned(),
            started: Instant::now(),
            numbers: AtomicU64::new(0),
            recorded: Mutex::default(),
        });
        let worker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(shared.run());
            }
        });
        Self { shared, worker: Some(worker) }
    }

    /// Waits until this many more requests have succeeded.
    pub fn wait_for_requests(&self, requests: usize) {
        let answered = || self.shared.recorded().0.requests;
        let enough = answered() + requests;
        deadline::until("clients go on", deadline::KUBERNETES, || answered() >= enough);
    }

    /// Ends the load, and fails the test unless its history is linearizable. Prints and returns the report.
    pub fn end(mut self, what: &str) -> RecordedReport {
        self.shared.stop.cancel();
        self.worker.take().unwrap().join().unwrap();
        let (report, history) = std::mem::take(&mut *self.shared.recorded());
        let (took, longest_outage) = (self.shared.started.elapsed(), history.longest_outage());
        let report = Report { longest_outage, took, ..report };
        println!("{report}: {what}");
        let started = Instant::now();
        history.assert_linearizable();
        let acknowledged = history.count_writes();
        println!("{}  checked the history: {acknowledged} acknowledged writes are there", millis(started.elapsed()));
        RecordedReport { report, acknowledged }
    }
}

impl Drop for RecordedLoad {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl RecordedReport {
    /// Fails the test unless there were writes, all requests succeeded within the time for which clients retry, and the clients sent enough of them.
    pub fn assert_good(&self) {
        self.report.assert_good();
        let served =
            Report { took: self.report.took.saturating_sub(self.report.longest_outage), ..self.report.clone() };
        assert!(served.rate() >= SMALLEST_RATE, "{served}");
        assert!(self.acknowledged > 0, "nothing was written");
    }
}

impl RecordedLoadState {
    fn recorded(&self) -> MutexGuard<'_, (Report, RecordedHistory)> {
        self.recorded.lock().unwrap()
    }

    /// Returns a number that nothing has yet.
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    async fn run(&self) {
        let mut kept = KeepAliveConnection::new(0);
        // The objects must exist before the first read.
        for register in 0..REGISTERS {
            self.write(&mut kept, register).await;
        }
        join_all((0..WORKERS).map(|worker| self.work(worker))).await;
        for register in 0..REGISTERS {
            self.read(&mut kept, register).await;
        }
        self.list(&mut kept).await;
    }

    /// Sends requests of all kinds in turn, until the load ends.
    async fn work(&self, worker: u64) {
        let mut kept = KeepAliveConnection::new(usize::try_from(worker).unwrap());
        let (mut turn, mut own) = (worker, Vec::new());
        at_interval(PAUSE, &self.stop, async || {
            turn += 1;
            let register = turn / 4 % REGISTERS;
            match turn % 4 {
                0 => self.write(&mut kept, register).await,
                1 => self.read(&mut kept, register).await,
                2 if own.len() > KEPT => self.delete(&mut kept, own.remove(0)).await,
                2 => own.extend(self.create(&mut kept).await),
                _ => self.list(&mut kept).await,
            }
        })
        .await;
    }
}
