//! `keelway edit`.

use std::{env, fs, io::Write, path::Path, process::Command};

use anyhow::Context;
use keelway_manager_client::client::DocumentSelection;
use tempfile::Builder;

use super::{apply::line, client, failed, names};
use crate::{
    args::NamedArguments,
    commands::{print, session::runtime},
    exit::{Code, CommandFailure},
};

pub(in crate::commands) fn run(arguments: &NamedArguments) -> Result<Code, CommandFailure> {
    let names = names(arguments)?;
    let runtime = runtime()?;
    let mut client = client(&runtime, &arguments.server);
    let before = runtime.block_on(client.get(&DocumentSelection { kinds: Vec::new(), names })).map_err(failed)?;
    let mut file = Builder::new().prefix("keelway-edit-").suffix(".yaml").tempfile().map_err(CommandFailure::other)?;
    file.write_all(&before).map_err(CommandFailure::other)?;
    ask(file.path())?;
    let after = fs::read(file.path()).context("could not read the edited file").map_err(CommandFailure::other)?;
    if after == before {
        let _ = writeln!(std::io::stderr(), "Edit cancelled, no changes made.");
        return Ok(Code::Done);
    }
    match runtime.block_on(client.apply(after)) {
        Ok(applied) => print(&applied.iter().map(line).collect::<String>()).map(|()| Code::Done),
        Err(error) => {
            // Keep the user's edits.
            let (_, kept) = file.keep().map_err(CommandFailure::other)?;
            let _ = writeln!(std::io::stderr(), "your edits are stored in {}", kept.display());
            Err(failed(error))
        }
    }
}

/// Opens a file in the editor that kubectl would use.
fn ask(file: &Path) -> Result<(), CommandFailure> {
    let named = ["KEELWAY_EDITOR", "VISUAL", "EDITOR"].into_iter().filter_map(env::var_os);
    let editor = named.into_iter().find(|editor| !editor.is_empty()).unwrap_or_else(|| "vi".into());
    // The variable can contain arguments, quoted for a shell.
    let mut line = editor.clone();
    line.push(" \"$0\"");
    let status = Command::new("sh").arg("-c").arg(line).arg(file).status();
    let status =
        status.with_context(|| format!("could not start {}", editor.display())).map_err(CommandFailure::other)?;
    if status.success() {
        return Ok(());
    }
    Err(CommandFailure::usage(format!("the editor failed: {status}"), "nothing was changed"))
}
