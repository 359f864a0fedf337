//! What goes wrong, and at which call.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{Notify, watch};

use super::lock;

/// A caller that asks nothing more within this has its answer, too.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// What goes wrong with a call that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// It is refused, and changes nothing.
    Fail,
    /// It is never answered, and changes nothing.
    Hang,
    /// It changes what it should, and its answer is an error all the same.
    LoseAnswer,
    /// It does what it should, and its caller gets a signal. Callers are known only on a served fake.
    Signal(Signal, SignalTiming),
}

/// When a caller gets its signal. Either way the call's change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalTiming {
    /// Before the answer is on its way.
    BeforeAnswer,
    /// After the answer: when the caller's next call shows that it has it, or a second later. No change is made between.
    AfterAnswer,
}

#[derive(Debug, Default)]
pub(super) struct CallFaults {
    by_call: Mutex<BTreeMap<usize, CallFault>>,
    signals: Arc<SignalQueue>,
}

#[derive(Debug, Default)]
struct SignalQueue {
    /// How many are still to be sent. Changes wait until there are none.
    unsent: watch::Sender<usize>,
    /// Told when a call comes in.
    asked: Arc<Notify>,
    /// Who was killed. What they asked before they died, and what is read only now, is not done.
    killed: Mutex<BTreeSet<i32>>,
}

impl CallFaults {
    pub(super) fn add(&self, call: usize, fault: CallFault) {
        lock(&self.by_call).insert(call, fault);
    }

    pub(super) fn at(&self, call: usize) -> Option<CallFault> {
        lock(&self.by_call).remove(&call)
    }

    pub(super) fn notify_call(&self) {
        self.signals.asked.notify_waiters();
    }

    /// Waits until all signals that are due were sent, and says whether the caller was not killed by one.
    pub(super) async fn wait_for_signals(&self, caller: Option<Pid>) -> bool {
        // The sender is right here, so this only ends with the condition.
        let _ = self.signals.unsent.subscribe().wait_for(|unsent| *unsent == 0).await;
        caller.is_none_or(|caller| !lock(&self.signals.killed).contains(&caller.as_raw_pid()))
    }

    pub(super) fn signal(&self, caller: Option<Pid>, signal: Signal) {
        self.signals.send(caller, signal);
    }

    /// A signal that is sent when what is returned is dropped.
    pub(super) fn pending_signal(&self, caller: Option<Pid>, signal: Signal) -> PendingSignal {
        self.signals.unsent.send_modify(|unsent| *unsent += 1);
        PendingSignal(Arc::new(QueuedSignal { caller, signal, signals: Arc::clone(&self.signals) }))
    }
}

impl SignalQueue {
    fn send(&self, caller: Option<Pid>, signal: Signal) {
        let Some(caller) = caller else {
            return tracing::error!("a caller in this process gets no signal");
        };
        if signal == Signal::KILL {
            lock(&self.killed).insert(caller.as_raw_pid());
        }
        if let Err(error) = kill_process(caller, signal) {
            tracing::warn!(%error, "the caller got no signal");
        }
    }
}

/// Rides on an answer, and sends its signal after the answer is gone.
#[derive(Clone, Debug)]
pub(super) struct PendingSignal(#[expect(dead_code, reason = "what counts is when it is dropped")] Arc<QueuedSignal>);

#[derive(Debug)]
struct QueuedSignal {
    caller: Option<Pid>,
    signal: Signal,
    signals: Arc<SignalQueue>,
}

impl Drop for QueuedSignal {
    fn drop(&mut self) {
        let (caller, signal, signals) = (self.caller, self.signal, Arc::clone(&self.signals));
        // Counts from here on, before the task has its turn.
        let asked = Arc::clone(&signals.asked).notified_owned();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(READ_WITHIN, asked).await;
            signals.send(caller, signal);
            signals.unsent.send_modify(|unsent| *unsent -= 1);
        });
    }
}
