//! Failpoints at which `keelway-cut` ends itself. Its environment selects one.

use std::{fmt, str::FromStr};

use anyhow::{Context, bail};
use rustix::process::Signal;

/// A signal at a failpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailpointSignal {
    /// `TERM` or `KILL`.
    pub signal: Signal,
    /// The failpoint.
    pub at: FailpointSelector,
}

/// Selects one of the failpoints that a run reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailpointSelector {
    /// The nth failpoint, counted from 1.
    Nth(usize),
    /// The first failpoint whose text contains these words.
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
