//! A fake haproxy: it forwards connections to a server of its configuration, or to one that was added at run time.

mod servers;

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream, UnixStream},
    task::JoinSet,
};

use super::program::StartedProgram;
use servers::BackendServers;

pub(super) async fn serve(program: &StartedProgram) -> anyhow::Result<()> {
    let mut configuration = String::new();
    for file in program.all_after("-f") {
        configuration += &String::from_utf8(program.read(file)?)?;
    }
    let bind = lines(&configuration, "bind").next().context("there is no bind")?;
    let bind: SocketAddr = bind.first().and_then(|word| word.parse().ok()).context("bind names no address")?;
    let servers = Arc::new(BackendServers::of(&configuration)?);
    let socket = lines(&configuration, "stats").next().context("there is no stats socket")?;
    let socket = socket.get(1).context("the stats socket has no path")?;
    let listener = TcpListener::bind(bind).await.with_context(|| format!("could not listen on {bind}"))?;
    let socket = program.listen(socket)?;
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            client = listener.accept() => { tasks.spawn(pass_on(client?.0, servers.clone())); }
            asked = socket.accept() => { tasks.spawn(answer(asked?.0, servers.clone())); }
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// Either end may close the connection at any time. Small packets are sent without delay.
async fn pass_on(mut client: TcpStream, servers: Arc<BackendServers>) {
    let Some((server, _session)) = servers.enter() else { return };
    if let Ok(mut server) = TcpStream::connect(server).await {
        let _ = client.set_nodelay(true).and(server.set_nodelay(true));
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

/// Answers one command on a connection, as haproxy does. The client may already be gone.
async fn answer(stream: UnixStream, servers: Arc<BackendServers>) {
    let mut stream = BufReader::new(stream);
    let mut command = String::new();
    if stream.read_line(&mut command).await.is_ok() {
        let _ = stream.write_all(servers.command(command.trim_end()).as_bytes()).await;
    }
}

/// Returns the words after a keyword, for each line that starts with it.
fn lines<'a>(configuration: &'a str, keyword: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    let lines = configuration.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(move |words| words.first() == Some(&keyword)).map(|words| words[1..].to_vec())
}
