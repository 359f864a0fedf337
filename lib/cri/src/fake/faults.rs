//! Injected faults, by the number of the call.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{Notify, watch};

use super::lock;

/// After this time without another call, the caller has certainly read its response.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// A fault of a call that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// The call is refused, and changes nothing.
    Fail,
    /// The call never returns, and changes nothing.
    Hang,
    /// The call makes its change, and returns an error nevertheless.
    LoseAnswer,
    /// The call makes its change, and its caller receives a signal. Callers are known only to a fake that is served on a socket.
    Signal(Signal, SignalTiming),
}

/// When the caller receives its signal. The change of the call is made in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalTiming {
    /// Before the response is sent.
    BeforeAnswer,
    /// After the response: when the caller's next call shows that it received the response, or one second later. No change is made before the signal
    /// is sent.
    AfterAnswer,
}

#[derive(Debug, Default)]
pub(super) struct CallFaults {
    by_call: Mutex<BTreeMap<usize, CallFault>>,
    signals: Arc<SignalQueue>,
}

#[derive(Debug, Default)]
struct SignalQueue {
    /// How many signals are still to be sent. Changes wait until there are none.
    unsent: watch::Sender<usize>,
    /// Notified when a call arrives.
    asked: Arc<Notify>,
    /// The callers that were killed. Changes that they requested before they died, and that are read only now, are not made.
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

    /// Waits until all pending signals are sent. Returns false if one of them killed the caller.
    pub(super) async fn wait_for_signals(&self, caller: Option<Pid>) -> bool {
        // Cannot fail: the sender exists as long as `self`.
        let _ = self.signals.unsent.subscribe().wait_for(|unsent| *unsent == 0).await;
        caller.is_none_or(|caller| !lock(&self.signals.killed).contains(&caller.as_raw_pid()))
    }

    pub(super) fn signal(&self, caller: Option<Pid>, signal: Signal) {
        self.signals.send(caller, signal);
    }

    /// Returns a signal that is sent when the returned value is dropped.
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

/// An extension of a response, which sends its signal when the response is dropped.
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
        // Registers now, so that a call before the task first runs counts.
        let asked = Arc::clone(&signals.asked).notified_owned();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(READ_WITHIN, asked).await;
            signals.send(caller, signal);
            signals.unsent.send_modify(|unsent| *unsent -= 1);
        });
    }
}
