//! Progress for people: on stderr, and only if stderr is a terminal.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use keelway_api::name::HypervisorName;
use keelway_planner::Waiting;
use keelway_reconciler::RunProgress;

/// One line with the current step, or nothing if stderr is not a terminal.
pub(crate) struct ProgressLine(ProgressBar);

impl ProgressLine {
    /// Creates a line on stderr. If stderr is not a terminal or `quiet` is set, the line is hidden.
    pub(crate) fn of_terminal(quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} [{elapsed}] {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    pub(crate) fn show(&self, text: &str) {
        self.0.set_message(text.to_owned());
    }
}

impl RunProgress for ProgressLine {
    fn effect(&self, machine: &HypervisorName, action: &str) {
        self.show(&format!("{machine}: {action}"));
    }

    fn waiting(&self, waiting: &[Waiting]) {
        if let Some(first) = waiting.first() {
            let more = waiting.len() - 1;
            let others = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            self.show(&format!("{first}{others}"));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
