//! Exit codes and errors of commands.

use std::{io::Write, process::ExitCode};

use keelway_api::fault::Faults;

use crate::{faults, input::Input};

/// The documented exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Success. For `reconcile`: settled.
    Done,
    /// An operation failed.
    Failed,
    /// The input or the usage is wrong.
    Usage,
    /// `reconcile` did not settle in time.
    NotSettled,
    /// `plan --exit-code`: there is something to do. `diff --exit-code` and `fleet diff --exit-code`: there is a difference. `recover`: something needs
    /// attention.
    SomethingToDo,
    /// A signal with this number ended the command.
    Signal(u8),
    /// `exec`: the exit code of the command in the container.
    Command(u8),
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(match code {
            Code::Done => 0,
            Code::Failed => 1,
            Code::Usage => 2,
            Code::NotSettled => 3,
            Code::SomethingToDo => 4,
            Code::Signal(number) => 128 + number,
            Code::Command(code) => code,
        })
    }
}

/// The reason for which a command failed.
pub(crate) struct CommandFailure {
    cause: FailureCause,
    /// The input, which is written to stdout unchanged if the output of the command is documents.
    echo: Option<Vec<u8>>,
}

enum FailureCause {
    Faults(Faults, Box<Input>),
    Usage { problem: String, help: String },
    Other(anyhow::Error),
}

impl CommandFailure {
    /// The documents have faults.
    pub(crate) fn faults(faults: Faults, input: &Input) -> Self {
        Self { cause: FailureCause::Faults(faults, Box::new(input.clone())), echo: None }
    }

    /// The request does not fit these documents.
    pub(crate) fn usage(problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { cause: FailureCause::Usage { problem: problem.into(), help: help.into() }, echo: None }
    }

    /// Any other failure.
    pub(crate) fn other(error: impl Into<anyhow::Error>) -> Self {
        Self { cause: FailureCause::Other(error.into()), echo: None }
    }

    /// Adds the input, which [`Self::report`] writes to stdout: no document is lost.
    pub(crate) fn with_echo(mut self, input: &Input) -> Self {
        self.echo = Some(input.bytes.clone());
        self
    }

    /// Reports the failure on stderr, writes the input to stdout, and returns the documented exit code.
    pub(crate) fn report(self, color: bool) -> ExitCode {
        if let Some(bytes) = &self.echo {
            let _ = std::io::stdout().write_all(bytes);
        }
        let code = match &self.cause {
            FailureCause::Faults(found, input) => {
                faults::report(found, input, color);
                Code::Usage
            }
            FailureCause::Usage { problem, help } => {
                let _ = writeln!(std::io::stderr(), "error: {problem}\n  help: {help}");
                Code::Usage
            }
            FailureCause::Other(error) => {
                let _ = writeln!(std::io::stderr(), "error: {error:#}");
                Code::Failed
            }
        };
        code.into()
    }
}
