//! `keelway hypervisor proxy`.

use std::{fs, io::Write, os::unix::fs::FileTypeExt, path::Path};

use keelway_base::root_socket::RootSocket;
use tokio_util::sync::CancellationToken;

use super::{
    named::{missing_document_error, reach},
    session::runtime,
};
use crate::{
    args::{GlobalArguments, ProxyArguments},
    exit::{Code, CommandFailure},
    input::Input,
    signals::cancel_on_signal,
};

pub(super) fn run(global: &GlobalArguments, arguments: &ProxyArguments) -> Result<Code, CommandFailure> {
    let documents = Input::read(&global.files)?.documents()?;
    let machine = documents.hypervisors.get(&arguments.name).ok_or_else(|| {
        let there = documents.hypervisors.keys().map(ToString::to_string).collect();
        missing_document_error("Hypervisor", arguments.name.as_str(), &there)
    })?;
    check(&arguments.listen)?;
    runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let received = cancel_on_signal(stop.clone()).map_err(CommandFailure::other)?;
        let machine = reach(&documents, machine).await?;
        let socket = RootSocket::bind(&arguments.listen).map_err(CommandFailure::other)?;
        if !global.quiet {
            let (name, path) = (&arguments.name, arguments.listen.display());
            let _ = writeln!(
                std::io::stderr(),
                "forwarding unix://{path} to the container runtime of {name}; press Ctrl-C to stop"
            );
        }
        machine.proxy(socket, stop).await.map_err(CommandFailure::other)?;
        Ok(received.number().map_or(Code::Done, Code::Signal))
    })
}

/// Refuses a path at which something other than a socket exists.
fn check(path: &Path) -> Result<(), CommandFailure> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(CommandFailure::usage(format!("{} exists and is not a socket", path.display()), "choose another path"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}
