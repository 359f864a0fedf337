//! A fake runtime as a process: it outlives its clients, until SIGTERM.

use std::{error::Error, fs, io, path::PathBuf, process::ExitCode};

use clap::{ArgGroup, Parser, ValueEnum};
use keelway_base::signals::TerminationSignals;
use keelway_cri::fake::{CallFault, Fake, SignalTiming, serve};
use rustix::process::Signal;
use tokio::net::UnixListener;

/// Serves a fake container runtime on a Unix socket until SIGTERM or SIGINT.
#[derive(Debug, Parser)]
#[command(group = ArgGroup::new("when").args(["after", "before"]))]
struct CriFakeArguments {
    /// The socket to make. One that a dead process left is replaced.
    #[arg(long)]
    socket: PathBuf,
    /// An image that the machine has; may be given again.
    #[arg(long = "image", value_name = "NAME")]
    images: Vec<String>,
    /// A file to append a line to for each call that changes something: method and name.
    #[arg(long, value_name = "FILE")]
    calls: Option<PathBuf>,
    /// The signal that a caller gets.
    #[arg(long, requires = "when")]
    signal: Option<SignalName>,
    /// After the answer to the call of this number that changes something.
    #[arg(long, value_name = "N", requires = "signal")]
    after: Option<usize>,
    /// Before the answer to the call of this number that changes something, and after its change.
    #[arg(long, value_name = "N", requires = "signal")]
    before: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "UPPER")]
enum SignalName {
    Term,
    Kill,
    Int,
}

impl From<SignalName> for Signal {
    fn from(name: SignalName) -> Self {
        match name {
            SignalName::Term => Self::TERM,
            SignalName::Kill => Self::KILL,
            SignalName::Int => Self::INT,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(CriFakeArguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the only place where this program prints")]
            {
                eprintln!("keelway-cri-fake: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: CriFakeArguments) -> Result<(), Box<dyn Error>> {
    let fake = Fake::new();
    for image in &arguments.images {
        fake.add_image(image);
    }
    if let Some(path) = &arguments.calls {
        fake.write_calls_to(path)?;
    }
    if let Some(name) = arguments.signal {
        let signal = name.into();
        if let Some(nth) = arguments.after {
            fake.inject(nth, CallFault::Signal(signal, SignalTiming::AfterAnswer));
        }
        if let Some(nth) = arguments.before {
            fake.inject(nth, CallFault::Signal(signal, SignalTiming::BeforeAnswer));
        }
    }
    // Signal handlers come before the socket, so that a caller that waits for the socket can end this process at once.
    let mut signals = TerminationSignals::new()?;
    remove(&arguments.socket)?;
    let listener = UnixListener::bind(&arguments.socket)?;
    tokio::select! {
        served = serve(listener, fake) => served?,
        _ = signals.next() => {}
    }
    Ok(remove(&arguments.socket)?)
}

fn remove(path: &PathBuf) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
