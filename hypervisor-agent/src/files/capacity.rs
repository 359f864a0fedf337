//! How much a machine has, as its own `/proc` and the root of its cgroups tell.

use std::os::fd::BorrowedFd;

use keelway_api::machine::{Amount, DISK_RESERVE, STATE_DIRECTORY};

use super::{Files, folder::Folder};

impl Files<'_> {
    /// Its online processors and its memory, or less where a limit is set on all that runs there: on a machine that is a
    /// container itself. `None` where `/proc` does not tell.
    #[must_use]
    pub fn capacity(self) -> Option<Amount> {
        let there = Amount {
            cpu_millis: 1000 * processors(&read(self.root, "/proc", "stat")?)?,
            memory_bytes: total_memory(&read(self.root, "/proc", "meminfo")?)?,
        };
        let limit = limits(|folder, name| read(self.root, folder, name));
        Some(Amount {
            cpu_millis: limit.0.map_or(there.cpu_millis, |limit| limit.min(there.cpu_millis)),
            memory_bytes: limit.1.map_or(there.memory_bytes, |limit| limit.min(there.memory_bytes)),
        })
    }
}

impl Files<'_> {
    /// Whether less than [`DISK_RESERVE`] is left for what is written below [`STATE_DIRECTORY`], which may have to be made first.
    #[must_use]
    pub fn disk_pressure(self) -> bool {
        let above = STATE_DIRECTORY.match_indices('/').skip(1).map(|(end, _)| &STATE_DIRECTORY[..end]);
        let mut places = std::iter::once(STATE_DIRECTORY).chain(above.collect::<Vec<_>>().into_iter().rev());
        let there = places.find_map(|path| Folder::under(self.root, path).ok());
        there.and_then(|folder| folder.room().ok()).is_some_and(|room| room < DISK_RESERVE)
    }
}

fn read(root: BorrowedFd<'_>, folder: &str, name: &str) -> Option<String> {
    Folder::under(root, folder).ok()?.read(name).ok()?
}

/// Lines `cpu0 ..`, one for each processor that is online (proc_stat(5)).
fn processors(stat: &str) -> Option<u64> {
    let is_one =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let count = stat.lines().filter(is_one).count() as u64;
    (count > 0).then_some(count)
}

/// `MemTotal:  24645708 kB` (proc_meminfo(5)).
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Limits on processors, in thousandths, and on memory, of both versions of cgroups. A root that limits nothing has no such
/// files, or says `max`, or -1, or more than there is.
fn limits(read: impl Fn(&str, &str) -> Option<String>) -> (Option<u64>, Option<u64>) {
    const ROOT: &str = "/sys/fs/cgroup";
    let number = |text: String| text.trim().parse::<u64>().ok();
    let first = |folder: &str, name: &str| read(folder, name).and_then(number);
    let cpu = read(ROOT, "cpu.max").and_then(|text| {
        let mut words = text.split_ascii_whitespace().map(str::parse::<u64>);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    });
    let cpu = cpu.or_else(|| {
        let folder = "/sys/fs/cgroup/cpu";
        Some((first(folder, "cpu.cfs_quota_us")?, first(folder, "cpu.cfs_period_us")?))
    });
    let memory = first(ROOT, "memory.max").or_else(|| first("/sys/fs/cgroup/memory", "memory.limit_in_bytes"));
    (cpu.and_then(|(quota, period)| (quota * 1000).checked_div(period)), memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_memory_are_read_from_proc() {
        assert_eq!(processors("cpu  1 2 3\ncpu0 1 2\ncpu3 1 2\nintr 5\n"), Some(2));
        assert_eq!(processors("intr 5\n"), None);
        assert_eq!(total_memory("MemTotal:       24645708 kB\nMemFree: 1 kB\n"), Some(24_645_708 << 10));
        assert_eq!(total_memory("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn the_lower_limit_counts_in_both_versions_of_cgroups() {
        let of = |files: &[(&str, &str)]| {
            limits(|folder, name| {
                let path = format!("{folder}/{name}");
                files.iter().find(|(found, _)| *found == path).map(|(_, text)| (*text).to_owned())
            })
        };
        assert_eq!(of(&[]), (None, None));
        let second = [("/sys/fs/cgroup/cpu.max", "150000 100000\n"), ("/sys/fs/cgroup/memory.max", "1073741824\n")];
        assert_eq!(of(&second), (Some(1500), Some(1 << 30)));
        assert_eq!(
            of(&[("/sys/fs/cgroup/cpu.max", "max 100000\n"), ("/sys/fs/cgroup/memory.max", "max\n")]),
            (None, None)
        );
        let first = [
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
        ];
        assert_eq!(of(&first), (None, Some(2 << 30)));
    }

    #[test]
    fn a_disk_that_is_full_is_told_of() {
        let disk = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(disk.path().join("var/lib")).unwrap();
        let pressure = || {
            let root = std::fs::File::open(disk.path()).unwrap();
            Files::new(std::os::fd::AsFd::as_fd(&root)).disk_pressure()
        };
        assert!(!pressure(), "the disk of this test is full");
        let small = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(disk.path().join("var/lib"))
            .status()
            .unwrap();
        assert!(small.success());
        let seen = pressure();
        rustix::mount::unmount(disk.path().join("var/lib"), rustix::mount::UnmountFlags::DETACH).unwrap();
        assert!(seen);
    }

    #[test]
    fn a_machine_tells_what_it_has() {
        let root = std::fs::File::open("/").unwrap();
        let found = Files::new(std::os::fd::AsFd::as_fd(&root)).capacity().unwrap();
        assert!(found.cpu_millis >= 100 && found.memory_bytes > 64 << 20, "{found}");
        let nothing = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(nothing.path()).unwrap();
        assert_eq!(Files::new(std::os::fd::AsFd::as_fd(&root)).capacity(), None);
    }
}
