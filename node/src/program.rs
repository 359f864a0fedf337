//! The daemon's program. It is installed where it stays: a download directory may be gone after a reboot, or not be accessible to services.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};

use crate::{
    changes::Changes,
    checks::CheckFault,
    facts,
    files::{self, NodeFileError},
    process,
    settings::Layout,
};

/// The name of the program where `join` installs it.
const NAME: &str = "keelway";

/// A program, and the path of the daemon's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProgramInstallation {
    /// The running program.
    program: PathBuf,
    /// The same path, or the one where the program has to be installed.
    target: PathBuf,
}

impl ProgramInstallation {
    /// A program in `directory`, or in a directory of the system's search path, stays where it is.
    pub(crate) fn of(program: &Path, directory: &Path) -> Self {
        let real = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let is_installed = program.parent().is_some_and(|parent| {
            parent == directory || parent == real || process::PATH.split(':').any(|system| parent == Path::new(system))
        });
        let target = if is_installed { program.to_owned() } else { directory.join(NAME) };
        Self { program: program.to_owned(), target }
    }

    /// Returns the path of the daemon's program.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Returns what prevents the installation.
    pub(crate) fn check(&self, layout: &Layout) -> Result<Option<CheckFault>, NodeFileError> {
        if self.is_done()? {
            return Ok(None);
        }
        let is_own = Changes::read(layout)?.files.contains(&self.target);
        if fs::symlink_metadata(&self.target).is_ok() && !is_own {
            return Ok(Some(self.is_taken()));
        }
        let there = self.target.ancestors().skip(1).find(|above| above.exists()).unwrap_or(Path::new("/"));
        if !facts::is_noexec(there) && access(there, Access::WRITE_OK).is_ok() {
            return Ok(None);
        }
        Ok(Some(self.has_no_place(there)))
    }

    pub(crate) fn is_taken(&self) -> CheckFault {
        let (program, target) = (self.program.display(), self.target.display());
        CheckFault::new(
            format!("{target} is another program or another release than {program}, which would be installed there"),
            format!(
                "replace it with `install -m 755 {program} {target}`, run that one, or set another directory with --install-dir"
            ),
        )
    }

    pub(crate) fn has_no_place(&self, there: &Path) -> CheckFault {
        let (program, target, there) = (self.program.display(), self.target.display(), there.display());
        CheckFault::new(
            format!("{program} cannot be installed as {target}: programs in {there} cannot be written or executed"),
            "set another directory with --install-dir",
        )
    }

    /// Installs the program, which `leave` removes again. A program that was there before stays.
    pub(crate) fn install(&self, layout: &Layout) -> Result<(), NodeFileError> {
        if self.is_done()? {
            return Ok(());
        }
        Changes::make_room(layout, [self.target.as_path()])?;
        let next = files::temporary_path(&self.target);
        let copied = || {
            fs::copy(&self.program, &next)?;
            fs::set_permissions(&next, fs::Permissions::from_mode(0o755))?;
            File::open(&next)?.sync_all()?;
            fs::rename(&next, &self.target)
        };
        copied().map_err(NodeFileError::new("write", &self.target))
    }

    fn is_done(&self) -> Result<bool, NodeFileError> {
        if self.program == self.target {
            return Ok(true);
        }
        is_same(&self.program, &self.target).map_err(NodeFileError::new("read", &self.target))
    }
}

/// Whether both are files with the same content.
fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (one, other) = match (File::open(one)?, File::open(other)) {
        (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        (one, other) => (one, other?),
    };
    let (length, another) = (one.metadata()?.len(), other.metadata()?);
    if !another.is_file() || another.len() != length {
        return Ok(false);
    }
    let (mut one, mut other) = (io::BufReader::new(one), io::BufReader::new(other));
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let count = one.read(&mut left)?;
        if count == 0 {
            return Ok(true);
        }
        other.read_exact(&mut right[..count])?;
        if left[..count] != right[..count] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolated::{in_own_mounts, run};

    /// Returns a directory with a downloaded program, and a worker's layout.
    fn machine() -> (tempfile::TempDir, PathBuf, Layout) {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("keelway-amd64");
        fs::write(&program, "program").unwrap();
        fs::create_dir(root.path().join("state")).unwrap();
        let layout = Layout::new(root.path().join("state"));
        (root, program, layout)
    }

    #[test]
    fn an_installed_program_stays_where_it_is() {
        for path in ["/usr/bin/keelway", "/usr/local/bin/keelway-2", "/opt/keelway/keelway-2"] {
            let installation = ProgramInstallation::of(Path::new(path), Path::new("/opt/keelway"));
            assert_eq!(installation.target(), Path::new(path));
        }
        let installation = ProgramInstallation::of(Path::new("/tmp/keelway-2"), Path::new("/opt/keelway"));
        assert_eq!(installation.target(), Path::new("/opt/keelway/keelway"));
    }

    #[test]
    fn a_program_is_installed_and_replaced_by_a_later_join() {
        let (root, program, layout) = machine();
        let directory = root.path().join("local/bin");
        let installation = ProgramInstallation::of(&program, &directory);
        for content in ["program", "release 2"] {
            fs::write(&program, content).unwrap();
            assert_eq!(installation.check(&layout).unwrap(), None);
            installation.install(&layout).unwrap();
            assert_eq!(fs::read_to_string(directory.join("keelway")).unwrap(), content);
        }
        let mode = fs::metadata(directory.join("keelway")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let changes = Changes::read(&layout).unwrap();
        assert_eq!(changes.files, [directory.join("keelway")]);
        assert_eq!(changes.directories, [root.path().join("local"), directory]);
    }

    #[test]
    fn a_program_of_others_is_neither_replaced_nor_removed() {
        let (root, program, layout) = machine();
        let installation = ProgramInstallation::of(&program, root.path().join("bin").as_path());
        fs::create_dir(root.path().join("bin")).unwrap();
        fs::write(installation.target(), "progrbm").unwrap();
        let fault = installation.check(&layout).unwrap().unwrap();
        assert!(fault.problem.contains("another release") && fault.help.contains("--install-dir"), "{fault}");
        fs::write(installation.target(), "program").unwrap();
        assert_eq!(installation.check(&layout).unwrap(), None);
        installation.install(&layout).unwrap();
        assert_eq!(Changes::read(&layout).unwrap().files, Vec::<PathBuf>::new());
    }

    #[test]
    fn a_directory_without_executable_files_is_refused() {
        in_own_mounts(|root| {
            let (_root, program, layout) = machine();
            for option in ["noexec", "ro"] {
                run("mount", &["-t", "tmpfs", "-o", option, "tmpfs", root.to_str().unwrap()]);
                let installation = ProgramInstallation::of(&program, &root.join("bin"));
                let fault = installation.check(&layout).unwrap().unwrap();
                assert!(fault.problem.contains("cannot be written or executed"), "{option}: {fault}");
            }
        });
    }
}
