//! `keelway reconcile`.

use std::io::Write;

use keelway_reconciler::{End, Limits, Outcome, PassError};

use super::{
    print,
    session::{Session, runtime},
};
use crate::{
    args::{Global, ReconcileArguments},
    exit::{Code, Failure},
    input::Input,
    signals::{Received, cancel_on_signal},
};

pub(super) fn run(global: &Global, arguments: &ReconcileArguments) -> Result<Code, Failure> {
    let input = Input::read(&global.files)?;
    let documents = input.world().map_err(|failure| failure.echoing(&input))?;
    let limits = Limits { once: arguments.once, timeout: arguments.patience() };
    let mut session = Session::new(global, documents);
    let (ended, received) = runtime()?.block_on(async {
        let received = cancel_on_signal(session.context.run.stop.clone()).map_err(Failure::other)?;
        let ended = keelway_reconciler::run(&session.context, &mut session.minter, limits).await;
        Ok::<_, Failure>((ended, received))
    })?;
    // What was saved last is what every effect so far relied on: it is written whatever happened.
    let written = print(&session.pipe.documents().write());
    let code = code(&ended, &received);
    drop(session.context);
    report(ended);
    written?;
    if code == Code::Done {
        session.pipe.done();
    }
    Ok(code)
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
