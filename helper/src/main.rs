//! The one program of the helper's image: it waits, and its commands do what they are handed.

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

/// Places files on a machine without an agent, and tells what is there
#[derive(Parser)]
#[command(version)]
struct HelperArguments {
    #[command(subcommand)]
    command: HelperCommand,
}

#[derive(Subcommand)]
enum HelperCommand {
    /// Wait to be ended
    Wait,
    /// Print the public half of the key that work is sealed to
    Key {
        /// Whose helper it is
        installation: InstallationId,
        /// On which machine
        machine: HypervisorName,
    },
    /// Do what is sealed in the arguments, and print what came of it
    Do {
        /// What it is about
        label: String,
        /// The encapsulated key
        key: String,
        /// What is sealed, in pieces
        #[arg(required = true)]
        pieces: Vec<String>,
    },
    /// Make, or leave, the directories that are mounted into the container that waits
    Tops {
        /// Which of both
        what: Tops,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tops {
    /// Make them where they are missing
    Make,
    /// Remove those that were made, where nothing is in them
    Leave,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let root = || File::open("/").context("open the root directory");
    match HelperArguments::parse().command {
        HelperCommand::Wait => wait().await,
        HelperCommand::Key { installation, machine } => {
            let key = HelperKeyDirectory::at(Path::new(HOME))?.key(&HelperIdentity { installation, machine })?;
            say(key.as_bytes())
        }
        HelperCommand::Do { label, key, pieces } => {
            let bytes = |text: &str| STANDARD.decode(text).context("read what is sealed");
            let sealed = SealedWork { key: bytes(&key)?, text: bytes(&pieces.concat())? };
            let answer = HelperKeyDirectory::at(Path::new(HOME))?.serve(root()?.into(), &label, &sealed).await;
            say(&serde_json::to_vec(&answer)?)
        }
        HelperCommand::Tops { what } => Ok(manage_top_directories(&root()?.into(), what == Tops::Make)?),
    }
}

fn say(text: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text).and_then(|()| stdout.flush()).context("say what came of it")
}

async fn wait() -> Result<()> {
    let mut end = signal(SignalKind::terminate()).context("wait for the end")?;
    end.recv().await;
    Ok(())
}
