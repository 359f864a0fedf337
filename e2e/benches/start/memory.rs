//! Measures the memory of processes, by cgroup.

use std::{
    fs,
    path::{Path, PathBuf},
};

use keelway_e2e::{host, process};

/// The memory hierarchy of cgroup version 1, which has a hierarchy for each controller.
const VERSION_1: &str = "/sys/fs/cgroup/memory";
const VERSION_2: &str = "/sys/fs/cgroup";

/// A cgroup of this benchmark. It is removed on drop if it is empty.
pub(crate) struct Group(PathBuf);

impl Group {
    pub(crate) fn new(name: &str) -> Self {
        let directory = root().join(format!("keelway-{}-{name}", host::fleet("bench")));
        fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    /// Returns the file to which process ids are written.
    pub(crate) fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn root() -> &'static Path {
    Path::new(if Path::new(VERSION_1).is_dir() { VERSION_1 } else { VERSION_2 })
}

/// Returns the cgroup of a process, or none if the process has ended.
pub(crate) fn group_of(pid: u32) -> Option<PathBuf> {
    let text = String::from_utf8(process::file(pid, "cgroup").ok()?).ok()?;
    let of_memory =
        |line: &&str| line.contains(":memory:") || line.starts_with("0::") && root() == Path::new(VERSION_2);
    let path = text.lines().find(of_memory)?.rsplit(':').next()?;
    Some(root().join(path.trim_start_matches('/')))
}

/// Returns the anonymous memory of single processes in MiB. Shared pages count proportionally.
pub(crate) fn anonymous(pids: &[u32]) -> f64 {
    let of = |pid: &u32| {
        let text = String::from_utf8(process::file(*pid, "smaps_rollup").unwrap_or_default()).unwrap();
        text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok())
    };
    pids.iter().filter_map(of).sum::<f64>() / 1024.0
}

/// Returns the anonymous memory and the kernel memory of a cgroup in MiB. Fails if no process is in the cgroup.
pub(crate) fn used_in(directory: &Path) -> [f64; 2] {
    let read = |name: &str| fs::read_to_string(directory.join(name));
    assert!(!read("cgroup.procs").unwrap().is_empty(), "nothing runs in {}", directory.display());
    let stat = read("memory.stat").unwrap();
    let field = |name: &str| {
        let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
        value.unwrap_or_default()
    };
    let kernel = read("memory.kmem.usage_in_bytes");
    let kernel = kernel.map_or_else(|_| field("kernel"), |text| text.trim().parse().unwrap());
    [field("total_rss").max(field("anon")), kernel].map(|bytes| bytes / f64::from(1 << 20))
}
