//! Installs programs from an image's view into the worker's directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use containerd_client::types::Mount;

use super::ImageError;
use crate::{
    files::{self, NodeFileError},
    settings::Layout,
};

/// The paths of the programs in the image.
const KUBELET: &str = "usr/local/bin/kubelet";
const PLUGINS: &str = "opt/cni/bin";
/// This file exists if files have labels of `SELinux`.
const LABELS: &str = "/sys/fs/selinux/enforce";

/// How programs are installed in the worker's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstallMethod {
    /// As a hard link to containerd's own file. This reads and writes no content, and the file stays after containerd removes its name. Such a
    /// file must never be written to, and its mode and owner stay.
    Link,
    /// As a copy.
    Copy,
}

/// Returns the directory of a snapshot, if it is one. A mount of it would be another file system, to which a link is impossible.
pub(super) fn directory(mounts: &[Mount]) -> Option<&Path> {
    let [only] = mounts else { return None };
    let is_directory = only.options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind"));
    // A link has the label of its file, and files of containers have a label of their own.
    (is_directory && !Path::new(LABELS).exists()).then_some(Path::new(&only.source))
}

/// Installs the programs, and records their image last. Returns `false` if they cannot be linked.
pub(super) fn install(layout: &Layout, image: &str, from: &Path, way: InstallMethod) -> Result<bool, ImageError> {
    files::remove(&layout.programs_of())?;
    files::make_dir(&layout.plugins(), 0o755)?;
    let lacks = |what| ImageError::Form { image: image.to_owned(), what };
    let plugins = match fs::read_dir(from.join(PLUGINS)) {
        Ok(plugins) => plugins,
        Err(_) if way == InstallMethod::Link => return Ok(false),
        Err(_) => return Err(lacks("/opt/cni/bin")),
    };
    let plugins = plugins.flatten().map(|plugin| (plugin.path(), layout.plugins().join(plugin.file_name())));
    let programs: Vec<(PathBuf, PathBuf)> = plugins.chain([(from.join(KUBELET), layout.kubelet())]).collect();
    for (from, to) in &programs {
        let done = match way {
            InstallMethod::Link if !is_file(from) => return Ok(false),
            InstallMethod::Link => have(from, to, |from, to| fs::hard_link(from, to)),
            InstallMethod::Copy => have(from, to, |from, to| fs::copy(from, to).map(drop)),
        };
        match done {
            Ok(()) => {}
            Err(error) if way == InstallMethod::Link => {
                tracing::debug!(%error, program = %from.display(), "cannot link the program; copying it");
                return Ok(false);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && *to == layout.kubelet() => {
                return Err(lacks("/usr/local/bin/kubelet"));
            }
            Err(error) => return Err(NodeFileError::new("copy", from)(error).into()),
        }
    }
    files::write(&layout.programs_of(), image, 0o600)?;
    Ok(true)
}

/// Whether the path is a regular file. A symbolic link would lead to somewhere in its image.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

/// Installs a program atomically, so that a running program is not written to.
fn have(from: &Path, to: &Path, make: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let next = files::temporary_path(to);
    // An earlier temporary file may be a link to containerd's file.
    files::gone(fs::remove_file(&next))?;
    make(from, &next)?;
    fs::rename(&next, to)?;
    // Renaming a link over another link of the same file does nothing, so the temporary name may still exist.
    files::gone(fs::remove_file(&next))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    const IMAGE: &str = "registry.example.com/node:v1";

    /// Returns an image's directory and a worker's directory inside one temporary directory.
    fn image() -> (tempfile::TempDir, PathBuf, Layout) {
        let directory = tempfile::tempdir().unwrap();
        let from = directory.path().join("fs");
        fs::create_dir_all(from.join(PLUGINS)).unwrap();
        fs::create_dir_all(from.join("usr/local/bin")).unwrap();
        fs::write(from.join(KUBELET), "kubelet").unwrap();
        fs::write(from.join(PLUGINS).join("bridge"), "bridge").unwrap();
        let layout = Layout::new(directory.path().join("state"));
        (directory, from, layout)
    }

    fn links(path: &Path) -> u64 {
        fs::metadata(path).unwrap().nlink()
    }

    #[test]
    fn programs_are_linked_and_nothing_is_left_beside_them() {
        let (_directory, from, layout) = image();
        for _ in 0..2 {
            assert!(install(&layout, IMAGE, &from, InstallMethod::Link).unwrap());
            assert_eq!((links(&layout.kubelet()), links(&layout.plugins().join("bridge"))), (2, 2));
            assert_eq!(fs::read_to_string(layout.programs_of()).unwrap(), IMAGE);
            assert_eq!(fs::read_dir(layout.plugins()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_copy_never_writes_to_what_was_linked() {
        let (_directory, from, layout) = image();
        assert!(install(&layout, IMAGE, &from, InstallMethod::Link).unwrap());
        // An install was interrupted before its rename.
        fs::hard_link(from.join(KUBELET), files::temporary_path(&layout.kubelet())).unwrap();
        let next = from.with_file_name("next");
        fs::create_dir_all(next.join(PLUGINS)).unwrap();
        fs::create_dir_all(next.join("usr/local/bin")).unwrap();
        fs::write(next.join(KUBELET), "another").unwrap();
        assert!(install(&layout, IMAGE, &next, InstallMethod::Copy).unwrap());
        assert_eq!(fs::read_to_string(from.join(KUBELET)).unwrap(), "kubelet");
        assert_eq!(fs::read_to_string(layout.kubelet()).unwrap(), "another");
        assert_eq!(links(&layout.kubelet()), 1);
    }

    #[test]
    fn a_program_that_is_a_link_is_copied() {
        let (_directory, from, layout) = image();
        fs::rename(from.join(KUBELET), from.join("kubelet")).unwrap();
        symlink(from.join("kubelet"), from.join(KUBELET)).unwrap();
        assert!(!install(&layout, IMAGE, &from, InstallMethod::Link).unwrap());
        assert!(!layout.programs_of().exists());
        assert!(install(&layout, IMAGE, &from, InstallMethod::Copy).unwrap());
        assert_eq!(fs::read_to_string(layout.kubelet()).unwrap(), "kubelet");
    }

    #[test]
    fn an_image_without_a_kubelet_is_an_error() {
        let (_directory, from, layout) = image();
        fs::remove_file(from.join(KUBELET)).unwrap();
        assert!(!install(&layout, IMAGE, &from, InstallMethod::Link).unwrap());
        let error = install(&layout, IMAGE, &from, InstallMethod::Copy).unwrap_err();
        assert!(error.to_string().contains("/usr/local/bin/kubelet"), "{error}");
    }

    #[test]
    fn only_a_snapshot_of_one_layer_is_a_directory() {
        let mount = |options: &[&str]| Mount {
            source: "/snapshots/7/fs".to_owned(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            ..Mount::default()
        };
        let is_directory = |mounts: &[Mount]| directory(mounts).is_some();
        let may = !Path::new(LABELS).exists();
        assert_eq!(is_directory(&[mount(&["ro", "rbind"])]), may);
        assert!(!is_directory(&[mount(&["index=off", "lowerdir=/snapshots/8/fs:/snapshots/7/fs"])]));
        assert!(!is_directory(&[mount(&["ro", "rbind"]), mount(&["ro", "rbind"])]));
        assert!(!is_directory(&[]));
    }
}
