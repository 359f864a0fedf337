//! Continuous requests from a client that knows all ingresses: reads, writes and a watch, on kept and on new connections. The report contains the
//! number of requests, the failures and the longest times.

mod client;
mod recorded;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{Kubectl, deadline};
use client::{KeepAliveConnection, LoadClient, RequestResult};
pub use recorded::{RecordedLoad, RecordedReport};

/// The time for which a client retries. The documentation of ingresses states it.
pub const WINDOW: Duration = Duration::from_secs(15);

/// The paths of the object that is written and read, and of the watch. It is a Lease, because policies of Keelway check each write of one.
const OBJECT: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/load";
const WATCH: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases?watch=1&fieldSelector=metadata.name%3Dload";
/// The pause between two requests of one worker. All workers together send at most 60 requests per second, so that API servers have time left for
/// what a test does to them.
const PAUSE: Duration = Duration::from_millis(100);
const NEW_CONNECTIONS: Duration = Duration::from_millis(200);
/// The number of workers that read, in addition to the writer and the watcher.
const READERS: usize = 4;
const NEWCOMERS: usize = 2;
/// If a watch gets no event for this time while there are writes, the client restarts it.
const SILENCE: Duration = Duration::from_secs(3);

/// How many characters of the reason of a retry are printed.
const SHOWN: usize = 120;

/// A load that runs until it is ended.
pub struct Load {
    shared: Arc<LoadState>,
    worker: Option<thread::JoinHandle<()>>,
}

/// The results of one lap of a load.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The number of requests that succeeded.
    pub requests: usize,
    /// Requests without a successful response within the [`WINDOW`], wrong responses (a read that lacks an acknowledged write), and missed events.
    pub failures: Vec<String>,
    /// The number of events that the watch received. Each write has one.
    pub events: usize,
    /// How often the watch began anew, because the server no longer had its version. It gets no event of what was written meanwhile.
    pub relists: usize,
    /// The number of retries, by what the attempt before them got.
    pub retries: BTreeMap<String, usize>,
    /// The longest time from the first attempt of a request to its response.
    pub longest: Duration,
    /// The longest time between two events of the watch.
    pub longest_silence: Duration,
    /// The longest time between two successful responses, to whichever request.
    pub longest_outage: Duration,
    /// The duration of the lap.
    pub took: Duration,
}

struct LoadState {
    client: LoadClient,
    stop: CancellationToken,
    /// The newest number whose write was acknowledged.
    written: AtomicU64,
    /// The time of the newest successful response.
    answered: Mutex<Instant>,
    /// The report of the current lap, with its start.
    report: Mutex<(Instant, Report)>,
}

impl Load {
    /// Starts a load as the user of a kubeconfig, on all servers that the kubeconfig names.
    pub fn start(kubectl: &Kubectl) -> Self {
        Self::on(&servers(&kubectl.kubeconfig()), kubectl)
    }

    /// Starts a load as the user of a kubeconfig, on servers that the network of the calling thread can reach.
    pub fn on(servers: &[SocketAddr], kubectl: &Kubectl) -> Self {
        let shared = Arc::new(LoadState {
            client: LoadClient::of_user(servers, &kubectl.kubeconfig()),
            stop: CancellationToken::new(),
            written: AtomicU64::new(0),
            answered: Mutex::new(Instant::now()),
            report: Mutex::new((Instant::now(), Report::default())),
        });
        let worker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(run(shared));
            }
        });
        Self { shared, worker: Some(worker) }
    }

    /// Waits until this many more requests have succeeded.
    pub fn wait_for_requests(&self, requests: usize) {
        let answered = || self.shared.report.lock().unwrap().1.requests;
        let enough = answered() + requests;
        deadline::until("clients go on", deadline::KUBERNETES, || answered() >= enough);
    }

    /// Returns the newest number whose write was acknowledged.
    pub fn written(&self) -> u64 {
        self.shared.written.load(Ordering::SeqCst)
    }

    /// Ends a lap, prints and returns its report, and starts the next lap.
    pub fn lap(&self, what: &str) -> Report {
        let report = self.shared.lap();
        println!("{report}: {what}");
        report
    }

    /// Ends the load, and prints and returns the report of its last lap.
    pub fn end(mut self) -> Report {
        self.shared.stop.cancel();
        self.worker.take().unwrap().join().unwrap();
        let report = self.shared.lap();
        println!("{report}");
        report
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Report {
    /// Fails the test unless there were requests and all of them succeeded.
    pub fn assert_good(&self) {
        assert!(self.failures.is_empty(), "{self}\n{}", self.failures.join("\n"));
        assert!(self.requests > 0, "{self}");
    }

    /// Counts a request and its retries.
    fn count(&mut self, request: &str, result: &RequestResult, took: Duration) {
        for why in &result.retried {
            let why = why.lines().next().unwrap_or_default().chars().take(SHOWN).collect();
            *self.retries.entry(why).or_default() += 1;
        }
        self.longest = self.longest.max(took);
        match &result.answer {
            Ok(_) => self.requests += 1,
            Err(why) => self.failures.push(format!("{request}: {why}")),
        }
    }

    /// Returns the number of successful requests per second.
    pub fn rate(&self) -> f64 {
        f64::from(u32::try_from(self.requests).unwrap()) / self.took.as_secs_f64()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>7} ms  load: {} requests ({:.0}/s), {} failed, {} retries; longest request {} ms",
            self.took.as_millis(),
            self.requests,
            self.rate(),
            self.failures.len(),
            self.retries.values().sum::<usize>(),
            self.longest.as_millis(),
        )?;
        write!(f, ", no response for at most {} ms", self.longest_outage.as_millis())?;
        for (why, times) in &self.retries {
            write!(f, ", {times} of the retries after: {why}")?;
        }
        if self.longest_silence.is_zero() {
            return Ok(());
        }
        let (events, silence) = (self.events, self.longest_silence.as_millis());
        write!(
            f,
            ", {events} events of the watch, which was silent for at most {silence} ms and began anew {} times",
            self.relists
        )
    }
}

/// Returns the servers of a kubeconfig.
fn servers(kubeconfig: &Value) -> Vec<SocketAddr> {
    let address = |cluster: &Value| {
        let server = cluster["cluster"]["server"].as_str().unwrap();
        server.strip_prefix("https://").unwrap().parse().unwrap()
    };
    kubeconfig["clusters"].as_array().unwrap().iter().map(address).collect()
}

/// Calls a function at this interval until the load ends.
async fn at_interval(pause: Duration, stop: &CancellationToken, mut request: impl AsyncFnMut()) {
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.is_cancelled() {
        ticks.tick().await;
        request().await;
    }
}

async fn run(shared: Arc<LoadState>) {
    // The object must exist before the first read.
    shared.write(&mut KeepAliveConnection::new(0), 1).await;
    let readers = join_all((0..READERS).map(|turn| shared.reads_on_a_kept_connection(turn)));
    let newcomers = join_all((0..NEWCOMERS).map(|turn| shared.reads_on_new_connections(turn)));
    tokio::join!(shared.writes(), readers, newcomers, shared.watch());
}

impl LoadState {
    fn note(&self, note: impl FnOnce(&mut Report)) {
        note(&mut self.report.lock().unwrap().1);
    }

    fn lap(&self) -> Report {
        let (since, report) = std::mem::replace(&mut *self.report.lock().unwrap(), (Instant::now(), Report::default()));
        Report { took: since.elapsed(), ..report }
    }

    /// Returns the time since the previous successful response.
    fn ended_outage(&self) -> Duration {
        let previous = std::mem::replace(&mut *self.answered.lock().unwrap(), Instant::now());
        previous.elapsed()
    }

    /// Sends one request, with retries until the window ends.
    async fn request(&self, kept: &mut KeepAliveConnection, method: Method, path: &str, body: &str) -> Option<Value> {
        let started = Instant::now();
        let asked = self.client.request(kept, method.clone(), path, body, WINDOW).await;
        let outage = if asked.answer.is_ok() { self.ended_outage() } else { Duration::ZERO };
        self.note(|report| {
            report.count(&format!("{method} {path}"), &asked, started.elapsed());
            report.longest_outage = report.longest_outage.max(outage);
        });
        asked.answer.ok()
    }

    /// Writes with server-side apply, so that a repeated request has no further effect.
    async fn write(&self, kept: &mut KeepAliveConnection, number: u64) {
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": "load" },
            "spec": { "holderIdentity": number.to_string() },
        });
        let path = format!("{OBJECT}?fieldManager=load&force=true");
        if self.request(kept, Method::PATCH, &path, &body.to_string()).await.is_some() {
            self.written.store(number, Ordering::SeqCst);
        }
    }

    async fn writes(&self) {
        let (mut kept, mut number) = (KeepAliveConnection::new(0), 1);
        at_interval(PAUSE, &self.stop, async || {
            number += 1;
            self.write(&mut kept, number).await;
        })
        .await;
    }

    /// A read must contain every write that was acknowledged before it.
    async fn read(&self, kept: &mut KeepAliveConnection) {
        let before = self.written.load(Ordering::SeqCst);
        let Some(object) = self.request(kept, Method::GET, OBJECT, "").await else { return };
        let found = number(&object);
        if found.is_none_or(|found| found < before) {
            self.note(|report| report.failures.push(format!("{before} was written, and {found:?} is read")));
        }
    }

    async fn reads_on_a_kept_connection(&self, turn: usize) {
        let mut kept = KeepAliveConnection::new(turn);
        at_interval(PAUSE, &self.stop, async || self.read(&mut kept).await).await;
    }

    async fn reads_on_new_connections(&self, mut turn: usize) {
        at_interval(NEW_CONNECTIONS, &self.stop, async || {
            turn += 1;
            self.read(&mut KeepAliveConnection::new(turn)).await;
        })
        .await;
    }

    /// Watches until the event of the last write is there. After each interruption it resumes from the version of the last event, as informers do.
    async fn watch(&self) {
        let (mut progress, mut turn) = (WatchProgress::default(), 0);
        let mut last = Instant::now();
        loop {
            turn += 1;
            let path = format!("{WATCH}&resourceVersion={}", progress.version);
            if let Ok(mut events) = self.client.watch(turn, &path).await {
                while let Ok(Some(event)) = tokio::time::timeout(SILENCE, events.next()).await {
                    if event["type"] == "ERROR" {
                        let is_anew = progress.refused(&event["object"]);
                        self.note(|report| report.relists += usize::from(is_anew));
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        break;
                    }
                    let missed = progress.advance(&event["object"]);
                    let silent = last.elapsed();
                    last = Instant::now();
                    self.note(|report| {
                        report.events += 1;
                        report.longest_silence = report.longest_silence.max(silent);
                        report
                            .failures
                            .extend(missed.map(|number| format!("the watch missed the event of write {number}")));
                    });
                    if self.stop.is_cancelled() && progress.seen >= self.written.load(Ordering::SeqCst) {
                        return;
                    }
                }
            } else {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let (written, seen) = (self.written.load(Ordering::SeqCst), progress.seen);
            if self.stop.is_cancelled() && seen >= written {
                return;
            }
            if last.elapsed() > WINDOW + SILENCE {
                self.note(|report| {
                    report.longest_silence = report.longest_silence.max(last.elapsed());
                    report.failures.push(format!("{written} was written, the watch saw {seen}"));
                });
                return;
            }
        }
    }
}

/// How far a watch has come.
#[derive(Debug, Default)]
struct WatchProgress {
    /// The number of the newest write whose event was received, and 0 before the first event.
    seen: u64,
    /// The resource version of that event, from which the watch resumes. Empty if the watch begins with the current object.
    version: String,
}

impl WatchProgress {
    /// Takes an event, and returns the numbers of the writes since the previous event, which the watch has missed. The numbers of writes are
    /// consecutive, and the first event of all is that of the current object.
    fn advance(&mut self, object: &Value) -> Range<u64> {
        object["metadata"]["resourceVersion"].as_str().unwrap_or_default().clone_into(&mut self.version);
        let number = number(object).unwrap_or_default();
        let newest = self.seen.max(number);
        let previous = std::mem::replace(&mut self.seen, newest);
        if previous == 0 { 0..0 } else { previous + 1..number }
    }

    /// A server ended the watch with a `Status`. Returns whether it no longer has the version, so that the watch begins anew with the current object.
    fn refused(&mut self, status: &Value) -> bool {
        let is_expired = status["code"] == 410;
        if is_expired {
            *self = Self::default();
        }
        is_expired
    }
}

fn number(object: &Value) -> Option<u64> {
    object["spec"]["holderIdentity"].as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(number: u64) -> Value {
        json!({ "metadata": { "resourceVersion": format!("{}", 100 + number) }, "spec": { "holderIdentity": number.to_string() } })
    }

    #[test]
    fn writes_without_an_event_are_missed() {
        let mut progress = WatchProgress::default();
        let mut missed = |number| progress.advance(&lease(number)).collect::<Vec<_>>();
        assert!(missed(5).is_empty(), "the watch begins with the current object");
        assert!(missed(6).is_empty());
        assert!(missed(6).is_empty(), "an event that comes again");
        assert_eq!(missed(9), [7, 8]);
        assert!(missed(10).is_empty());
    }

    #[test]
    fn only_an_expired_version_begins_anew() {
        let mut progress = WatchProgress::default();
        let _ = progress.advance(&lease(1));
        assert!(!progress.refused(&json!({ "code": 504 })));
        assert_eq!(progress.version, "101");
        assert!(progress.refused(&json!({ "code": 410 })));
        assert_eq!(progress.version, "");
        assert!(progress.advance(&lease(4)).next().is_none());
    }
}
