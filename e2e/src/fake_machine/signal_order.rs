//! Orders from a test to a running machine.

use std::{fmt, str::FromStr};

use anyhow::{Context, bail};
use keelway_cri::fake::{CallFault, SignalTiming};
use rustix::process::{Pid, Signal};

/// "Send a signal at this moment": `TERM before 3`, `KILL after 1`, `KILL patch 2 4711`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalOrder {
    /// `TERM` or `KILL`.
    pub signal: Signal,
    /// The moment of sending.
    pub moment: SignalTrigger,
}

/// A moment. Calls and requests are counted from 1, which is the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalTrigger {
    /// A call that changes something on the machine. The caller gets the signal.
    Call(usize, SignalTiming),
    /// The API server stores an object. This process gets the signal before the response.
    Stored(usize, Pid),
}

impl SignalOrder {
    /// Returns the fault of the runtime, or `None` if the order is about an object in the API.
    pub(super) fn fault(self) -> Option<(usize, CallFault)> {
        match self.moment {
            SignalTrigger::Call(nth, when) => Some((nth, CallFault::Signal(self.signal, when))),
            SignalTrigger::Stored(..) => None,
        }
    }
}

impl fmt::Display for SignalOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.signal == Signal::KILL { "KILL" } else { "TERM" })?;
        match self.moment {
            SignalTrigger::Call(nth, SignalTiming::BeforeAnswer) => write!(f, " before {nth}"),
            SignalTrigger::Call(nth, SignalTiming::AfterAnswer) => write!(f, " after {nth}"),
            SignalTrigger::Stored(nth, pid) => write!(f, " stored {nth} {}", pid.as_raw_pid()),
        }
    }
}

impl FromStr for SignalOrder {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [signal, moment, nth, pid @ ..] = words.as_slice() else { bail!("{text:?} is no order") };
        let signal = match *signal {
            "KILL" => Signal::KILL,
            "TERM" => Signal::TERM,
            other => bail!("{other:?} is no signal"),
        };
        let nth = nth.parse().context("no number of a call")?;
        let moment = match (*moment, pid) {
            ("before", []) => SignalTrigger::Call(nth, SignalTiming::BeforeAnswer),
            ("after", []) => SignalTrigger::Call(nth, SignalTiming::AfterAnswer),
            ("stored", [pid]) => {
                SignalTrigger::Stored(nth, pid.parse().ok().and_then(Pid::from_raw).context("no process")?)
            }
            _ => bail!("{text:?} is no order"),
        };
        Ok(Self { signal, moment })
    }
}
