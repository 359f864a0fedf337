//! The common parts of all programs: logs, signals, and exit codes.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use keelway_base::error_chain::ErrorChain;
use keelway_base::signals::TerminationSignals;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Threads for all connections of a process. A machine runs one process for each cluster, and packets have a thread of their own.
const THREADS: usize = 2;

/// Runs a program until SIGTERM or SIGINT.
pub fn run<F, E>(program: impl FnOnce(CancellationToken) -> F) -> ExitCode
where
    F: Future<Output = Result<(), E>>,
    E: Error + 'static,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,boringtun=off"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(io::stderr).init();
    let outcome = start(program);
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => fail(&error),
        Err(error) => fail(&error),
    }
}

fn start<F: Future>(program: impl FnOnce(CancellationToken) -> F) -> io::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        TerminationSignals::new()?.cancel(stop.clone());
        Ok(program(stop).await)
    })
}

fn fail(error: &(dyn Error + 'static)) -> ExitCode {
    tracing::error!("{}", ErrorChain(error));
    ExitCode::FAILURE
}

/// Parses a loopback address, or 0.0.0.0 in a pod of a Kubernetes cluster, where the kubelet probes it.
pub fn loopback_or_pod(text: &str) -> Result<SocketAddr, &'static str> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => Ok(address),
        _ => loopback(text),
    }
}

/// Parses a loopback address, which only programs of this machine can reach.
pub fn loopback(text: &str) -> Result<SocketAddr, &'static str> {
    let address: SocketAddr = text.parse().map_err(|_| "use a form such as 127.0.0.1:20001")?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("must be a loopback address, because it requires no authentication")
    }
}
