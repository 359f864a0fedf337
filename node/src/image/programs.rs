//! From where an image shows them into the worker's directory.

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

/// Where the image has its programs.
const KUBELET: &str = "usr/local/bin/kubelet";
const PLUGINS: &str = "opt/cni/bin";
/// There where files have labels of `SELinux`.
const LABELS: &str = "/sys/fs/selinux/enforce";

/// How programs come into the worker's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstallMethod {
    /// As another name of containerd's own file: nothing is read or written, and it stays when containerd lets go of its name. Such a file
    /// is never written to, and its mode and owner stay.
    Link,
    /// As a file of its own.
    Copy,
}

/// The directory that a snapshot is, where it is one: a mount of it is another file system as far as links are concerned.
pub(super) fn directory(mounts: &[Mount]) -> Option<&Path> {
    let [only] = mounts else { return None };
    let is_directory = only.options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind"));
    // Another name has the same label, and containers' files have one of theirs.
    (is_directory && !Path::new(LABELS).exists()).then_some(Path::new(&only.source))
}

/// Has the programs that are there. The note of which image they are of comes last. False where they cannot be linked.
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
                tracing::debug!(%error, program = %from.display(), "cannot be linked, and is copied");
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

/// One that is a link itself leads to somewhere in its image.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

/// Has a program in one step, so that one that runs is not written to.
fn have(from: &Path, to: &Path, make: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let next = files::temporary_path(to);
    // What was left there may be containerd's file.
    files::gone(fs::remove_file(&next))?;
    make(from, &next)?;
    fs::rename(&next, to)?;
    // A name does not take the place of another one of the same file, and both stay.
    files::gone(fs::remove_file(&next))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    const IMAGE: &str = "registry.example.com/node:v1";

    /// What an image shows, and a worker's directory, both in one.
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
        // Cut off before it had its place.
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
    fn an_image_without_a_kubelet_is_told_of() {
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
