//! CPU time by program and requests to the API server during a measurement.

use std::{collections::BTreeMap, fs};

use keelway_e2e::process;

use crate::objects::Objects;

/// `USER_HZ`, which is 100 on all supported architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// The totals up to one moment.
pub(crate) struct Shares {
    /// CPU time in seconds, by program. All machines run in the program of the benchmark.
    processor_seconds: BTreeMap<String, f64>,
    /// Requests by verb and resource.
    requests: BTreeMap<String, f64>,
}

impl Shares {
    pub(crate) async fn now(objects: &Objects) -> Self {
        let requests = objects.write_requests().await;
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut processor_seconds = BTreeMap::new();
        for (name, seconds) in ids.filter_map(of) {
            *processor_seconds.entry(name).or_default() += seconds;
        }
        Self { processor_seconds, requests }
    }

    /// Prints the difference to an earlier moment.
    pub(crate) fn print_since(&self, before: &Self) {
        let since = |now: &BTreeMap<String, f64>, before: &BTreeMap<String, f64>, least: f64| {
            let taken = now.iter().map(|(name, now)| (now - before.get(name).unwrap_or(&0.0), name));
            let mut taken: Vec<_> = taken.filter(|(taken, _)| *taken >= least).collect();
            taken.sort_by(|one, other| other.0.total_cmp(&one.0));
            taken.into_iter().map(|(taken, name)| format!("{name} {taken:.1}")).collect::<Vec<_>>().join(", ")
        };
        println!("        seconds on processors: {}", since(&self.processor_seconds, &before.processor_seconds, 0.5));
        println!("        requests: {}", since(&self.requests, &before.requests, 1.0));
    }
}

/// Returns the name of a program and its CPU time in seconds (`utime` and `stime` of proc_pid_stat(5)).
pub(crate) fn of(id: u32) -> Option<(String, f64)> {
    let text = String::from_utf8(process::file(id, "stat").ok()?).ok()?;
    let (name, fields) = text.rsplit_once(')')?;
    let (_, name) = name.split_once('(')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Some((name.to_owned(), ticks.sum::<Result<f64, _>>().ok()? / TICKS_PER_SECOND))
}
