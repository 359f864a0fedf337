//! The programs of an image in a directory of their own, until they replace those of the worker.

use std::{
    fs, io,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use keelway_cri::CriRuntime;

use super::{UpgradeError, remove_directory};
use crate::{
    files::{self, NodeFileError},
    image::{self, ContainerdSettings, ImageError},
    process,
    settings::Layout,
    version_skew::KubernetesVersion,
};

/// How long a child of another thread may take to run its own program.
const BUSY: Duration = Duration::from_secs(2);
/// Nothing reports when the file is free.
const LOOK: Duration = Duration::from_millis(10);

/// Programs that no process uses yet.
pub(super) struct StagedPrograms {
    layout: Layout,
}

impl StagedPrograms {
    /// Pulls the image if it is absent, and extracts its programs.
    pub(super) async fn take(
        layout: &Layout,
        runtime: &CriRuntime,
        settings: &ContainerdSettings,
        image: &str,
    ) -> Result<Self, ImageError> {
        let staged = Self { layout: layout.staged() };
        remove_directory(staged.layout.root())?;
        files::make_dir(staged.layout.root(), 0o700)?;
        image::pull(layout, runtime, image).await?;
        image::take(&staged.layout, runtime, settings, image).await?.remove().await;
        Ok(staged)
    }

    /// Returns the version that the kubelet reports.
    pub(super) fn version(&self, image: &str) -> Result<KubernetesVersion, UpgradeError> {
        let mut command = Command::new(self.layout.kubelet());
        process::clear_environment(&mut command);
        let failed = |reason: String| UpgradeError::Version { image: image.to_owned(), reason };
        let output = run_written(command.arg("--version")).map_err(|error| failed(error.to_string()))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let version = stdout.trim().strip_prefix("Kubernetes ").and_then(KubernetesVersion::parse);
        version.ok_or_else(|| failed([stdout.trim(), String::from_utf8_lossy(&output.stderr).trim()].concat()))
    }

    /// Replaces the worker's programs, and records their image last. A running kubelet keeps its own file.
    pub(super) fn adopt(self, layout: &Layout, image: &str) -> Result<(), NodeFileError> {
        files::remove(&layout.programs_of())?;
        files::make_dir(&layout.plugins(), 0o755)?;
        let plugins = fs::read_dir(self.layout.plugins()).map_err(NodeFileError::new("list", self.layout.plugins()))?;
        let plugins = plugins.flatten().map(|plugin| (plugin.path(), layout.plugins().join(plugin.file_name())));
        for (from, to) in plugins.chain([(self.layout.kubelet(), layout.kubelet())]) {
            fs::rename(&from, &to).map_err(NodeFileError::new("replace", &to))?;
        }
        files::write(&layout.programs_of(), image, 0o600)?;
        self.remove()
    }

    pub(super) fn remove(self) -> Result<(), NodeFileError> {
        remove_directory(self.layout.root())
    }
}

/// Runs a program that was just written. A child that another thread starts in this moment holds the file open for writing until it runs its own program
/// (`ETXTBSY` of execve(2)).
fn run_written(command: &mut Command) -> io::Result<Output> {
    let deadline = Instant::now() + BUSY;
    loop {
        match command.output() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                thread::park_timeout(LOOK);
            }
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn staged(kubelet: &str) -> (tempfile::TempDir, Layout, StagedPrograms) {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let staged = StagedPrograms { layout: layout.staged() };
        for (of, content) in [(&layout, "old"), (&staged.layout, kubelet)] {
            fs::create_dir_all(of.plugins()).unwrap();
            fs::write(of.kubelet(), content).unwrap();
            fs::write(of.plugins().join("bridge"), content).unwrap();
            fs::write(of.programs_of(), content).unwrap();
            fs::set_permissions(of.kubelet(), fs::Permissions::from_mode(0o755)).unwrap();
        }
        (directory, layout, staged)
    }

    #[test]
    fn a_running_kubelet_keeps_its_file_and_nothing_is_left() {
        let (_directory, layout, staged) = staged("new");
        let running = fs::File::open(layout.kubelet()).unwrap();
        staged.adopt(&layout, "node:next").unwrap();
        assert_eq!(std::io::read_to_string(running).unwrap(), "old");
        assert_eq!(fs::read_to_string(layout.kubelet()).unwrap(), "new");
        assert_eq!(fs::read_to_string(layout.plugins().join("bridge")).unwrap(), "new");
        assert_eq!(fs::read_to_string(layout.programs_of()).unwrap(), "node:next");
        assert!(!layout.staged().root().exists());
    }

    #[test]
    fn the_kubelet_reports_its_version() {
        let (_directory, _layout, staged) = staged("#!/bin/sh\necho Kubernetes v1.36.3\n");
        assert_eq!(staged.version("node:next").unwrap().to_string(), "1.36.3");
    }

    #[test]
    fn a_kubelet_that_does_not_run_is_reported() {
        let (_directory, _layout, staged) = staged("#!/bin/sh\necho wrong architecture >&2\nexit 1\n");
        let error = staged.version("node:next").unwrap_err().to_string();
        assert!(error.contains("node:next") && error.contains("wrong architecture"), "{error}");
    }
}
