//! The program of the helper's image. It waits, and its commands execute sealed requests.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use clap::{Parser, Subcommand, ValueEnum};
use keelway_api::name::{HypervisorName, InstallationId};
use keelway_machine_io::helper::{
    HelperIdentity, SealedWork,
    serve::{HelperKeyDirectory, manage_top_directories},
};
use tokio::signal::unix::{SignalKind, signal};

/// In memory, and of this pod alone.
const HOME: &str = "/dev/shm/keelway-helper";

/// Read and write files on a machine without an agent
#[derive(Parser)]
#[command(version)]
struct HelperArguments {
    #[command(subcommand)]
    command: HelperCommand,
}

#[derive(Subcommand)]
enum HelperCommand {
    /// Wait for SIGTERM
    Wait,
    /// Print the public key to which requests are sealed
    Key {
        /// The installation that the helper belongs to
        installation: InstallationId,
        /// The machine on which it runs
        machine: HypervisorName,
    },
    /// Execute the sealed request in the arguments, and print the result
    Do {
        /// The label of the request
        label: String,
        /// The encapsulated key
        key: String,
        /// The sealed request, in pieces
        #[arg(required = true)]
        pieces: Vec<String>,
    },
    /// Create or remove the directories that are mounted into the waiting container
    Tops {
        /// What to do
        what: Tops,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tops {
    /// Create the missing directories
    Make,
    /// Remove the created directories that are empty
    Leave,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let root = || File::open("/").context("cannot open the root directory");
    match HelperArguments::parse().command {
        HelperCommand::Wait => wait().await,
        HelperCommand::Key { installation, machine } => {
            let key = HelperKeyDirectory::at(Path::new(HOME))?.key(&HelperIdentity { installation, machine })?;
            say(key.as_bytes())
        }
        HelperCommand::Do { label, key, pieces } => {
            let bytes = |text: &str| STANDARD.decode(text).context("cannot decode the sealed request");
            let sealed = SealedWork { key: bytes(&key)?, text: bytes(&pieces.concat())? };
            let answer = HelperKeyDirectory::at(Path::new(HOME))?.serve(root()?.into(), &label, &sealed).await;
            say(&serde_json::to_vec(&answer)?)
        }
        HelperCommand::Tops { what } => Ok(manage_top_directories(&root()?.into(), what == Tops::Make)?),
    }
}

fn say(text: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text).and_then(|()| stdout.flush()).context("cannot write the result")
}

async fn wait() -> Result<()> {
    let mut end = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    end.recv().await;
    Ok(())
}
