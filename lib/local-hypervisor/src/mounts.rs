//! The mount table of the calling thread.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::mount::{UnmountFlags, unmount};

use crate::LocalHypervisorError;

const TABLE: &str = "/proc/thread-self/mountinfo";

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountPoint {
    pub(crate) point: PathBuf,
    /// The type of the file system.
    pub(crate) kind: String,
}

/// Returns all mounts, in the order in which they were made.
pub(crate) fn all() -> Result<Vec<MountPoint>, LocalHypervisorError> {
    let text = fs::read_to_string(TABLE).map_err(LocalHypervisorError::file("read", TABLE))?;
    Ok(text.lines().filter_map(parse).collect())
}

/// Unmounts all mounts at or below a directory, in reverse order.
pub(crate) fn unmount_below(directory: &Path) -> Result<(), LocalHypervisorError> {
    for mount in all()?.into_iter().rev() {
        if mount.point.starts_with(directory) {
            unmount(&mount.point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
                .map_err(LocalHypervisorError::file("unmount", mount.point))?;
        }
    }
    Ok(())
}

/// Parses a line of `proc_pid_mountinfo(5)`.
fn parse(line: &str) -> Option<MountPoint> {
    let (mount, file_system) = line.split_once(" - ")?;
    Some(MountPoint { point: unescape(mount.split(' ').nth(4)?), kind: file_system.split(' ').next()?.to_owned() })
}

/// Decodes blanks and backslashes, which are octal in the table: `\040`.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .and_then(|digits| core::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        let (byte, after) = match (first, octal) {
            (b'\\', Some(byte)) => (byte, &tail[3..]),
            (plain, _) => (*plain, tail),
        };
        bytes.push(byte);
        rest = after;
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_with_and_without_optional_fields() {
        let plain = "29 23 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu";
        let shared = r"36 35 98:0 /x /a\040b\134c rw shared:1 master:2 - ext4 /dev/x rw";
        let mount = |point: &str, kind: &str| Some(MountPoint { point: point.into(), kind: kind.into() });
        assert_eq!(parse(plain), mount("/sys/fs/cgroup/cpu", "cgroup"));
        assert_eq!(parse(shared), mount(r"/a b\c", "ext4"));
    }
}
