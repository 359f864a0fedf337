//! Replacing files while other processes read them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Replaces the content of a file atomically. A reader sees all of the old or all of the new content, even after a crash of the machine.
/// A new file gets this mode.
///
/// # Errors
/// The temporary file beside it cannot be written, or cannot be renamed.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let next = temporary_path(path);
    write(&next, content, mode)?.sync_all()?;
    fs::rename(&next, path)?;
    // The rename must be on disk, too, before anything relies on it.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Replaces a file atomically, but without syncing: after a crash of the machine, its content is undefined. For content that is not needed
/// after a crash.
///
/// # Errors
/// The temporary file beside it cannot be written, or cannot be renamed.
pub fn replace_volatile(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let next = temporary_path(path);
    write(&next, content, mode)?;
    fs::rename(&next, path)
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(content)?;
    Ok(file)
}

/// Returns the path of the temporary file that holds a file's next content.
#[must_use]
pub fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for content in ["old and long", "new"] {
            replace(&path, content.as_bytes(), 0o600).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        replace_volatile(&path, b"for now", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "for now");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(&folder.path().join("gone/a"), b"", 0o600).is_err());
    }
}
