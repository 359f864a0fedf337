//! `keelway completion`.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::print;
use crate::{
    args::Arguments,
    exit::{Code, Failure},
};

pub(super) fn run(shell: Shell) -> Result<Code, Failure> {
    let mut script = Vec::new();
    generate(shell, &mut Arguments::command(), "keelway", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Code::Done)
}
