//! Programs from Debian packages, with the shared libraries that they need.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process;

/// Returns the program and all files that the loader maps for it, including the loader, under the paths by which they are looked up.
pub(crate) fn closure(program: &Path) -> Result<Vec<PathBuf>> {
    ensure!(program.is_file(), "{} does not exist; install it with `make setup`", program.display());
    let listing = process::output(Command::new("ldd").arg(program))?;
    let mut files = vec![PathBuf::from(program)];
    files.extend(libraries(&listing));
    Ok(files)
}

/// Returns a text that changes if one of the files changes. The files are not read: their sizes and modification times are compared.
pub(crate) fn fingerprint(files: &[PathBuf]) -> Result<String> {
    let mut lines = String::new();
    for file in files {
        let metadata = fs::metadata(file).with_context(|| format!("look at {}", file.display()))?;
        let (path, size, date) = (file.display(), metadata.len(), metadata.mtime());
        let _ = writeln!(lines, "{path} {size} {date}");
    }
    Ok(lines)
}

/// Returns an error if the installed package does not have the version that the image's name contains.
pub(crate) fn check_version(package: &str, wanted: &str) -> Result<()> {
    let installed = process::output(Command::new("dpkg-query").args(["-W", "-f=${Version}", package]))?;
    ensure!(
        upstream(&installed) == wanted,
        "package {package} has version {installed}, but the table of releases has {wanted}"
    );
    Ok(())
}

/// Lines of `ldd` are `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader. The kernel's vDSO has no path.
fn libraries(listing: &str) -> impl Iterator<Item = PathBuf> {
    listing.lines().filter_map(|line| {
        let found = line.rsplit("=> ").next().unwrap_or(line).trim();
        let path = found.split(" (").next().unwrap_or(found);
        path.starts_with('/').then(|| PathBuf::from(path))
    })
}

/// Returns the version of a package without Debian's epoch and revision.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version.rsplit_once('-').map_or(version, |(upstream, _)| upstream)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{libraries, upstream};

    #[test]
    fn libraries_are_read_from_ldd() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                       \tlibssl.so.3 => /lib/x86_64-linux-gnu/libssl.so.3 (0x00007f01)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";
        let found: Vec<PathBuf> = libraries(listing).collect();
        let wanted = ["/lib/x86_64-linux-gnu/libssl.so.3", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(found, wanted.map(PathBuf::from));
    }

    #[test]
    fn a_version_omits_the_debian_revision() {
        assert_eq!(upstream("2.6.12-1+deb12u4"), "2.6.12");
        assert_eq!(upstream("1:1.4.7-1+b2"), "1.4.7");
        assert_eq!(upstream("3.0"), "3.0");
    }
}
