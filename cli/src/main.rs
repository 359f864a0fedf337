//! `keelway`: documents in, Kubernetes control planes on your machines, documents out.

mod args;
mod commands;
mod directories;
mod exit;
mod faults;
mod input;
mod left_over;
mod pipe;
mod progress;
mod signals;
mod table;
mod view;

use std::{io::IsTerminal, process::ExitCode};

use clap::Parser;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(arguments.log_filter()))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match commands::run(arguments) {
        Ok(code) => code.into(),
        Err(failure) => failure.report(),
    }
}
