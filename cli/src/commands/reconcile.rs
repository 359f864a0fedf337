//! `keelway reconcile`.

use std::{io::Write, path::Path, slice, sync::Arc};

use anyhow::Context;
use keelway_reconciler::{End, Limits, Outcome, PassError};
use rustix::thread::disable_transparent_huge_pages;

use super::{
    keep_documents, print_documents,
    session::{Session, runtime_of_passes},
};
use crate::{
    args::{Global, ReconcileArguments},
    directories::state_directory,
    exit::{Code, Failure},
    input::Input,
    left_over::LeftOver,
    pipe::Pipe,
    signals::{Received, cancel_on_signal},
};

pub(super) fn run(global: &Global, arguments: &ReconcileArguments) -> Result<Code, Failure> {
    // The allocator asks for huge pages, of each of which a pass uses a part. With them the program is larger, and no worse.
    let _ = disable_transparent_huge_pages(true);
    match &arguments.in_place {
        Some(file) => in_place(global, arguments, file),
        None => piped(global, arguments),
    }
}

/// From a file into the same file.
fn in_place(global: &Global, arguments: &ReconcileArguments, file: &Path) -> Result<Code, Failure> {
    // A file is replaced where it is, not where a link to it is.
    let found =
        file.canonicalize().with_context(|| format!("could not find {}", file.display())).map_err(Failure::other)?;
    let documents = Input::read_some(slice::from_ref(&found))?.world()?;
    let (pipe, ended) = reconcile(Session::over(Pipe::in_place(documents, found), global), arguments)?;
    keep_documents(&pipe.documents());
    Ok(ended.report())
}

/// From stdin or files to stdout.
fn piped(global: &Global, arguments: &ReconcileArguments) -> Result<Code, Failure> {
    let input = Input::read_some(&global.files)?;
    let documents = input.world().map_err(|failure| failure.echoing(&input))?;
    drop(input);
    let left = LeftOver::of(&state_directory(), &documents);
    for newer in left.iter().filter(|left| !global.quiet && left.is_newer(&documents)) {
        offer(&newer.file);
    }
    let (pipe, ended) = reconcile(Session::new(global, documents), arguments)?;
    // What was saved last is what every effect so far relied on: it is written whatever happened.
    let documents = pipe.documents();
    let written = print_documents(&documents);
    let code = ended.report();
    written?;
    if code == Code::Done {
        pipe.done();
        left.iter().filter(|left| !left.is_newer(&documents)).for_each(LeftOver::remove);
    }
    Ok(code)
}

/// Tells of newer documents that an interrupted run left.
fn offer(file: &Path) {
    let file = file.display();
    let _ = writeln!(
        std::io::stderr(),
        "an interrupted run left newer documents in {file}: go on with `keelway reconcile -f {file}`, or remove it"
    );
}

/// How passes ended, with the signal that ended them if one did.
struct Ended {
    end: Result<(End, Outcome), PassError>,
    received: Received,
}

fn reconcile(mut session: Session, arguments: &ReconcileArguments) -> Result<(Arc<Pipe>, Ended), Failure> {
    let limits = Limits { once: arguments.once, timeout: arguments.patience() };
    let ended = runtime_of_passes()?.block_on(async {
        let received = cancel_on_signal(session.context.run.stop.clone()).map_err(Failure::other)?;
        let end = keelway_reconciler::run(&session.context, &mut session.minter, limits).await;
        session.context.machines.part().await;
        Ok::<_, Failure>(Ended { end, received })
    })?;
    Ok((session.pipe, ended))
}

impl Ended {
    /// Tells people, and how the program ends.
    fn report(self) -> Code {
        let code = code(&self.end, &self.received);
        report(self.end);
        code
    }
}

fn code(ended: &Result<(End, Outcome), PassError>, received: &Received) -> Code {
    match ended {
        Err(PassError::Faults(_)) => Code::Usage,
        Ok((End::Settled, _)) => Code::Done,
        Ok((End::Once, outcome)) if outcome.failures.is_empty() => Code::Done,
        Err(PassError::Store(_) | PassError::Id(_) | PassError::Mint(_)) | Ok((End::Once | End::Refused, _)) => {
            Code::Failed
        }
        Ok((End::Stopped, _)) => Code::Signal(received.number().unwrap_or_default()),
        Ok((End::TimedOut, _)) => Code::NotSettled,
    }
}

/// Tells people why the world is not settled, and what to do next.
fn report(ended: Result<(End, Outcome), PassError>) {
    let mut stderr = std::io::stderr();
    let mut tell = |line: String| {
        let _ = writeln!(stderr, "{line}");
    };
    match ended {
        Err(error) => tell(format!("error: {:#}", anyhow::Error::new(error))),
        Ok((End::Settled, _)) => {}
        Ok((end, outcome)) => {
            for failure in &outcome.failures {
                tell(format!("error: {}: {}", failure.at, failure.why));
            }
            for waiting in &outcome.plan.waiting {
                tell(format!("{waiting}"));
            }
            match end {
                End::TimedOut => tell("not settled in time: run the same command on what was written".to_owned()),
                End::Stopped => tell("stopped: run the same command on what was written to go on".to_owned()),
                End::Once | End::Settled | End::Refused => {}
            }
        }
    }
}
