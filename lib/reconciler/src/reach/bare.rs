//! Commands on a machine without an agent.

use std::{net::SocketAddr, time::Duration};

use keelway_cri::{
    CriRuntime,
    exec::{ExecError, ExecStreams},
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{MachineConnection, ReachError};

/// How long a command without stdin may run. Its output arrives when it has ended.
const LONGEST: Duration = Duration::from_secs(3600);

/// Runs a command that reads nothing. The exit code and the output are one response of the runtime.
pub(super) async fn exec<I, O, E>(
    runtime: &CriRuntime,
    container: &str,
    command: &[String],
    mut streams: ExecStreams<I, O, E>,
) -> Result<i32, ReachError>
where
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    let ended = runtime.exec_sync(container, command, LONGEST).await?;
    let said = async {
        streams.stdout.write_all(&ended.stdout).await?;
        streams.stdout.flush().await?;
        streams.stderr.write_all(&ended.stderr).await?;
        streams.stderr.flush().await
    };
    said.await.map_err(ExecError::Stream)?;
    Ok(ended.exit_code)
}

/// Connects to the runtime's streams from this host.
pub(super) async fn dial(address: SocketAddr, within: Duration) -> Result<MachineConnection, ReachError> {
    if address.ip().is_loopback() || address.ip().is_unspecified() {
        return Err(ReachError::Loopback { address });
    }
    let connected = timeout(within, TcpStream::connect(address)).await;
    let connected = connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    connected.map(MachineConnection::from).map_err(|source| ReachError::Streams { address, source })
}
