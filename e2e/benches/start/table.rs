//! Tables of results, with a target for each row.

use std::{fmt::Write as _, fs, path::Path, thread, time::Duration};

/// A Markdown table.
pub(crate) struct Table {
    benchmark: &'static str,
    rows: String,
    rounds: usize,
    missed: usize,
}

impl Table {
    pub(crate) fn new(benchmark: &'static str, rounds: usize) -> Self {
        Self { benchmark, rows: String::new(), rounds, missed: 0 }
    }

    /// Adds a row that compares ours with the other, round by round: the ratio is at most `most`.
    pub(crate) fn ratio(&mut self, what: &str, unit: &str, [ours, other]: &[Vec<f64>; 2], most: f64) {
        let ratios: Vec<f64> = ours.iter().zip(other).map(|(ours, other)| ours / other).collect();
        let ratio = median(&ratios);
        let measured = format!(
            "{:.2} beside {:.2} {unit}: {ratio:.2} times ({:.2} to {:.2})",
            median(ours),
            median(other),
            least(&ratios),
            -least(&ratios.iter().map(|ratio| -ratio).collect::<Vec<_>>()),
        );
        self.row(what, &measured, &format!("at most {most} times"), ratio <= most);
    }

    /// Adds a row that compares the fastest rounds of both: the ratio is at most `most`. For times that contain a wait by chance.
    pub(crate) fn fastest(&mut self, what: &str, unit: &str, [ours, other]: &[Vec<f64>; 2], most: f64) {
        let ratio = least(ours) / least(other);
        let measured = format!("{:.2} beside {:.2} {unit}: {ratio:.2} times", least(ours), least(other));
        self.row(what, &measured, &format!("at most {most} times"), ratio <= most);
    }

    /// Adds a row that compares ours with the other, round by round: the difference is at most `most`.
    pub(crate) fn difference(&mut self, what: &str, unit: &str, [ours, other]: &[Vec<f64>; 2], most: f64) {
        let differences: Vec<f64> = ours.iter().zip(other).map(|(ours, other)| ours - other).collect();
        let difference = median(&differences);
        let measured = format!("{:.2} beside {:.2} {unit}: {difference:+.2} {unit}", median(ours), median(other));
        self.row(what, &measured, &format!("at most {most} {unit} more"), difference <= most);
    }

    /// Adds a row whose median is below `most`.
    pub(crate) fn under(&mut self, what: &str, unit: &str, values: &[f64], most: f64) {
        let value = median(values);
        self.row(what, &format!("{value:.3} {unit}"), &format!("under {most} {unit}"), value < most);
    }

    /// Adds a row whose longest time is at most `most` seconds.
    pub(crate) fn worst(&mut self, what: &str, times: &[Duration], most: f64) {
        let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        let longest = seconds.iter().copied().fold(0.0, f64::max);
        let measured = format!("{longest:.2} s, median {:.2} s", median(&seconds));
        self.row(what, &measured, &format!("at most {most} s"), longest <= most);
    }

    /// Adds a row without a target.
    pub(crate) fn shown(&mut self, what: &str, unit: &str, values: &[f64]) {
        let _ = writeln!(self.rows, "| {what} | {:.2} {unit} | | |", median(values));
    }

    fn row(&mut self, what: &str, measured: &str, target: &str, met: bool) {
        self.missed += usize::from(!met);
        let met = if met { "met" } else { "**missed**" };
        // Writing to a String cannot fail.
        let _ = writeln!(self.rows, "| {what} | {measured} | {target} | {met} |");
    }

    /// Returns the table, with the load of the machine.
    pub(crate) fn finish(self) -> String {
        let Self { benchmark, rows, rounds, missed } = self;
        let cores = thread::available_parallelism().map_or(0, usize::from);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().unwrap_or("unknown");
        format!(
            "`cargo xtask bench {benchmark} --rounds {rounds}`, all machines together on {cores} cores. The machine's load average at \
             the end was {load}. Figures are medians; a ratio is the median of the rounds' ratios, and behind it stand the \
             lowest and the highest. Rows missed: {missed}.\n\n\
             | What | Measured | To reach | |\n|---|---|---|---|\n{rows}"
        )
    }
}

/// Replaces the text between the marks of a benchmark on a page.
pub(crate) fn write_into(page: &Path, benchmark: &str, table: &str) {
    let [begin, end] = ["begin", "end"].map(|mark| format!("<!-- {benchmark}: {mark} -->"));
    let text = fs::read_to_string(page).unwrap();
    let (before, rest) = text.split_once(&begin).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    fs::write(page, format!("{before}{begin}\n{table}{end}{after}")).unwrap();
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
