//! In haproxy's place: passes connections on to the first server of its configuration.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::program::Started;

pub(super) async fn serve(program: &Started) -> anyhow::Result<()> {
    let configuration = String::from_utf8(program.read(program.after("-f")?)?)?;
    let bind: SocketAddr = address(&configuration, "bind", 1)?;
    let server: SocketAddr = address(&configuration, "server", 2)?;
    let listener = TcpListener::bind(bind).await.with_context(|| format!("could not listen on {bind}"))?;
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await?;
        connections.spawn(pass_on(client, server));
        while connections.try_join_next().is_some() {}
    }
}

/// Either end may break off.
async fn pass_on(mut client: TcpStream, server: SocketAddr) {
    if let Ok(mut server) = TcpStream::connect(server).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

/// The address at the given word of the first line that begins with this keyword.
fn address(configuration: &str, keyword: &str, at: usize) -> anyhow::Result<SocketAddr> {
    let mut lines = configuration.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| words.first() == Some(&keyword)).with_context(|| format!("there is no {keyword}"))?;
    line.get(at).and_then(|word| word.parse().ok()).with_context(|| format!("{keyword} names no address"))
}
