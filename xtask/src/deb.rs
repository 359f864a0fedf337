//! `cargo xtask deb`: builds the Debian package of the agent. Only `dpkg-deb` is needed.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    agent::{self, workspace},
    process::output,
};

const NAME: &str = "keelway-hypervisor-agent";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAINTAINER: &str = "Keelway maintainers <maintainers@keelway.dev>";

/// Builds the static agent and its package, in the same directory.
pub(crate) fn build() -> Result<PathBuf> {
    let program = agent::build()?;
    package(&program, program.parent().context("a program is in a directory")?, "xz")
}

/// Builds the package of a program and returns its path, `NAME_VERSION_ARCH.deb` in `directory`. `compression` is a name that dpkg knows.
pub(crate) fn package(program: &Path, directory: &Path, compression: &str) -> Result<PathBuf> {
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let staging = Staging::new(directory.join(format!(".{NAME}")))?;
    staging.fill(program)?;
    staging.describe(&architecture)?;
    let path = directory.join(format!("{NAME}_{VERSION}_{architecture}.deb"));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--root-owner-group", &format!("-Z{compression}"), "--build"]).arg(&staging.0).arg(&path);
    output(dpkg.env("SOURCE_DATE_EPOCH", date("%ct")?))?;
    Ok(path)
}

/// Returns the time of the last commit. It is the date of the package, so that one commit always yields the same package.
fn date(format: &str) -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(workspace()?).args(["log", "-1", &format!("--format={format}")]);
    Ok(output(&mut git).context("find the date of the last commit")?.trim().to_owned())
}

/// The file tree of a package. It is removed on drop.
struct Staging(PathBuf);

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Staging {
    fn new(directory: PathBuf) -> Result<Self> {
        if directory.exists() {
            fs::remove_dir_all(&directory).with_context(|| format!("clear {}", directory.display()))?;
        }
        Ok(Self(directory))
    }

    fn fill(&self, program: &Path) -> Result<()> {
        let manifests = workspace()?.join("manifests");
        let read = |name: &str| fs::read(manifests.join(name)).with_context(|| format!("read manifests/{name}"));
        self.put("usr/bin/keelway-hypervisor-agent", &fs::read(program)?, 0o755)?;
        let unit = read("keelway-hypervisor-agent.service")?;
        self.put("usr/lib/systemd/system/keelway-hypervisor-agent.service", &unit, 0o644)?;
        self.put("etc/default/keelway-hypervisor-agent", &read("debian/default")?, 0o644)?;
        self.put("usr/share/doc/keelway-hypervisor-agent/copyright", &read("debian/copyright")?, 0o644)?;
        self.put_zipped("usr/share/doc/keelway-hypervisor-agent/changelog", changelog()?.as_bytes())?;
        self.put_zipped("usr/share/man/man8/keelway-hypervisor-agent.8", manual(program)?.as_bytes())?;
        for script in ["postinst", "prerm", "postrm"] {
            self.put(&format!("DEBIAN/{script}"), &read(&format!("debian/{script}"))?, 0o755)?;
        }
        self.put("DEBIAN/conffiles", b"/etc/default/keelway-hypervisor-agent\n", 0o644)
    }

    /// Writes the metadata for dpkg: `control` with the installed size, and the checksums of the files.
    fn describe(&self, architecture: &str) -> Result<()> {
        let sums = "find . -type f ! -path './DEBIAN/*' -printf '%P\\0' | sort -z | xargs -0 md5sum";
        let sums = output(Command::new("sh").current_dir(&self.0).args(["-c", sums]))?;
        self.put("DEBIAN/md5sums", sums.as_bytes(), 0o644)?;
        let size = "du -k -s --apparent-size --exclude=./DEBIAN . | cut -f 1";
        let size = output(Command::new("sh").current_dir(&self.0).args(["-c", size]))?;
        let control = format!(
            "Package: {NAME}\nVersion: {VERSION}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\nInstalled-Size: {}\n\
             Recommends: containerd (>= 2) | containerd.io (>= 2)\nSection: admin\nPriority: optional\nHomepage: \
             https://keelway.dev\nDescription: keeps the control plane components of a machine running\n Keelway creates and runs \
             Kubernetes control planes on your own machines. This is its\n agent beside a machine's container runtime: it stores \
             the config of the machine,\n and keeps the components running without a driver.\n",
            size.trim()
        );
        self.put("DEBIAN/control", control.as_bytes(), 0o644)
    }

    fn put(&self, path: &str, content: &[u8], mode: u32) -> Result<()> {
        let path = self.0.join(path);
        let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
        let written = folder.and_then(|()| fs::write(&path, content));
        let done = written.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
        done.with_context(|| format!("write {}", path.display()))
    }

    /// Compresses with the best level and without a time stamp, as Debian's policy requires (12.1, 12.7).
    fn put_zipped(&self, path: &str, content: &[u8]) -> Result<()> {
        self.put(path, content, 0o644)?;
        output(Command::new("gzip").arg("-9n").arg(self.0.join(path))).map(|_| ())
    }
}

fn changelog() -> Result<String> {
    let date = date("%cD")?;
    let news = "  * See CHANGELOG.md of Keelway.";
    Ok(format!("{NAME} ({VERSION}) unstable; urgency=medium\n\n{news}\n\n -- {MAINTAINER}  {date}\n"))
}

/// Returns the manual page, which contains the help text of the program.
fn manual(program: &Path) -> Result<String> {
    let help = output(Command::new(program).args(["run", "--help"])).context("ask the agent for its arguments")?;
    let verbatim = |line: &str| line.replace('\\', "\\e").replace('-', "\\-");
    // roff reads a line that starts with a dot or a quote as a request, so each line starts with `\&`.
    let lines = help.lines().map(|line| ["\\&", &verbatim(line)].concat()).collect::<Vec<_>>().join("\n");
    Ok(format!(
        ".TH KEELWAY\\-HYPERVISOR\\-AGENT 8 \"\" \"Keelway {VERSION}\"\n.SH NAME\n{} \\- keeps the control plane components of a \
         machine running\n.SH SYNOPSIS\n.B {0}\nrun [OPTIONS]\n.SH DESCRIPTION\n.nf\n{lines}\n.fi\n.SH FILES\n.TP\n.I \
         /etc/default/{0}\nThe arguments that the systemd unit passes to the agent.\n.TP\n.I /var/lib/keelway\nThe config of the \
         machine, which contains keys and has mode 0600, and the data of its components.\n",
        verbatim(NAME)
    ))
}
