//! Finds directories in which programs run, but cannot be executed.

use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::{
    image,
    settings::{Layout, NodeOptions},
};

/// Whether the file system of a directory is mounted with `noexec`. A directory that does not exist will be on that of the first one above it.
pub(crate) fn is_noexec(directory: &Path) -> bool {
    let there = directory.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"));
    statvfs(there).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// Returns the directories from which kubelet, CNI plugins and pods run programs, each with its option, if they are mounted with `noexec`. Pods
/// run programs from their volumes, which are in the kubelet's directory. Only a runtime that responds has a directory of plugins.
pub(super) async fn noexec(options: &NodeOptions, layout: &Layout, responds: bool) -> Vec<(&'static str, PathBuf)> {
    let mut used =
        vec![("--state-dir", layout.root().to_owned()), ("--kubelet-root-dir", options.kubelet_root_dir.clone())];
    if responds && let Ok(runtime) = super::client(&options.containerd_socket) {
        used.push(("--cni-bin-dir", image::settings(&runtime).await.directories(options).plugins));
    }
    used.into_iter().filter(|(_, directory)| is_noexec(directory)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolated::{in_own_mounts, run};

    #[test]
    fn a_directory_below_a_mount_is_on_it() {
        in_own_mounts(|root| {
            assert!(!is_noexec(&root.join("lib/kubelet")));
            run("mount", &["-t", "tmpfs", "-o", "noexec", "tmpfs", root.to_str().unwrap()]);
            assert!(is_noexec(root) && is_noexec(&root.join("lib/kubelet")));
        });
    }
}
