//! Runs iproute2.

use std::{
    io::{self, Write},
    net::Ipv4Addr,
    process::{Command, Output, Stdio},
};

use ipnet::Ipv4Net;
use serde::Deserialize;

use crate::LocalHypervisorError;

const IP: &str = "ip";

/// Runs commands in the calling thread's network namespace. It stops at the first command that fails.
pub(crate) fn batch(commands: &[String]) -> Result<(), LocalHypervisorError> {
    let text = commands.join("\n");
    let run = || {
        let mut child = Command::new(IP)
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(text.as_bytes())?;
        }
        child.wait_with_output()
    };
    checked(run, &commands.join("; ")).map(drop)
}

/// Removes an interface. It succeeds if the interface is missing.
pub(crate) fn remove_link(name: &str) -> Result<(), LocalHypervisorError> {
    let commands = [format!("link delete {name}")];
    match batch(&commands) {
        Err(LocalHypervisorError::Ip { stderr, .. }) if stderr.contains("Cannot find device") => Ok(()),
        other => other,
    }
}

/// Returns the IPv4 destinations in all of the host's routing tables, without the default route.
pub(crate) fn routes() -> Result<Vec<Ipv4Net>, LocalHypervisorError> {
    #[derive(Deserialize)]
    struct HostRoute {
        dst: String,
    }
    let arguments = ["-json", "-4", "route", "show", "table", "all"];
    let output = checked(|| Command::new(IP).args(arguments).output(), &arguments.join(" "))?;
    let routes: Vec<HostRoute> = serde_json::from_slice(&output.stdout)
        .map_err(|source| LocalHypervisorError::system("read the host's routes")(io::Error::other(source)))?;
    Ok(routes.iter().filter_map(|route| destination(&route.dst)).collect())
}

/// Parses a range or a single address.
fn destination(text: &str) -> Option<Ipv4Net> {
    let single = || text.parse::<Ipv4Addr>().ok().map(Ipv4Net::from);
    text.parse().ok().or_else(single)
}

fn checked(run: impl FnOnce() -> io::Result<Output>, commands: &str) -> Result<Output, LocalHypervisorError> {
    let output = run().map_err(|source| LocalHypervisorError::Spawn { program: IP.into(), source })?;
    if output.status.success() {
        return Ok(output);
    }
    Err(LocalHypervisorError::Ip {
        commands: commands.to_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
