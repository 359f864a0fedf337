use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use serde_json::json;
use sha2::{Digest, Sha256};

/// An image with one layer, to be written as a docker-archive: the tar that `docker save` writes.
#[derive(Clone, Debug)]
pub struct ImageArchive {
    name: String,
    entrypoint: Vec<String>,
    files: Vec<(PathBuf, String)>,
}

impl ImageArchive {
    /// Returns an empty image. `name` is a full name, such as `registry.k8s.io/pause:3.10.2`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), entrypoint: Vec::new(), files: Vec::new() }
    }

    /// Sets the program and arguments that the image runs.
    #[must_use]
    pub fn entrypoint(mut self, words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.entrypoint = words.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a file of the machine to the image, executable and owned by root.
    #[must_use]
    pub fn file(mut self, source: impl Into<PathBuf>, path: impl Into<String>) -> Self {
        self.files.push((source.into(), path.into()));
        self
    }

    /// Writes the archive.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let layer = self.layer()?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": { "Entrypoint": self.entrypoint },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex_digest(&layer))] },
        })
        .to_string();
        let config_name = format!("{}.json", hex_digest(config.as_bytes()));
        let manifest = json!([{ "Config": config_name, "RepoTags": [self.name], "Layers": ["layer.tar"] }]);

        let mut archive = tar::Builder::new(File::create(path)?);
        append(&mut archive, &config_name, config.as_bytes())?;
        append(&mut archive, "layer.tar", &layer)?;
        append(&mut archive, "manifest.json", manifest.to_string().as_bytes())?;
        archive.finish()
    }

    fn layer(&self) -> io::Result<Vec<u8>> {
        let mut layer = tar::Builder::new(Vec::new());
        for (source, path) in &self.files {
            append(&mut layer, path.trim_start_matches('/'), &fs::read(source)?)?;
        }
        layer.into_inner()
    }
}

fn append<W: io::Write>(archive: &mut tar::Builder<W>, path: &str, content: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    archive.append_data(&mut header, path, content)
}

fn hex_digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}
