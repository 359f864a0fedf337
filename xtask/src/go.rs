//! Builds programs from Go modules without a clone: a generated module requires the modules of the programs.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process;
use crate::progress::ProgressStep;
use crate::table::GoBuild;

/// The language version that the generated module declares: the newest that any of the programs requires.
const GO: &str = "1.26";
/// The first minor version of Go that downloads the required toolchain itself, or reports why it cannot.
const SELECTS_TOOLCHAIN: u32 = 21;

/// A module whose dependencies are all downloaded.
#[derive(Debug)]
pub(crate) struct PreparedModule {
    pub(crate) build: GoBuild,
    programs: BTreeSet<&'static str>,
    directory: PathBuf,
    packages: usize,
}

/// Returns an error with instructions if Go is missing or too old.
pub(crate) fn check() -> Result<()> {
    let help = format!(
        "install Go {GO} or newer (https://go.dev/dl) and have it in PATH; \
         where images can be pulled, `--pull` builds none"
    );
    let Ok(version) = process::output(Command::new("go").args(["env", "GOVERSION"])) else {
        bail!("`go`, which builds the programs, is not in PATH: {help}");
    };
    let minor = version.trim().strip_prefix("go1.").and_then(|rest| rest.split('.').next());
    let minor = minor.and_then(|minor| minor.parse::<u32>().ok());
    ensure!(
        minor.is_none_or(|minor| minor >= SELECTS_TOOLCHAIN),
        "{}, which builds the programs, is too old: {help}",
        version.trim()
    );
    Ok(())
}

/// Writes the module and downloads the dependencies of its programs.
pub(crate) fn prepare(build: GoBuild, programs: BTreeSet<&'static str>, directory: PathBuf) -> Result<PreparedModule> {
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let file = directory.join("go.mod");
    fs::write(&file, go_mod(build)?).with_context(|| format!("write {}", file.display()))?;
    let mut list = go(&directory);
    list.args(["list", "-mod=mod", "-deps"]).args(programs.iter().any(|program| is_test(program)).then_some("-test"));
    list.args(packages(build, programs.iter().copied()));
    let packages =
        process::output(&mut list).with_context(|| format!("download the modules of {build}"))?.lines().count();
    Ok(PreparedModule { build, programs, directory, packages })
}

impl PreparedModule {
    /// Builds the programs and returns the directory that contains them, each under its own name.
    pub(crate) fn build(&self, step: &mut ProgressStep) -> Result<PathBuf> {
        let out = self.directory.join("out");
        fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
        self.compile(&out, step).with_context(|| format!("build {}", self.build))?;
        for program in &self.programs {
            let built = out.join(self.build.built_name(program));
            fs::rename(&built, out.join(program)).with_context(|| format!("find {}", built.display()))?;
        }
        Ok(out)
    }

    /// Compiles the programs and then the test programs.
    fn compile(&self, out: &Path, step: &mut ProgressStep) -> Result<()> {
        let (tests, programs): (Vec<_>, Vec<_>) = self.programs.iter().copied().partition(|program| is_test(program));
        if !programs.is_empty() {
            self.run(&["build"], &format!("{}/", out.display()), &programs, step)?;
        }
        for test in tests {
            self.run(&["test", "-c"], &out.join(test).display().to_string(), &[test], step)?;
        }
        Ok(())
    }

    /// With `-v`, `go` prints each package that it compiles. It omits packages that are in Go's build cache.
    fn run(&self, task: &[&str], out: &str, programs: &[&str], step: &mut ProgressStep) -> Result<()> {
        let mut child = go(&self.directory)
            .args(task)
            .args(["-v", "-mod=mod", "-trimpath", "-ldflags"])
            .arg(self.build.ldflags())
            .args(["-o", out])
            .args(packages(self.build, programs.iter().copied()))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("run go")?;
        let lines = lines(child.stderr.take().context("read what go writes")?);
        let mut said: Vec<String> = Vec::new();
        let detail = |compiled| move || format!("{compiled} of {} packages", self.packages);
        while let Ok(line) = step.until(&lines, detail(said.len())) {
            said.push(line);
            step.show(detail(said.len()));
        }
        finish(child, &said)
    }
}

fn finish(mut child: Child, said: &[String]) -> Result<()> {
    let status = child.wait().context("wait for go")?;
    ensure!(status.success(), "go: {status}\n{}", process::tail(said.iter().map(String::as_str)));
    Ok(())
}

/// Sends the lines of a program as they are written. The channel closes after the last line.
fn lines(stderr: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn go(directory: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(directory).env("CGO_ENABLED", "0").env("GOWORK", "off");
    go
}

fn packages<'a>(build: GoBuild, programs: impl Iterator<Item = &'a str>) -> Vec<String> {
    programs.map(|program| build.package(program)).collect()
}

/// Returns whether a program is a test program, which Go names `PACKAGE.test`.
fn is_test(program: &str) -> bool {
    program.strip_suffix(".test").is_some()
}

/// Returns the path of a file in the module of a build, which is downloaded if it is missing.
pub(crate) fn module_file(build: GoBuild, path: &str) -> Result<PathBuf> {
    let module = build.modules().first().context("find the module")?;
    Ok(PathBuf::from(downloaded(module, build.version(), "Dir")?).join(path))
}

fn go_mod(build: GoBuild) -> Result<String> {
    let version = build.version();
    let mut text = format!("module keelway.dev/images\n\ngo {GO}\n\n");
    for module in build.modules() {
        let _ = writeln!(text, "require {module} v{version}");
    }
    if let Some(staging) = build.staging_version() {
        for module in build.modules() {
            let published = published_go_mod(module, version)?;
            for dependency in unversioned(&published) {
                let _ = writeln!(text, "require {dependency} {staging}");
                let _ = writeln!(text, "replace {dependency} => {dependency} {staging}");
            }
        }
    }
    Ok(text)
}

/// Returns the go.mod file of a published module.
fn published_go_mod(module: &str, version: &str) -> Result<String> {
    let path = downloaded(module, version, "GoMod")?;
    fs::read_to_string(&path).with_context(|| format!("read {path}"))
}

/// Downloads a module, and returns a field of Go's answer.
fn downloaded(module: &str, version: &str, field: &str) -> Result<String> {
    let mut download = Command::new("go");
    download.args(["mod", "download", "-json", &format!("{module}@v{version}")]).env("GOWORK", "off");
    let answer = process::output(&mut download).with_context(|| format!("download {module}"))?;
    let answer: Value = serde_json::from_str(&answer).context("read what go downloaded")?;
    let path = answer[field].as_str().with_context(|| format!("find {field} of {module}"))?;
    Ok(path.to_owned())
}

/// Returns the modules that are required as `v0.0.0`, a version that does not exist.
fn unversioned(go_mod: &str) -> BTreeSet<&str> {
    go_mod
        .lines()
        .filter_map(|line| {
            let requirement = line.trim().trim_start_matches("require ");
            requirement.strip_suffix(" v0.0.0")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::unversioned;

    #[test]
    fn modules_without_a_version_are_found() {
        let go_mod = "require (\n\tk8s.io/api v0.0.0\n\tk8s.io/utils v0.0.0-20260101000000-abc\n)\n\
                      require k8s.io/kubelet v0.0.0\n";
        assert_eq!(unversioned(go_mod), BTreeSet::from(["k8s.io/api", "k8s.io/kubelet"]));
    }
}
