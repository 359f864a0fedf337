//! Metrics of the process, with the names that all client libraries of Prometheus use.

use std::{fmt, fs, io};

use keelway_api::jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::counter::ConstCounter,
};
use rustix::process::{Resource, getrlimit};

use super::family::{MetricFamily, amount, count, seconds};

/// The kernel reports times to user space in ticks of which a second has this many (`USER_HZ`). It is the same on all current architectures.
const TICKS: u64 = 100;

/// Collects metrics of the current process.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    began: Timestamp,
}

impl ProcessCollector {
    pub(super) fn new(began: Timestamp) -> Self {
        Self { began }
    }

    fn families(&self) -> io::Result<Vec<MetricFamily>> {
        let status = fs::read_to_string("/proc/self/status")?;
        let one = |name, help, value| {
            let mut family = MetricFamily::new(name, help);
            family.add_known([], value);
            family
        };
        let start = Some(seconds(self.began));
        // The descriptor of this listing is not counted.
        let open = fs::read_dir("/proc/self/fd")?.count().saturating_sub(1);
        Ok(vec![
            one("process_resident_memory_bytes", "Resident memory", memory(&status, "VmRSS:")),
            one("process_virtual_memory_bytes", "Virtual memory", memory(&status, "VmSize:")),
            one("process_open_fds", "Number of open file descriptors", Some(count(open))),
            one("process_max_fds", "Maximum number of open file descriptors", most_descriptors()),
            one("process_start_time_seconds", "Start time of the process, in seconds since the epoch", start),
        ])
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return Ok(()) };
        if let Some(seconds) = cpu_seconds(&stat) {
            let counter = ConstCounter::new(seconds);
            let help = "User and system CPU time";
            counter.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, counter.metric_type())?)?;
        }
        self.families().unwrap_or_default().iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

/// Reads a line such as `VmRSS: 5120 kB` (proc(5)).
fn memory(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kibibytes| amount(kibibytes << 10))
}

/// Reads fields 14 and 15 (proc(5)). They are counted from the end of the program's name, which may contain any character.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    Some(amount(ticks) / amount(TICKS))
}

fn most_descriptors() -> Option<f64> {
    getrlimit(Resource::Nofile).current.map(amount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_status_is_parsed() {
        assert_eq!(memory("VmPeak:\t  9 kB\nVmRSS:\t    5120 kB\n", "VmRSS:"), Some(5_242_880.0));
        assert_eq!(memory("VmPeak:\t  9 kB\n", "VmRSS:"), None);
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 150 75 0 0 20 0 3 0 100 1 2\n";
        assert_eq!(cpu_seconds(stat), Some(2.25));
        assert_eq!(cpu_seconds("7 (a"), None);
    }

    #[test]
    fn this_process_has_memory_and_files() {
        let families = ProcessCollector::new(Timestamp::UNIX_EPOCH).families().unwrap();
        let unknown: Vec<_> = families.iter().filter(|family| family.samples.len() != 1).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let empty = families.iter().take(3).filter(|family| family.samples[0].value <= 0.0);
        assert_eq!(empty.count(), 0);
    }
}
