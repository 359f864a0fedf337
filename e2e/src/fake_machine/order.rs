//! What a test tells a machine that runs.

use std::{fmt, str::FromStr};

use anyhow::{Context, bail};
use keelway_cri::fake::{Fault, When};
use rustix::process::{Pid, Signal};

/// "Send a signal at this moment": `TERM before 3`, `KILL after 1`, `KILL patch 2 4711`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// `TERM` or `KILL`.
    pub signal: Signal,
    /// When it is sent.
    pub moment: Moment,
}

/// A moment; calls and requests count from 1 as the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A call that changes something on the machine; its caller gets the signal.
    Call(usize, When),
    /// An object that is about to be stored in the API, and is stored; this process gets the signal before the answer.
    Stored(usize, Pid),
}

impl Order {
    /// The fault of the runtime that it is, or the object and process that it is about.
    pub(super) fn fault(self) -> Option<(usize, Fault)> {
        match self.moment {
            Moment::Call(nth, when) => Some((nth, Fault::Signal(self.signal, when))),
            Moment::Stored(..) => None,
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.signal == Signal::KILL { "KILL" } else { "TERM" })?;
        match self.moment {
            Moment::Call(nth, When::BeforeAnswer) => write!(f, " before {nth}"),
            Moment::Call(nth, When::AfterAnswer) => write!(f, " after {nth}"),
            Moment::Stored(nth, pid) => write!(f, " stored {nth} {}", pid.as_raw_pid()),
        }
    }
}

impl FromStr for Order {
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
            ("before", []) => Moment::Call(nth, When::BeforeAnswer),
            ("after", []) => Moment::Call(nth, When::AfterAnswer),
            ("stored", [pid]) => Moment::Stored(nth, pid.parse().ok().and_then(Pid::from_raw).context("no process")?),
            _ => bail!("{text:?} is no order"),
        };
        Ok(Self { signal, moment })
    }
}
