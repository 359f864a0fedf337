//! Release builds: each program is one static file that runs on any Linux of its architecture. `cargo xtask agent` and the packages use them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{elf, process::output};

const AGENT: &str = "keelway-hypervisor-agent";
const MANAGER: &str = "keelway-manager";
/// The programs that are released without shared libraries.
const SHIPPED: [&str; 5] =
    [AGENT, "keelway-cluster-controller", "keelway-fleet-controller", "keelway-fleet-agent", MANAGER];

/// Builds all static programs and returns their paths in `dist` of the target directory.
pub(crate) fn build_all() -> Result<Vec<PathBuf>> {
    SHIPPED.into_iter().map(|name| shipped(&build_static(name)?)).collect()
}

/// Builds the agent only.
pub(crate) fn build() -> Result<PathBuf> {
    shipped(&build_static(AGENT)?)
}

/// Builds the manager only.
pub(crate) fn build_manager() -> Result<PathBuf> {
    shipped(&build_static(MANAGER)?)
}

/// Builds the programs of fleets only.
pub(crate) fn build_fleet() -> Result<()> {
    ["keelway-fleet-controller", "keelway-fleet-agent"]
        .into_iter()
        .try_for_each(|name| shipped(&build_static(name)?).map(drop))
}

/// Builds every program of the workspace with shared libraries. Tests and `images` use these.
pub(crate) fn build_workspace() -> Result<()> {
    run(cargo().args(["build", "--workspace"]))
}

/// Returns the path of a program that [`build_workspace`] built.
pub(crate) fn built(name: &str) -> Result<PathBuf> {
    Ok(target()?.join("debug").join(name))
}

/// Builds a released program without shared libraries.
fn build_static(name: &str) -> Result<PathBuf> {
    let host = host()?;
    // Build scripts and procedural macros are shared libraries. Cargo leaves these flags out for them only if a target is named.
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", host.to_uppercase().replace('-', "_"));
    run(cargo()
        .args(["build", "--quiet", "--release", "--package", name, "--target", &host])
        .env(flags, "-C target-feature=+crt-static"))?;
    let program = target()?.join(&host).join("release").join(name);
    let bytes = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
    ensure!(!elf::has_loader(&bytes)?, "{} requires shared libraries", program.display());
    Ok(program)
}

/// Builds `keelway` in release mode and copies it to the directory of the static agent.
pub(crate) fn keelway() -> Result<PathBuf> {
    run(cargo().args(["build", "--release", "--package", "keelway-cli"]))?;
    shipped(&target()?.join("release/keelway"))
}

/// Replaces the program by a rename, because the previous one may be running.
fn shipped(built: &Path) -> Result<PathBuf> {
    let name = built.file_name().context("a program has a name")?;
    let directory = target()?.join("dist");
    fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
    let (next, program) = (directory.join(".next"), directory.join(name));
    fs::copy(built, &next).with_context(|| format!("copy {}", built.display()))?;
    fs::rename(&next, &program).with_context(|| format!("write {}", program.display()))?;
    Ok(program)
}

/// Returns the target that rustc builds for by default.
fn host() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = output(Command::new(rustc).arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc did not print its host")?.to_owned())
}

pub(crate) fn workspace() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is in the workspace")
}

fn target() -> Result<PathBuf> {
    let named = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(workspace()?.join(named))
}

/// Returns a command that runs Cargo in the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    command
}

/// Runs a program whose output is for people.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("run {program}"))?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}
