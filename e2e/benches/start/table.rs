//! Rows of a table, each with what it should reach.

use std::{fmt::Write as _, fs, thread};

/// A table of Markdown.
pub(crate) struct Table {
    text: String,
    missed: usize,
}

impl Table {
    pub(crate) fn new(rounds: usize) -> Self {
        let cores = thread::available_parallelism().map_or(0, usize::from);
        let text = format!(
            "{rounds} rounds on {cores} cores. Figures are medians; a ratio is the median of the rounds' ratios.\n\n\
             | What | Measured | To reach | |\n|---|---|---|---|\n"
        );
        Self { text, missed: 0 }
    }

    /// Ours beside the other, round by round: at most `most` times.
    pub(crate) fn ratio(&mut self, what: &str, unit: &str, ours: &[f64], other: &[f64], most: f64) {
        let ratio = median(ours.iter().zip(other).map(|(ours, other)| ours / other));
        let (ours, other) = (median(ours.iter().copied()), median(other.iter().copied()));
        let measured = format!("{ours:.2} beside {other:.2} {unit}: {ratio:.2} times");
        self.row(what, &measured, &format!("at most {most} times"), ratio <= most);
    }

    /// Ours beside the other, round by round: at most `most` above it.
    pub(crate) fn difference(&mut self, what: &str, unit: &str, ours: &[f64], other: &[f64], most: f64) {
        let difference = median(ours.iter().zip(other).map(|(ours, other)| ours - other));
        let (ours, other) = (median(ours.iter().copied()), median(other.iter().copied()));
        let measured = format!("{ours:.2} beside {other:.2} {unit}: {difference:+.2} {unit}");
        self.row(what, &measured, &format!("at most {most} {unit} more"), difference <= most);
    }

    /// A figure that is to stay below another.
    pub(crate) fn under(&mut self, what: &str, unit: &str, values: &[f64], most: f64) {
        let value = median(values.iter().copied());
        self.row(what, &format!("{value:.2} {unit}"), &format!("under {most} {unit}"), value < most);
    }

    fn row(&mut self, what: &str, measured: &str, target: &str, met: bool) {
        self.missed += usize::from(!met);
        let met = if met { "met" } else { "**missed**" };
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "| {what} | {measured} | {target} | {met} |");
    }

    /// The table, with how busy the machine was.
    pub(crate) fn finish(mut self) -> String {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().unwrap_or("unknown");
        let _ = write!(self.text, "\nLoad average at the end: {load}. Missed: {}.\n", self.missed);
        self.text
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
