//! Where a program ends itself: `keelway-cut` is told so in its environment.

use std::{fmt, str::FromStr};

use anyhow::{Context, bail};
use rustix::process::Signal;

/// A signal at a failpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailpointSignal {
    /// `TERM` or `KILL`.
    pub signal: Signal,
    /// Where.
    pub at: FailpointSelector,
}

/// One of the failpoints that a run comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailpointSelector {
    /// The nth, from 1.
    Nth(usize),
    /// The first that has these words.
    First(String),
}

impl fmt::Display for FailpointSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.signal == Signal::KILL { "KILL " } else { "TERM " })?;
        match &self.at {
            FailpointSelector::Nth(nth) => write!(f, "{nth}"),
            FailpointSelector::First(words) => f.write_str(words),
        }
    }
}

impl FromStr for FailpointSignal {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (signal, at) = text.split_once(' ').with_context(|| format!("{text:?} is no cut"))?;
        let signal = match signal {
            "KILL" => Signal::KILL,
            "TERM" => Signal::TERM,
            other => bail!("{other:?} is no signal"),
        };
        Ok(Self {
            signal,
            at: at.parse().map_or_else(|_| FailpointSelector::First(at.to_owned()), FailpointSelector::Nth),
        })
    }
}
