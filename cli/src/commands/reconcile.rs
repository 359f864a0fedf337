//! `keelway reconcile`.

use std::{
    io::Write,
    path::{Path, PathBuf},
    slice,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use keelway_api::duration::Span;
use keelway_reconciler::{PassError, PassFailure, PassOutcome, RunLimits, RunOutcome, take_due_snapshots};
use rustix::thread::disable_transparent_huge_pages;

use super::{
    keep_documents, print_documents,
    session::{PipeSession, runtime_of_passes},
};
use crate::{
    args::GlobalArguments,
    directories::state_directory,
    exit::{Code, CommandFailure},
    input::Input,
    leftover_file::LeftoverFile,
    pipe::Pipe,
    signals::{ReceivedSignal, cancel_on_signal},
};

#[derive(Args)]
pub(crate) struct ReconcileArguments {
    /// Read the documents from FILE and save them to it before every effect; write nothing to stdout
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    pub(crate) in_place: Option<PathBuf>,
    /// Run one pass only, even if the documents are not settled after it
    #[arg(long)]
    pub(crate) once: bool,
    /// How long to wait until the documents are settled
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    pub(crate) timeout: Span,
}

impl ReconcileArguments {
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.into()
    }
}

pub(super) fn run(global: &GlobalArguments, arguments: &ReconcileArguments) -> Result<Code, CommandFailure> {
    // The allocator requests huge pages, and a pass uses only a part of each. Without them the program uses less memory and is not slower.
    let _ = disable_transparent_huge_pages(true);
    match &arguments.in_place {
        Some(file) => in_place(global, arguments, file),
        None => piped(global, arguments),
    }
}

/// Reconciles a file and saves to the same file.
fn in_place(global: &GlobalArguments, arguments: &ReconcileArguments, file: &Path) -> Result<Code, CommandFailure> {
    // If the path is a link, replace its target.
    let found = file
        .canonicalize()
        .with_context(|| format!("could not find {}", file.display()))
        .map_err(CommandFailure::other)?;
    let documents = Input::read_some(slice::from_ref(&found))?.world()?;
    let (pipe, ended) = reconcile(PipeSession::over(Pipe::in_place(documents, found), global), arguments)?;
    keep_documents(&pipe.documents());
    Ok(ended.report())
}

/// Reconciles documents from stdin or files, and writes them to stdout.
fn piped(global: &GlobalArguments, arguments: &ReconcileArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let documents = input.world().map_err(|failure| failure.with_echo(&input))?;
    drop(input);
    let left = LeftoverFile::of(&state_directory(), &documents);
    for newer in left.iter().filter(|left| !global.quiet && left.is_newer(&documents)) {
        offer(&newer.file);
    }
    let (pipe, ended) = reconcile(PipeSession::new(global, documents), arguments)?;
    // Every effect so far depended on the documents of the last save, so that they are written in any case.
    let documents = pipe.documents();
    let written = print_documents(&documents);
    let code = ended.report();
    written?;
    if code == Code::Done {
        pipe.done();
        left.iter().filter(|left| !left.is_newer(&documents)).for_each(LeftoverFile::remove);
    }
    Ok(code)
}

/// Reports the newer documents that an interrupted run has left.
fn offer(file: &Path) {
    let file = file.display();
    let _ = writeln!(
        std::io::stderr(),
        "an interrupted run left newer documents in {file}; continue with `keelway reconcile -f {file}`, or remove the file"
    );
}

/// The result of passes, and the signal that ended them, if any.
struct ReconcileResult {
    end: Result<(RunOutcome, PassOutcome), PassError>,
    /// The snapshots that were due and could not be taken.
    snapshots: Vec<PassFailure>,
    received: ReceivedSignal,
}

fn reconcile(
    mut session: PipeSession,
    arguments: &ReconcileArguments,
) -> Result<(Arc<Pipe>, ReconcileResult), CommandFailure> {
    let limits = RunLimits { once: arguments.once, timeout: arguments.timeout() };
    let ended = runtime_of_passes()?.block_on(async {
        let received = cancel_on_signal(session.context.run.stop.clone()).map_err(CommandFailure::other)?;
        let mut end = keelway_reconciler::run(&session.context, &mut session.minter, limits).await;
        let mut snapshots = Vec::new();
        // A store that does not settle is copied too: what is wrong may become worse.
        if end.is_ok() {
            match take_due_snapshots(&session.context).await {
                Ok(failures) => snapshots = failures,
                Err(error) => end = Err(error),
            }
        }
        Ok::<_, CommandFailure>(ReconcileResult { end, snapshots, received })
    })?;
    Ok((session.pipe, ended))
}

impl ReconcileResult {
    /// Reports the result, and returns the exit code.
    fn report(self) -> Code {
        let code = code(&self.end, &self.received);
        report(self.end);
        for failure in &self.snapshots {
            let _ = writeln!(std::io::stderr(), "error: {}: {}", failure.subject, failure.reason);
        }
        if code == Code::Done && !self.snapshots.is_empty() { Code::Failed } else { code }
    }
}

fn code(ended: &Result<(RunOutcome, PassOutcome), PassError>, received: &ReceivedSignal) -> Code {
    match ended {
        Err(PassError::Faults(_)) => Code::Usage,
        Ok((RunOutcome::Settled, _)) => Code::Done,
        Ok((RunOutcome::Once, outcome)) if outcome.failures.is_empty() => Code::Done,
        Err(PassError::Store(_) | PassError::Id(_) | PassError::Mint(_))
        | Ok((RunOutcome::Once | RunOutcome::Refused, _)) => Code::Failed,
        Ok((RunOutcome::Stopped, _)) => Code::Signal(received.number().unwrap_or_default()),
        Ok((RunOutcome::TimedOut, _)) => Code::NotSettled,
    }
}

/// Reports why the documents are not settled, and what to do next.
fn report(ended: Result<(RunOutcome, PassOutcome), PassError>) {
    let mut stderr = std::io::stderr();
    let mut tell = |line: String| {
        let _ = writeln!(stderr, "{line}");
    };
    match ended {
        Err(error) => tell(format!("error: {:#}", anyhow::Error::new(error))),
        Ok((RunOutcome::Settled, _)) => {}
        Ok((end, outcome)) => {
            for failure in &outcome.failures {
                tell(format!("error: {}: {}", failure.subject, failure.reason));
            }
            for waiting in &outcome.plan.waiting {
                tell(format!("{waiting}"));
            }
            match end {
                RunOutcome::TimedOut => {
                    tell(
                        "not settled before the timeout; run the command again on the documents that were written"
                            .to_owned(),
                    );
                }
                RunOutcome::Stopped => {
                    tell("stopped; to continue, run the command again on the documents that were written".to_owned());
                }
                RunOutcome::Once | RunOutcome::Settled | RunOutcome::Refused => {}
            }
        }
    }
}
