//! What goes wrong, and at which call.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;

use super::lock;

/// An answer that was handed over is in the caller's socket well within this. Nothing tells when: HTTP/2 acknowledges
/// no data, and the next change waits, so a longer time costs nothing but itself.
const ON_THE_WAY: Duration = Duration::from_millis(10);
/// A killed process that is not gone by then is stuck in the kernel.
const DIES_WITHIN: Duration = Duration::from_secs(10);

/// What goes wrong with a call that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is refused, and changes nothing.
    Fail,
    /// It is never answered, and changes nothing.
    Hang,
    /// It changes what it should, and its answer is an error all the same.
    LoseAnswer,
    /// It does what it should, and its caller gets a signal. Callers are known only on a served fake.
    Signal(Signal, When),
}

/// When a caller gets its signal. Either way the call's change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before the answer is on its way.
    BeforeAnswer,
    /// After the answer was handed over, and before another change is made.
    AfterAnswer,
}

#[derive(Debug)]
pub(super) struct Faults {
    by_call: Mutex<BTreeMap<usize, Fault>>,
    /// How many signals are still to be sent. Changes wait until there are none.
    unsent: Arc<watch::Sender<usize>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { by_call: Mutex::default(), unsent: Arc::new(watch::Sender::new(0)) }
    }
}

impl Faults {
    pub(super) fn add(&self, call: usize, fault: Fault) {
        lock(&self.by_call).insert(call, fault);
    }

    pub(super) fn at(&self, call: usize) -> Option<Fault> {
        lock(&self.by_call).remove(&call)
    }

    /// Waits until all signals that are due were sent, and says whether the caller has survived.
    pub(super) async fn signals_sent(&self, caller: Option<Pid>) -> bool {
        if *self.unsent.borrow() == 0 {
            return true;
        }
        // The sender is right here, so this only ends with the condition.
        let _ = self.unsent.subscribe().wait_for(|unsent| *unsent == 0).await;
        caller.is_none_or(runs)
    }

    /// A signal that is sent when what is returned is dropped.
    pub(super) fn pending_signal(&self, caller: Option<Pid>, signal: Signal) -> PendingSignal {
        self.unsent.send_modify(|unsent| *unsent += 1);
        PendingSignal(Arc::new(Pending { caller, signal, unsent: Arc::clone(&self.unsent) }))
    }
}

/// Rides on an answer, and sends its signal after the answer is gone.
#[derive(Clone, Debug)]
pub(super) struct PendingSignal(#[expect(dead_code, reason = "what counts is when it is dropped")] Arc<Pending>);

#[derive(Debug)]
struct Pending {
    caller: Option<Pid>,
    signal: Signal,
    unsent: Arc<watch::Sender<usize>>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let (caller, signal, unsent) = (self.caller, self.signal, Arc::clone(&self.unsent));
        tokio::spawn(async move {
            tokio::time::sleep(ON_THE_WAY).await;
            send(caller, signal);
            if let Some(caller) = caller
                && signal == Signal::KILL
            {
                // What the caller asked meanwhile is then not done: it never did more than ask.
                let _ = tokio::time::timeout(DIES_WITHIN, ended(caller)).await;
            }
            unsent.send_modify(|unsent| *unsent -= 1);
        });
    }
}

async fn ended(process: Pid) {
    let mut again = tokio::time::interval(Duration::from_millis(1));
    while runs(process) {
        again.tick().await;
    }
}

/// Whether a process is there and not a zombie.
pub(super) fn runs(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    let state = stat.ok().and_then(|stat| Some(stat.rsplit_once(") ")?.1.starts_with(['Z', 'X'])));
    state == Some(false)
}

pub(super) fn send(caller: Option<Pid>, signal: Signal) {
    let Some(caller) = caller else {
        return tracing::error!("a caller in this process gets no signal");
    };
    if let Err(error) = kill_process(caller, signal) {
        tracing::warn!(%error, "the caller got no signal");
    }
}
