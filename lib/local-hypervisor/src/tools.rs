//! Finds the programs that machines need.

use core::fmt;
use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{LocalHypervisorError, prepared_images::PREPARED};

/// The first containerd that supports the version of the configuration that this crate writes.
const OLDEST_CONTAINERD: u32 = 2;

/// The search path of programs.
#[derive(Debug, Clone)]
pub struct ProgramSearch {
    /// The directory of programs that were built for Keelway. It is searched before `path`, and need not exist.
    pub cache_bin: PathBuf,
    /// The value of `PATH`.
    pub path: OsString,
}

/// A missing program. `Display` contains help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingProgram {
    /// The program was not found.
    Program {
        /// The name of the program.
        name: &'static str,
        /// Debian's package, if it has one that is new enough.
        package: Option<&'static str>,
    },
    /// The program is too old.
    TooOld {
        /// The path of the program.
        path: PathBuf,
        /// The version that the program reports.
        version: String,
    },
}

impl fmt::Display for MissingProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program { name, package: Some(package) } => {
                write!(f, "`{name}` is not in PATH; run `make setup`, or `apt-get install {package}`")
            }
            Self::Program { name, package: None } => write!(
                f,
                "`{name}` {OLDEST_CONTAINERD}.0 or newer is neither in Keelway's cache nor in PATH; run `cargo xtask images`, or install containerd"
            ),
            Self::TooOld { path, version } => write!(
                f,
                "{} has version {version}, but {OLDEST_CONTAINERD}.0 or newer is required; run `cargo xtask images`, or install a newer containerd",
                path.display()
            ),
        }
    }
}

/// The programs that were found.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) containerd: PathBuf,
    /// The real paths of the directories with containerd, its shim and runc.
    pub(crate) directories: Vec<PathBuf>,
    /// The real path of the images that new machines share, if there are any.
    pub(crate) prepared_images: Option<PathBuf>,
}

impl ProgramSearch {
    /// Finds all programs, or returns all that are missing.
    pub(crate) fn tools(&self) -> Result<Tools, LocalHypervisorError> {
        let mut missing = Vec::new();
        let mut needed = |name, package| {
            let found = self.find(name);
            if found.is_none() {
                missing.push(MissingProgram::Program { name, package });
            }
            found
        };
        needed("ip", Some("iproute2"));
        let runc = needed("runc", Some("runc"));
        let shim = needed("containerd-shim-runc-v2", None);
        let containerd = needed("containerd", None);
        if let Some(path) = &containerd {
            missing.extend(too_old(path)?);
        }
        let (Some(containerd), Some(shim), Some(runc), []) = (containerd, shim, runc, &missing[..]) else {
            return Err(LocalHypervisorError::Missing(missing));
        };
        let mut directories = vec![directory(&containerd)?, directory(&shim)?, directory(&runc)?];
        directories.dedup();
        let prepared_images = self.cache_bin.parent().and_then(|cache| cache.join(PREPARED).canonicalize().ok());
        Ok(Tools { containerd, directories, prepared_images })
    }

    fn find(&self, name: &str) -> Option<PathBuf> {
        let in_path = env::split_paths(&self.path);
        let places = core::iter::once(self.cache_bin.clone()).chain(in_path);
        places.filter(|place| place.is_absolute()).map(|place| place.join(name)).find(|path| is_executable(path))
    }
}

fn too_old(containerd: &Path) -> Result<Option<MissingProgram>, LocalHypervisorError> {
    let output = Command::new(containerd)
        .arg("--version")
        .output()
        .map_err(|source| LocalHypervisorError::Spawn { program: containerd.to_owned(), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = version(&text).unwrap_or("unknown");
    let is_new = major(version).is_some_and(|major| major >= OLDEST_CONTAINERD);
    Ok((!is_new).then(|| MissingProgram::TooOld { path: containerd.to_owned(), version: version.to_owned() }))
}

/// Parses `containerd github.com/containerd/containerd/v2 v2.4.2 REVISION`.
fn version(text: &str) -> Option<&str> {
    Some(text.split_whitespace().nth(2)?.trim_start_matches('v'))
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// Returns the real path of a program's directory, which may have been found through a link.
fn directory(program: &Path) -> Result<PathBuf, LocalHypervisorError> {
    let parent = program.parent().unwrap_or(Path::new("/"));
    parent.canonicalize().map_err(LocalHypervisorError::file("resolve", parent))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

impl Tools {
    /// Returns the `PATH` inside a machine.
    pub(crate) fn path(&self) -> String {
        let system = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        let own = self.directories.iter().map(|path| path.as_os_str());
        let all: Vec<&OsStr> = own.chain(system.map(OsStr::new)).collect();
        all.join(OsStr::new(":")).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_builds_print_them() {
        let major_of = |text: &str| major(version(text).unwrap());
        let module = "containerd github.com/containerd/containerd/v2 v2.4.2 ";
        let bare = "containerd github.com/containerd/containerd/v2 2.4.2+unknown";
        let debian = "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1";
        assert_eq!(major_of(module), Some(2));
        assert_eq!(major_of(bare), Some(2));
        assert_eq!(major_of(debian), Some(1));
    }

    #[test]
    fn all_missing_programs_are_reported_at_once() {
        let search = ProgramSearch { cache_bin: "/nonexistent".into(), path: OsString::new() };
        let error = search.tools().unwrap_err().to_string();
        for name in ["ip", "runc", "containerd-shim-runc-v2", "containerd"] {
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
    }
}
