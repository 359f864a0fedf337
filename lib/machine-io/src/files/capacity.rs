//! Facts and capacity of a machine, from its `/proc`, os-release, disk and root cgroup.

use std::{env::consts::ARCH, os::fd::BorrowedFd};

use keelway_api::machine::{Amount, Disk, STATE_DIRECTORY, SystemFacts};

use super::{MachineFiles, folder::Folder};

/// Facts and capacity of a machine.
#[derive(Debug)]
pub struct Inventory {
    /// CPU and memory. `None` if they cannot be read.
    pub capacity: Option<Amount>,
    /// The file system below [`STATE_DIRECTORY`]. `None` if it cannot be read.
    pub disk: Option<Disk>,
    /// The kernel, operating system and architecture.
    pub system: SystemFacts,
}

impl MachineFiles<'_> {
    /// Reads facts and capacity.
    #[must_use]
    pub fn inventory(self) -> Inventory {
        Inventory { capacity: self.capacity(), disk: self.disk(), system: self.system() }
    }

    /// Returns the online CPUs and the memory, or the limit of the root cgroup if it is lower, as on a machine that is a container itself. `None` if
    /// `/proc` cannot be read.
    fn capacity(self) -> Option<Amount> {
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

impl MachineFiles<'_> {
    /// Returns the file system of [`STATE_DIRECTORY`], or of its nearest existing parent.
    fn disk(self) -> Option<Disk> {
        let above = STATE_DIRECTORY.match_indices('/').skip(1).map(|(end, _)| &STATE_DIRECTORY[..end]);
        let mut places = std::iter::once(STATE_DIRECTORY).chain(above.collect::<Vec<_>>().into_iter().rev());
        places.find_map(|path| Folder::open_in_root(self.root, path).ok())?.disk().ok()
    }

    /// This program runs on the machine, so it has the machine's kernel and architecture.
    fn system(self) -> SystemFacts {
        // On most distributions, /etc has a link to the other file (os-release(5)).
        let release = ["/etc", "/usr/lib"].into_iter().find_map(|folder| read(self.root, folder, "os-release"));
        SystemFacts {
            kernel_version: read(self.root, "/proc/sys/kernel", "osrelease").unwrap_or_default().trim().to_owned(),
            os_image: release.as_deref().and_then(pretty_name).unwrap_or_default().to_owned(),
            architecture: architecture(ARCH).to_owned(),
            agent_version: None,
        }
    }
}

fn read(root: BorrowedFd<'_>, folder: &str, name: &str) -> Option<String> {
    Folder::open_in_root(root, folder).ok()?.read(name).ok()?
}

/// Returns the value of a line such as `PRETTY_NAME="Debian GNU/Linux 13 (trixie)"`.
fn pretty_name(release: &str) -> Option<&str> {
    let value = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim().trim_matches(['"', '\'']))
}

/// Returns the name that Go and Kubernetes use.
fn architecture(rust: &'static str) -> &'static str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Counts the lines `cpu0 ..`, one for each online CPU (proc_stat(5)).
fn processors(stat: &str) -> Option<u64> {
    let is_one =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let count = stat.lines().filter(is_one).count() as u64;
    (count > 0).then_some(count)
}

/// Parses the line `MemTotal:  24645708 kB` (proc_meminfo(5)), and returns bytes.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Returns the limits of CPU, in thousandths, and of memory, in bytes, from cgroups of version 1 or 2. A root without limits has no such files, or
/// contains `max`, -1, or more than the machine has.
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
    fn a_system_is_named_as_people_name_it() {
        assert_eq!(pretty_name("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13\"\n"), Some("Debian GNU/Linux 13"));
        assert_eq!(pretty_name("NAME=x\n"), None);
        assert_eq!(architecture("x86_64"), "amd64");
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
    fn the_free_space_of_a_disk_is_observed() {
        let disk = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(disk.path().join("var/lib")).unwrap();
        let look = || {
            let root = std::fs::File::open(disk.path()).unwrap();
            MachineFiles::new(std::os::fd::AsFd::as_fd(&root)).disk().unwrap()
        };
        let large = look();
        assert!(large.capacity_bytes >= large.available_bytes && large.capacity_bytes > 64 << 20, "{large:?}");
        let small = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(disk.path().join("var/lib"))
            .status()
            .unwrap();
        assert!(small.success());
        let seen = look();
        rustix::mount::unmount(disk.path().join("var/lib"), rustix::mount::UnmountFlags::DETACH).unwrap();
        assert_eq!(seen, Disk { capacity_bytes: 1 << 20, available_bytes: 1 << 20 });
    }

    #[test]
    fn the_inventory_of_a_machine_is_observed() {
        let root = std::fs::File::open("/").unwrap();
        let found = MachineFiles::new(std::os::fd::AsFd::as_fd(&root)).inventory();
        let capacity = found.capacity.unwrap();
        assert!(capacity.cpu_millis >= 100 && capacity.memory_bytes > 64 << 20, "{capacity}");
        assert!(found.system.kernel_version.starts_with(|first: char| first.is_ascii_digit()), "{:?}", found.system);
        let nothing = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(nothing.path()).unwrap();
        assert_eq!(MachineFiles::new(std::os::fd::AsFd::as_fd(&root)).capacity(), None);
    }
}
