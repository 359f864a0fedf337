//! `keelway kubectl-install`.

use std::{
    env, fs, io,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use clap::Args;

use super::print;
use crate::exit::{Code, CommandFailure};

/// kubectl runs the program with this name for `kubectl keelway`.
const PLUGIN: &str = "kubectl-keelway";

#[derive(Args)]
pub(crate) struct KubectlInstallArguments {
    /// A directory of PATH [default: that of this program]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) directory: Option<PathBuf>,
}

pub(super) fn run(arguments: &KubectlInstallArguments) -> Result<Code, CommandFailure> {
    let program = env::current_exe().map_err(CommandFailure::other)?;
    let directory = arguments.directory.as_deref().or_else(|| program.parent()).unwrap_or(Path::new("/"));
    let plugin = directory.join(PLUGIN);
    match symlink(&program, &plugin) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_same(&plugin, &program) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let problem = format!("{} exists, and is not a link to {}", plugin.display(), program.display());
            return Err(CommandFailure::usage(problem, "remove it, or set --directory"));
        }
        Err(error) => {
            let problem = format!("cannot create the link {}: {error}", plugin.display());
            return Err(CommandFailure::usage(
                problem,
                "set --directory to a directory of PATH in which you may write",
            ));
        }
    }
    print(&format!("{}\n", plugin.display()))?;
    if !is_searched(directory) {
        let _ = writeln!(
            io::stderr(),
            "kubectl searches PATH, which does not contain {0}: export PATH=\"$PATH:{0}\"",
            directory.display()
        );
    }
    Ok(Code::Done)
}

/// Whether both paths lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

fn is_searched(directory: &Path) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|searched| searched == directory || is_same(&searched, directory))
}
