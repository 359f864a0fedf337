//! Becomes a machine's containerd: calls [`run_machine`] where the CLI's hidden command is not available.

use std::{env, io, path::Path, process::ExitCode};

use keelway_local_hypervisor::run_machine;

fn main() -> ExitCode {
    let Some(launch) = env::args_os().nth(1) else {
        return ExitCode::from(2);
    };
    let Err(error) = run_machine(Path::new(&launch));
    let mut cause: Option<&dyn core::error::Error> = Some(&error);
    while let Some(error) = cause {
        drop(io::Write::write_fmt(&mut io::stderr(), format_args!("{error}\n")));
        cause = error.source();
    }
    ExitCode::FAILURE
}
