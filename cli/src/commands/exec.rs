//! `keelway exec`.

use std::io::{IsTerminal, Write};

use clap::Args;
use keelway_cri::exec::{ExecStreams, Size};
use keelway_reconciler::reach::ContainerCommand;
use tokio::{
    io::{stderr, stdin, stdout},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{
    named::{component, reach},
    session::runtime,
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
    terminal::{self, RawTerminal},
};

#[derive(Args)]
pub(crate) struct ExecArguments {
    /// The component, as `component get` prints its name
    #[arg(value_name = "COMPONENT")]
    pub(crate) component: String,
    /// Pass stdin to the command; requires the documents with -f
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Allocate a terminal for the command
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The container [default: the main container of the component]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

pub(super) fn run(global: &GlobalArguments, arguments: ExecArguments) -> Result<Code, CommandFailure> {
    let reads_documents = global.files.is_empty() || global.files.iter().any(|file| file.as_os_str() == "-");
    if arguments.stdin && reads_documents {
        return Err(CommandFailure::usage(
            "stdin cannot be used for the documents and for --stdin at the same time",
            "read the documents from a file with -f: keelway exec c1/etcd-0 -i -f c1.yaml -- cat",
        ));
    }
    let documents = Input::read(&global.files)?.documents()?;
    let (pod, machine) = component(&documents, &arguments.component)?;
    let has_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if arguments.tty && !has_terminal && !global.quiet {
        let _ =
            writeln!(std::io::stderr(), "warning: stdin and stdout are not terminals; the command runs without one");
    }
    let terminal = arguments.tty && has_terminal;
    let asked = ContainerCommand {
        pod,
        container: arguments.container,
        command: arguments.command,
        stdin: arguments.stdin,
        terminal,
    };
    let raw =
        if terminal && asked.stdin { Some(RawTerminal::of_stdin().map_err(CommandFailure::other)?) } else { None };
    let executor = runtime()?;
    let ended = executor.block_on(async {
        let machine = reach(&documents, machine).await?;
        let streams = ExecStreams { stdin: stdin(), stdout: stdout(), stderr: stderr(), sizes: sizes() };
        machine.exec(asked, streams).await.map_err(CommandFailure::other)
    });
    drop(raw);
    // A pending read of stdin cannot be cancelled, so the runtime does not wait for it.
    executor.shutdown_background();
    Ok(Code::Command(u8::try_from(ended?).unwrap_or(1)))
}

/// Sends the size of the terminal now and after each change.
fn sizes() -> mpsc::Receiver<Size> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let Ok(mut changed) = signal(SignalKind::window_change()) else { return };
        while let Some(size) = terminal::size() {
            if sender.send(size).await.is_err() || changed.recv().await.is_none() {
                return;
            }
        }
    });
    receiver
}
