//! The images that new machines share. `cargo xtask images` imports them once into a directory of the cache, as the root of a containerd. A new
//! machine gets copies of its databases, and links to its layers, which containerd only reads.

use std::{fs, os::unix::fs::symlink, path::Path};

use crate::{
    LocalHypervisorError,
    files::{make_dir, remove_tree},
    fleet::FleetMachine,
};

/// The path of the prepared images, relative to the cache.
pub(crate) const PREPARED: &str = "containerd/current";

/// Files of a containerd root that each machine changes.
const DATABASES: [&str; 2] =
    ["io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"];
/// Directories whose entries no containerd changes. A machine that removes an image removes its own links.
const CONTENT: [&str; 2] =
    ["io.containerd.content.v1.content/blobs/sha256", "io.containerd.snapshotter.v1.overlayfs/snapshots"];

/// Gives a machine without a containerd root the images. The root is there as a whole or not at all.
pub(crate) fn share(machine: &FleetMachine, prepared: &Path) -> Result<(), LocalHypervisorError> {
    let (whole, root) = (machine.lib().join("containerd"), machine.lib().join("containerd.new"));
    if whole.exists() {
        return Ok(());
    }
    remove_tree(&root)?;
    for file in DATABASES {
        let (from, to) = (prepared.join(file), root.join(file));
        make_dir(to.parent().unwrap_or(&root), 0o700)?;
        fs::copy(&from, &to).map_err(LocalHypervisorError::file("copy", from))?;
    }
    for directory in CONTENT {
        let (from, to) = (prepared.join(directory), root.join(directory));
        make_dir(&to, 0o700)?;
        for entry in fs::read_dir(&from).map_err(LocalHypervisorError::file("read", &from))? {
            let entry = entry.map_err(LocalHypervisorError::file("read", &from))?;
            let link = to.join(entry.file_name());
            symlink(entry.path(), &link).map_err(LocalHypervisorError::file("link", link))?;
        }
    }
    fs::rename(&root, &whole).map_err(LocalHypervisorError::file("move", root))
}
