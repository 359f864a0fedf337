//! `keelway hypervisor proxy`.

use std::{fs, io::Write, os::unix::fs::FileTypeExt, path::Path};

use keelway_hypervisor_agent::agent::Listener;
use tokio_util::sync::CancellationToken;

use super::{
    named::{absent, reach},
    session::runtime,
};
use crate::{
    args::{Global, ProxyArguments},
    exit::{Code, Failure},
    input::Input,
    signals::cancel_on_signal,
};

pub(super) fn run(global: &Global, arguments: &ProxyArguments) -> Result<Code, Failure> {
    let documents = Input::read(&global.files)?.documents()?;
    let machine = documents.hypervisors.get(&arguments.name).ok_or_else(|| {
        let there = documents.hypervisors.keys().map(ToString::to_string).collect();
        absent("Hypervisor", arguments.name.as_str(), &there)
    })?;
    check(&arguments.listen)?;
    runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let received = cancel_on_signal(stop.clone()).map_err(Failure::other)?;
        let machine = reach(&documents, machine).await?;
        let socket = Listener::bind(&arguments.listen).map_err(Failure::other)?;
        if !global.quiet {
            let (name, path) = (&arguments.name, arguments.listen.display());
            let _ = writeln!(std::io::stderr(), "the runtime of {name} answers at unix://{path} until this ends");
        }
        machine.proxy(socket, stop).await.map_err(Failure::other)?;
        Ok(received.number().map_or(Code::Done, Code::Signal))
    })
}

/// What is there already is cleared away only where it is a socket.
fn check(path: &Path) -> Result<(), Failure> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(Failure::usage(format!("{} is there and no socket", path.display()), "choose another path"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}
