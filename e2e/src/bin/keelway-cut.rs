//! `keelway` with failpoints: it records each failpoint that it reaches, and can send itself a signal at one of them.
//!
//! A failpoint is a moment before or after a save or an effect. `CUT` selects one and a signal: `KILL 17` is the seventeenth failpoint, and
//! `TERM done start container etcd` is the first whose text contains these words. The program appends a line to the file `POINTS` for each
//! failpoint that it reaches. The program has one thread, so that nothing else happens between the failpoint and the signal.

use std::{
    fmt::{Debug, Write as _},
    fs::{File, OpenOptions},
    io::Write as _,
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, bail};
use keelway_e2e::failpoint::{FailpointSelector, FailpointSignal};
use rustix::process::{getpid, kill_process};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

/// The events before and after each save and each effect.
const REPORTED: [&str; 10] =
    ["saves", "saved", "begins", "done", "binds", "bound", "orders", "ordered", "rewrites", "rewrote"];

fn main() -> anyhow::Result<ExitCode> {
    let cut = std::env::var("CUT").ok().map(|cut| cut.parse::<FailpointSignal>()).transpose()?;
    let Some(points) = std::env::var_os("POINTS") else { bail!("POINTS names no file") };
    let output = OpenOptions::new().create(true).append(true).open(points).context("POINTS")?;
    Ok(keelway_cli::main_with_observer(Some(Failpoints(Mutex::new(Points { cut, output, count: 0 })))))
}

struct Failpoints(Mutex<Points>);

struct Points {
    cut: Option<FailpointSignal>,
    output: File,
    count: usize,
}

impl<S: Subscriber> Layer<S> for Failpoints {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut words = FieldVisitor::default();
        event.record(&mut words);
        if REPORTED.contains(&words.message.as_str()) {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .reach_point(&format!("{} {}", words.message, words.rest));
        }
    }
}

impl Points {
    fn reach_point(&mut self, point: &str) {
        self.count += 1;
        let _ = writeln!(self.output, "{}", point.trim_end());
        let here = self.cut.as_ref().is_some_and(|cut| match &cut.at {
            FailpointSelector::Nth(nth) => *nth == self.count,
            FailpointSelector::First(words) => point.contains(words.as_str()),
        });
        if here && let Some(cut) = self.cut.take() {
            let _ = kill_process(getpid(), cut.signal);
        }
    }
}

#[derive(Default)]
struct FieldVisitor {
    message: String,
    rest: String,
}

impl Visit for FieldVisitor {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "effect" => {
                let _ = write!(self.rest, "{value} ");
            }
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "action" | "order" => {
                let _ = write!(self.rest, "{value:?} ");
            }
            _ => {}
        }
    }
}
