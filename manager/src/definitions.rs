//! Writes the CustomResourceDefinitions of Keelway.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use anyhow::Context;
use keelway_api::crd::{crds, manifest};

/// Writes the definitions to stdout, or each into a file of this directory.
pub(crate) fn write(directory: Option<&Path>) -> anyhow::Result<()> {
    let Some(directory) = directory else {
        let manifests: Vec<String> = crds().iter().map(manifest).collect();
        return io::stdout().write_all(manifests.join("---\n").as_bytes()).context("could not write to stdout");
    };
    fs::create_dir_all(directory).with_context(|| format!("could not create {}", directory.display()))?;
    for definition in crds() {
        let name = definition.metadata.name.as_deref().unwrap_or_default();
        let path = directory.join(format!("{name}.yaml"));
        fs::write(&path, manifest(&definition)).with_context(|| format!("could not write {}", path.display()))?;
    }
    Ok(())
}
