//! One program with its flags and the files of its container.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use keelway_cri::fake::FakeProgram;
use tokio::net::UnixListener;

/// The command line and mounts of a program.
#[derive(Debug)]
pub(super) struct StartedProgram {
    program: FakeProgram,
    /// The root of the machine.
    root: PathBuf,
}

impl StartedProgram {
    pub(super) fn new(root: &Path, program: FakeProgram) -> Self {
        Self { program, root: root.to_owned() }
    }

    /// Returns the name of the program.
    pub(super) fn name(&self) -> &str {
        self.program.command.first().map(String::as_str).unwrap_or_default()
    }

    /// Returns each argument that follows this one.
    pub(super) fn all_after(&self, word: &str) -> impl Iterator<Item = &str> {
        let pairs = self.program.command.windows(2).filter(move |pair| pair[0] == word);
        pairs.map(|pair| pair[1].as_str())
    }

    /// Returns the value of `--NAME=VALUE`.
    pub(super) fn flag(&self, name: &str) -> anyhow::Result<&str> {
        let value = |word: &'_ String| -> Option<usize> {
            let rest = word.strip_prefix("--")?.strip_prefix(name)?;
            rest.starts_with('=').then_some(word.len() - rest.len() + 1)
        };
        let found = self.program.command.iter().find_map(|word| Some(&word[value(word)?..]));
        found.with_context(|| format!("there is no --{name}"))
    }

    /// Returns the address in `--bind-address` and `--secure-port`, the flags of Kubernetes' programs.
    pub(super) fn bind_address(&self) -> anyhow::Result<SocketAddr> {
        let address = self.flag("bind-address")?.parse().context("--bind-address is no address")?;
        let port = self.flag("secure-port")?.parse().context("--secure-port is no port")?;
        Ok(SocketAddr::new(address, port))
    }

    /// Reads a file of the container.
    pub(super) fn read(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let on_machine = self.on_machine(path)?;
        fs::read(&on_machine).with_context(|| format!("could not read {}", on_machine.display()))
    }

    /// Reads the file that a flag names.
    pub(super) fn read_flag(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        self.read(self.flag(name)?)
    }

    /// Listens on a Unix socket of the container. The socket has the owner of its directory, as if the container's user had created it.
    pub(super) fn listen(&self, path: &str) -> anyhow::Result<UnixListener> {
        let on_machine = self.on_machine(path)?;
        let listen = || {
            // An earlier program of this container may have left a socket.
            match fs::remove_file(&on_machine) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&on_machine)?;
            let owner = fs::metadata(on_machine.parent().unwrap_or(&on_machine))?;
            chown(&on_machine, Some(owner.uid()), Some(owner.gid()))?;
            fs::set_permissions(&on_machine, fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        listen().with_context(|| format!("could not listen on {}", on_machine.display()))
    }

    /// Creates a directory that the program writes to.
    pub(super) fn make_directory(&self, path: &str) -> anyhow::Result<()> {
        let on_machine = self.on_machine(path)?;
        fs::create_dir_all(&on_machine).with_context(|| format!("could not make {}", on_machine.display()))
    }

    fn on_machine(&self, path: &str) -> anyhow::Result<PathBuf> {
        for mount in &self.program.mounts {
            if let Some(below) = path.strip_prefix(&mount.container_path).and_then(|rest| rest.strip_prefix('/')) {
                let on_machine = self.root.join(mount.host_path.trim_start_matches('/'));
                return Ok(on_machine.join(below));
            }
        }
        bail!("{path} is in no mount of the container")
    }
}

/// Returns the address of an `https://` URL.
pub(super) fn address_of(url: &str) -> anyhow::Result<SocketAddr> {
    let address = url.strip_prefix("https://").with_context(|| format!("{url} is not https"))?;
    address.parse().with_context(|| format!("{address} is no address with a port"))
}
