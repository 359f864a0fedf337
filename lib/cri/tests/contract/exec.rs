//! Commands with streams. Only the real runtime has a streaming server.

use std::time::Duration;

use keelway_cri::{
    exec::{ExecError, ExecStreams, Size},
    testing::{Containerd, PROGRAM},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};

use crate::subject::Subject;

const PATIENCE: Duration = Duration::from_secs(60);

async fn connected(
    subject: &Subject,
    id: &str,
    arguments: &[&str],
    (stdin, terminal): (bool, bool),
) -> (keelway_cri::exec::PreparedExec, TcpStream) {
    let command: Vec<String> = [&[PROGRAM], arguments].concat().into_iter().map(String::from).collect();
    let prepared = subject.runtime.exec(id, &command, (stdin, terminal)).await.unwrap();
    let connection = TcpStream::connect(prepared.address().unwrap()).await.unwrap();
    (prepared, connection)
}

/// The data exceeds all buffers between both ends, in both directions at once. The end of stdin reaches the command.
pub async fn commands_have_streams((subject, _): &(&Subject, &Containerd)) {
    let (pod, id) = subject.started("streams", &["serve"]).await;
    let (prepared, connection) = connected(subject, &id, &["copy", "7"], (true, false)).await;
    let sent: Vec<u8> = (0..4_000_000_u32).flat_map(u32::to_le_bytes).take(5_000_000).collect();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (_, sizes) = mpsc::channel(1);
    let streams = ExecStreams { stdin: sent.as_slice(), stdout: &mut stdout, stderr: &mut stderr, sizes };
    let code = timeout(PATIENCE, prepared.run(connection, streams)).await.unwrap().unwrap();
    assert_eq!(code, 7);
    assert!(stdout == sent, "{} bytes came back", stdout.len());
    assert_eq!(stderr, b"5000000");
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

/// The terminal has the size that was sent last, and input reaches the command.
pub async fn commands_have_a_terminal((subject, _): &(&Subject, &Containerd)) {
    let (pod, id) = subject.started("terminal", &["serve"]).await;
    let (prepared, connection) = connected(subject, &id, &["size", "123"], (true, true)).await;
    let (sizes, changes) = mpsc::channel(1);
    let ((mut keys, stdin), (mut screen, stdout)) = (duplex(1024), duplex(1024));
    let running = tokio::spawn(async move {
        let streams = ExecStreams { stdin, stdout, stderr: tokio::io::sink(), sizes: changes };
        prepared.run(connection, streams).await
    });
    for width in [80, 123] {
        sizes.send(Size { width, height: 24 }).await.unwrap();
    }
    let mut said = [0; 8];
    timeout(PATIENCE, screen.read_exact(&mut said)).await.unwrap().unwrap();
    assert_eq!(&said, b"terminal");
    keys.write_all(b"\r").await.unwrap();
    assert_eq!(timeout(PATIENCE, running).await.unwrap().unwrap().unwrap(), 0);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

pub async fn commands_end_as_they_end((subject, _): &(&Subject, &Containerd)) {
    let (pod, id) = subject.started("ends", &["serve"]).await;
    for (arguments, code) in [(["print", "hello", "0"].as_slice(), 0), (&["exit", "255"], 255)] {
        let (prepared, connection) = connected(subject, &id, arguments, (false, false)).await;
        let (_, sizes) = mpsc::channel(1);
        let streams = ExecStreams { stdin: tokio::io::empty(), stdout: Vec::new(), stderr: Vec::new(), sizes };
        assert_eq!(timeout(PATIENCE, prepared.run(connection, streams)).await.unwrap().unwrap(), code);
    }
    let nothing = ["/nothing".to_owned()];
    let prepared = subject.runtime.exec(&id, &nothing, (false, false)).await.unwrap();
    let connection = TcpStream::connect(prepared.address().unwrap()).await.unwrap();
    let (_, sizes) = mpsc::channel(1);
    let streams = ExecStreams { stdin: tokio::io::empty(), stdout: Vec::new(), stderr: Vec::new(), sizes };
    let error = timeout(PATIENCE, prepared.run(connection, streams)).await.unwrap().unwrap_err();
    assert!(matches!(&error, ExecError::NotStarted(why) if why.contains("/nothing")), "{error:?}");
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}
