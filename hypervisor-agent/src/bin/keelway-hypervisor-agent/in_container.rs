//! Commands that a driver runs in the container of an agent that it started.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use keelway_agent_api::enrollment::DriverTrust;
use keelway_api::name::InstallationId;
use keelway_base::signals::TerminationSignals;
use keelway_hypervisor_agent::{
    container::{install_certificate, make_directories, remove_directories, request_certificate},
    enrollment::IdentityFolder,
};

#[derive(Subcommand)]
pub(crate) enum CertificateCommand {
    /// Print a signing request for a new key of the agent; print nothing if its certificate is valid
    Request {
        #[command(flatten)]
        agent: RunningAgent,
    },
    /// Install the certificate that was issued for the last request
    Install {
        #[command(flatten)]
        agent: RunningAgent,
        /// The certificate in PEM
        #[arg(long, value_name = "PEM")]
        certificate: String,
        /// The authorities whose drivers the agent accepts, in PEM
        #[arg(long, value_name = "PEM")]
        authorities: String,
        /// The revocation lists of these authorities in PEM. Can be repeated; the values are joined
        #[arg(long, value_name = "PEM")]
        revoked: Vec<String>,
    },
}

#[derive(Args)]
pub(crate) struct RunningAgent {
    /// The socket of the agent
    #[arg(long, value_name = "ENDPOINT", value_parser = super::socket)]
    listen: PathBuf,
    /// The directory of the agent's certificate and key
    #[arg(long, value_name = "DIRECTORY")]
    identity_directory: PathBuf,
}

#[derive(Subcommand)]
pub(crate) enum DirectoriesCommand {
    /// Wait for SIGTERM while the other commands run in the same container
    Wait,
    /// Create the missing directories
    Make {
        /// The installation of the agent
        installation: InstallationId,
    },
    /// Remove the agent's identity and logs, and the directories that are empty after that
    Remove {
        /// The installation of the agent
        installation: InstallationId,
    },
}

pub(crate) async fn certificate(command: CertificateCommand) -> anyhow::Result<()> {
    match command {
        CertificateCommand::Request { agent } => {
            let folder = IdentityFolder::new(agent.identity_directory);
            if let Some(request) = request_certificate(&agent.listen, &folder).await? {
                print(&request)?;
            }
            Ok(())
        }
        CertificateCommand::Install { agent, certificate, authorities, revoked } => {
            let trust = DriverTrust { authorities, revoked: revoked.concat() };
            Ok(install_certificate(&agent.listen, certificate, trust).await?)
        }
    }
}

pub(crate) async fn directories(command: DirectoriesCommand) -> anyhow::Result<()> {
    match command {
        DirectoriesCommand::Wait => drop(TerminationSignals::new()?.next().await),
        DirectoriesCommand::Make { installation } => make_directories(&installation)?,
        DirectoriesCommand::Remove { installation } => remove_directories(&installation)?,
    }
    Ok(())
}

fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
