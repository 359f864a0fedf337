//! Private containerds and small images for live tests, of this crate and of others.
//!
//! Everything that a test leaves on the machine is named after it, its process id and that process' start, so that the
//! next one finds and clears what a killed test could not.

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

/// The folder with what tests need and builds do not make: `bin/containerd`, `bin/containerd-shim-runc-v2`, `images/`.
///
/// `KEELWAY_CACHE`, or `keelway` in the user's cache directory.
pub fn cache() -> io::Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("KEELWAY_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("keelway")))
        .or_else(|| Some(set("HOME")?.join(".cache/keelway")))
        .ok_or_else(|| io::Error::other("neither KEELWAY_CACHE nor XDG_CACHE_HOME nor HOME is set"))
}
