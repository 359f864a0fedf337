//! Private containerds and small images for live tests of this crate and of others.
//!
//! The name of everything that a test leaves on the machine contains the test's name, its process id and the start time of that process. The next
//! test uses this to remove what a killed test left.

mod archive;
mod containerd;
mod leftovers;
mod process;
mod program;
mod served;

use std::{env, io, path::PathBuf};

pub use archive::ImageArchive;
pub use containerd::{Containerd, ContainerdOptions};
pub use program::{PROGRAM, build_program};
pub use served::ServedFake;

/// Returns the directory of files that tests need and builds do not produce: `bin/containerd`, `bin/containerd-shim-runc-v2`, `images/`.
///
/// The directory is `KEELWAY_CACHE`, or `keelway` in the user's cache directory.
pub fn cache() -> io::Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("KEELWAY_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("keelway")))
        .or_else(|| Some(set("HOME")?.join(".cache/keelway")))
        .ok_or_else(|| io::Error::other("neither KEELWAY_CACHE nor XDG_CACHE_HOME nor HOME is set"))
}
