use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::leftovers::{self, CONFIGURATION};
use crate::{CriError, CriRuntime, Deadlines};

const START_WITHIN: Duration = Duration::from_secs(60);

/// Options of a private containerd.
#[derive(Clone, Debug)]
pub struct ContainerdOptions {
    /// The test's name: at most ten letters, digits and dashes.
    pub test: String,
    /// The directory with `containerd` and `containerd-shim-runc-v2`, usually `bin` in [`super::cache`]. `runc` is found through `PATH`.
    pub binaries: PathBuf,
    /// The image that sandboxes run.
    pub sandbox_image: String,
    /// Words before the command line, such as `nsenter --net=/run/netns/NAME`. They must end in an exec.
    pub prefix: Vec<OsString>,
}

/// The private containerd of a test. Its root, state, socket, shim sockets and configuration are in one directory. Dropping it ends containerd and
/// everything that it runs, and removes the directory.
#[derive(Debug)]
pub struct Containerd {
    directory: PathBuf,
    child: Child,
}

impl Containerd {
    /// Removes what killed tests left, starts a containerd, and waits until it responds.
    pub async fn start(options: &ContainerdOptions) -> io::Result<Self> {
        leftovers::remove_leftovers()?;
        let directory = leftovers::directory_for(&options.test)?;
        leftovers::clear(&directory)?;
        fs::create_dir_all(directory.join("cni"))?;
        fs::write(directory.join(CONFIGURATION), configuration(&directory, &options.sandbox_image))?;
        let child = command(&directory, options)?.spawn()?;
        let mut containerd = Self { directory, child };
        containerd.answers().await?;
        Ok(containerd)
    }

    /// Returns the directory of this containerd. The test may put files of its own there.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join("containerd.sock")
    }

    /// Returns the cgroup parent that sandboxes must have. Otherwise their cgroups are not found and removed.
    #[must_use]
    pub fn cgroup_parent(&self) -> String {
        format!("/{}", self.directory.file_name().unwrap_or_default().display())
    }

    /// Returns a client of this containerd.
    pub fn runtime(&self) -> Result<CriRuntime, CriError> {
        CriRuntime::on_socket(self.socket(), Deadlines::default())
    }

    /// Returns the log so far.
    pub fn log(&self) -> io::Result<String> {
        fs::read_to_string(self.directory.join("containerd.log"))
    }

    async fn answers(&mut self) -> io::Result<()> {
        let runtime = self.runtime().map_err(io::Error::other)?;
        let mut ask = tokio::time::interval(Duration::from_millis(50));
        let answered = async {
            loop {
                ask.tick().await;
                match runtime.version().await {
                    Ok(_) => return Ok(()),
                    // containerd serves, but without CRI.
                    Err(error @ CriError::Refused { .. }) => {
                        return Err(io::Error::other(format!("{error}\n{}", self.log()?)));
                    }
                    Err(_) => {}
                }
                if let Some(status) = self.child.try_wait()? {
                    return Err(io::Error::other(format!("containerd ended: {status}\n{}", self.log()?)));
                }
            }
        };
        match tokio::time::timeout(START_WITHIN, answered).await {
            Ok(answered) => answered,
            Err(_) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("containerd does not answer\n{}", self.log()?)))
            }
        }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Err(error) = leftovers::clear(&self.directory) {
            tracing::error!(directory = %self.directory.display(), %error, "a test's containerd is not cleared away");
        }
    }
}

fn command(directory: &Path, options: &ContainerdOptions) -> io::Result<Command> {
    let program = options.binaries.join("containerd");
    let mut words = options.prefix.iter().map(OsString::as_os_str).chain([program.as_os_str()]);
    let mut command = Command::new(words.next().unwrap_or(OsStr::new("containerd")));
    let log = File::create(directory.join("containerd.log"))?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([options.binaries.clone()].into_iter().chain(env::split_paths(&path)));
    command
        .args(words)
        .arg("--config")
        .arg(directory.join(CONFIGURATION))
        .env("PATH", path.map_err(io::Error::other)?)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A Ctrl-C in a terminal must reach the test only, which then ends containerd in its own order.
        .process_group(0);
    Ok(command)
}

/// Returns a configuration that uses nothing of the machine's own containerd, and loads no plugin that a machine may lack.
fn configuration(directory: &Path, sandbox_image: &str) -> String {
    let directory = directory.display();
    format!(
        "version = 3
root = '{directory}/root'
state = '{directory}/state'
temp = '{directory}/temp'
disabled_plugins = [
  'io.containerd.snapshotter.v1.btrfs',
  'io.containerd.snapshotter.v1.devmapper',
  'io.containerd.snapshotter.v1.zfs',
]

[grpc]
address = '{directory}/containerd.sock'

[plugins.'io.containerd.shim.v1.manager']
socket_dir = '{directory}/s'

[plugins.'io.containerd.internal.v1.opt']
path = '{directory}/opt'

[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{sandbox_image}'

[plugins.'io.containerd.cri.v1.images'.registry]
config_path = '{directory}/certs.d'

[plugins.'io.containerd.cri.v1.runtime']
# Where root may not lower a process' oom_score_adj, no sandbox would start without this.
restrict_oom_score_adj = true
cdi_spec_dirs = []

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{directory}/cni']
conf_dir = '{directory}/cni'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
Root = '{directory}/runc'
"
    )
}
