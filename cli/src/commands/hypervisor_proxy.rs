//! `keelway hypervisor proxy`.

use std::{
    fs,
    io::Write,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use clap::Args;
use keelway_api::name::HypervisorName;
use keelway_base::root_socket::RootSocket;
use tokio_util::sync::CancellationToken;

use super::{
    named::{missing_document_error, reach},
    session::runtime,
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
    signals::cancel_on_signal,
};

#[derive(Args)]
pub(crate) struct ProxyArguments {
    /// The hypervisor
    #[arg(value_name = "NAME")]
    pub(crate) name: HypervisorName,
    /// The socket to create; only your user can connect to it
    #[arg(long, value_name = "ENDPOINT", value_parser = socket)]
    pub(crate) listen: PathBuf,
}

/// `unix:///PATH`, or the path alone.
fn socket(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() {
        Ok(path)
    } else {
        Err("must be unix:// followed by the absolute path of a socket".to_owned())
    }
}

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
