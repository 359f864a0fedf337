//! `keelway`: documents in, Kubernetes control planes on your machines, documents out.
//!
//! A library so that tests can end the program at every save and effect that it traces.

mod args;
mod backup_file;
mod commands;
mod directories;
mod exit;
mod faults;
mod input;
mod last_documents;
mod leftover_file;
mod pipe;
mod progress;
mod signals;
mod table;
mod terminal;
mod view;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    layer::{Identity, SubscriberExt},
    util::SubscriberInitExt,
};

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    // Without an observer, events that stderr does not show are not created.
    main_with_observer(None::<Identity>)
}

/// Runs the program, and passes all trace events to an observer.
pub fn main_with_observer(observer: Option<impl Layer<Registry> + Send + Sync>) -> ExitCode {
    let arguments = args::CliArguments::parse();
    let stderr = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(arguments.global.color.wanted())
        .with_filter(EnvFilter::new(arguments.log_filter()));
    tracing_subscriber::registry().with(observer).with(stderr).init();
    let color = arguments.global.color.wanted();
    match commands::run(arguments) {
        Ok(code) => code.into(),
        Err(failure) => failure.report(color),
    }
}
