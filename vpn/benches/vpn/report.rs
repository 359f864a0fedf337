//! The rows of a table, each with its target.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

pub(crate) struct Report {
    rows: Vec<Row>,
    notes: Vec<String>,
    rounds: usize,
    seconds: Duration,
}

pub(crate) struct Row {
    what: String,
    measured: String,
    target: String,
    is_met: bool,
}

impl Row {
    /// Returns a row that compares Keelway with something else, round by round. The target is a ratio of at least `target`.
    pub(crate) fn ratio(what: &str, unit: &str, ours: &[f64], other: &[f64], target: f64) -> Self {
        let mut ratios: Vec<f64> = ours.iter().zip(other).map(|(ours, other)| ours / other).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = median(ratios.clone());
        let spread = format!("{:.2} to {:.2}", ratios[0], ratios[ratios.len() - 1]);
        let measured = format!(
            "{:.2} beside {:.2} {unit}: {ratio:.2} times ({spread})",
            median(ours.to_vec()),
            median(other.to_vec())
        );
        Self::new(what, measured, format!("at least {target} times"), ratio >= target)
    }

    pub(crate) fn at_most(what: &str, unit: &str, value: f64, target: f64) -> Self {
        Self::new(what, format!("{value:.2} {unit}"), format!("under {target} {unit}"), value < target)
    }

    /// Returns a row for something that must not happen.
    pub(crate) fn none(what: &str, unit: &str, count: usize) -> Self {
        Self::new(what, format!("{count} {unit}"), format!("no {unit}"), count == 0)
    }

    fn new(what: &str, measured: String, target: String, is_met: bool) -> Self {
        println!("{what}: {measured} ({target})");
        Self { what: what.to_owned(), measured, target, is_met }
    }
}

/// Returns the median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

const BEGIN: &str = "<!-- vpn: begin -->";
const END: &str = "<!-- vpn: end -->";

impl Report {
    pub(crate) fn new(rounds: usize, seconds: Duration) -> Self {
        Self { rows: Vec::new(), notes: Vec::new(), rounds, seconds }
    }

    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn met(&self) -> usize {
        self.rows.iter().filter(|row| row.is_met).count()
    }

    pub(crate) fn missed(&self) -> usize {
        self.rows.len() - self.met()
    }

    pub(crate) fn render(&self) -> String {
        let nice = rustix::process::getpriority_process(None).unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().unwrap_or("unknown").to_owned();
        let mut text = format!(
            "`cargo xtask bench vpn --rounds {rounds} --seconds {seconds}`, all ends together on {cores} cores. The machine's load \
             average at the end was {load}; all that is compared ran before other work, at a nice value of {nice}. Figures are \
             medians; a ratio is the median of the rounds' ratios, and behind it stand the lowest and the highest.\n\n\
             | What | Measured | To reach | |\n|---|---|---|---|\n",
            rounds = self.rounds,
            seconds = self.seconds.as_secs()
        );
        for row in &self.rows {
            let met = if row.is_met { "met" } else { "**missed**" };
            let _ = writeln!(text, "| {} | {} | {} | {met} |", row.what, row.measured, row.target);
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }

    /// Replaces the text between the marks of the page.
    pub(crate) fn write_into(&self, path: &Path) {
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let page = format!("{before}{BEGIN}\n{}{END}{after}", self.render());
        std::fs::write(path, page).unwrap();
    }
}
