//! `keelway completion`.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::print;
use crate::{
    args::CliArguments,
    exit::{Code, CommandFailure},
};

pub(super) fn run(shell: Shell) -> Result<Code, CommandFailure> {
    let mut script = Vec::new();
    generate(shell, &mut CliArguments::command(), "keelway", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Code::Done)
}
