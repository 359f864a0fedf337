//! A container image as a docker-archive: one tar file with a configuration, one layer and a manifest.
//!
//! The same input yields the same bytes: entries are sorted, owned by root and dated 1970, and nothing of the build machine is recorded.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug)]
pub(crate) struct Archive<'a> {
    /// The full name with the tag.
    pub(crate) reference: &'a str,
    /// `Entrypoint` of the configuration.
    pub(crate) entrypoint: &'a [&'static str],
    /// `Cmd` of the configuration.
    pub(crate) command: &'a [&'static str],
    /// `StopSignal` of the configuration, if it is not SIGTERM.
    pub(crate) stop_signal: Option<&'static str>,
    /// Contents of programs and libraries by their absolute path in the image.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The mode of all files.
    pub(crate) mode: u32,
    /// Targets of symbolic links by their absolute path in the image.
    pub(crate) links: &'a [(String, &'static str)],
}

impl Archive<'_> {
    pub(crate) fn write(&self, out: impl Write) -> Result<()> {
        let layer = self.layer().context("write the layer")?;
        let config = self.config(&sha256(&layer)).to_string();
        let config_name = format!("{}.json", sha256(config.as_bytes()));
        let manifest = json!([{
            "Config": config_name,
            "Layers": ["layer.tar"],
            "RepoTags": [self.reference],
        }]);
        let mut tar = Builder::new(out);
        append_file(&mut tar, &config_name, 0o644, config.as_bytes())?;
        append_file(&mut tar, "layer.tar", 0o644, &layer)?;
        append_file(&mut tar, "manifest.json", 0o644, manifest.to_string().as_bytes())?;
        tar.into_inner()?.flush()?;
        Ok(())
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        let links = self.links.iter().map(|(path, _)| path.as_str());
        for (path, mode) in directories(self.files.keys().map(String::as_str).chain(links)) {
            append_directory(&mut tar, &path, mode)?;
        }
        for (path, content) in &self.files {
            append_file(&mut tar, path.trim_start_matches('/'), self.mode, content)?;
        }
        for (path, target) in self.links {
            append_link(&mut tar, path.trim_start_matches('/'), target)?;
        }
        Ok(tar.into_inner()?)
    }

    /// Keys are in alphabetical order, so that their order does not depend on the map type that `serde_json` was built with.
    fn config(&self, layer: &str) -> serde_json::Value {
        let mut config = json!({
            "architecture": architecture(),
            "config": {
                "Cmd": self.command,
                "Entrypoint": self.entrypoint,
                "Env": [PATH],
                "WorkingDir": "/",
            },
            "created": "1970-01-01T00:00:00Z",
            "os": "linux",
            "rootfs": {"diff_ids": [format!("sha256:{layer}")], "type": "layers"},
        });
        if let Some(signal) = self.stop_signal {
            config["config"]["StopSignal"] = json!(signal);
        }
        config
    }
}

/// Returns every directory above a file, parents first, and `/tmp`, which programs expect.
fn directories<'a>(files: impl Iterator<Item = &'a str>) -> BTreeMap<String, u32> {
    let mut directories = BTreeMap::from([("tmp".to_owned(), 0o1777)]);
    for file in files {
        for directory in Path::new(file.trim_start_matches('/')).ancestors().skip(1) {
            if !directory.as_os_str().is_empty() {
                directories.insert(directory.to_string_lossy().into_owned(), 0o755);
            }
        }
    }
    directories
}

fn append_directory(tar: &mut Builder<impl Write>, path: &str, mode: u32) -> Result<()> {
    let mut header = header(mode);
    header.set_entry_type(EntryType::Directory);
    header.set_size(0);
    tar.append_data(&mut header, format!("{path}/"), std::io::empty())?;
    Ok(())
}

fn append_file(tar: &mut Builder<impl Write>, path: &str, mode: u32, content: &[u8]) -> Result<()> {
    let mut header = header(mode);
    header.set_entry_type(EntryType::Regular);
    header.set_size(content.len() as u64);
    tar.append_data(&mut header, path, content).with_context(|| format!("append {path}"))
}

fn append_link(tar: &mut Builder<impl Write>, path: &str, target: &str) -> Result<()> {
    let mut header = header(0o777);
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    tar.append_link(&mut header, path, target).with_context(|| format!("append {path}"))
}

fn header(mode: u32) -> Header {
    let mut header = Header::new_ustar();
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Returns the digest in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// Returns the architecture of this machine as image configurations name it, which is Go's name.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use serde_json::Value;

    use super::{Archive, sha256};

    fn written(files: &[(&str, &str)]) -> Vec<u8> {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()));
        let archive = Archive {
            reference: "registry.example.com/a:1",
            entrypoint: &["/a"],
            command: &[],
            stop_signal: None,
            files: files.collect(),
            mode: 0o755,
            links: &[("/bin/b".to_owned(), "../a")],
        };
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        bytes
    }

    fn entries(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut entries = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let header = entry.header();
            assert_eq!(header.mtime().unwrap(), 0);
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            assert!(entries.insert(path, content).is_none());
        }
        entries
    }

    #[test]
    fn equal_files_make_equal_archives() {
        let one = written(&[("/usr/bin/b", "b"), ("/a", "a")]);
        let other = written(&[("/a", "a"), ("/usr/bin/b", "b")]);
        assert_eq!(one, other);
        assert_ne!(one, written(&[("/a", "a"), ("/usr/bin/b", "changed")]));
    }

    #[test]
    fn digests_match_the_content() {
        let entries = entries(&written(&[("/a", "a")]));
        let manifest: Value = serde_json::from_slice(&entries["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "registry.example.com/a:1");
        let config_name = manifest[0]["Config"].as_str().unwrap();
        assert_eq!(config_name, format!("{}.json", sha256(&entries[config_name])));
        let config: Value = serde_json::from_slice(&entries[config_name]).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sha256(&entries["layer.tar"])));
        assert_eq!(config["config"]["Entrypoint"][0], "/a");
    }

    #[test]
    fn a_layer_has_each_directory_before_its_files() {
        let layer = entries(&written(&[("/usr/local/bin/a", "a")])).remove("layer.tar").unwrap();
        let mut paths = Vec::new();
        for entry in tar::Archive::new(layer.as_slice()).entries().unwrap() {
            paths.push(entry.unwrap().path().unwrap().to_string_lossy().into_owned());
        }
        assert_eq!(paths, ["bin/", "tmp/", "usr/", "usr/local/", "usr/local/bin/", "usr/local/bin/a", "bin/b"]);
    }
}
