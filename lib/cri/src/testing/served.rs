use std::{
    env,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{CriError, CriRuntime, Deadlines};

const START_WITHIN: Duration = Duration::from_secs(30);

/// A fake runtime in a process of its own, with a directory for its socket. Dropping it ends the process and removes the directory.
#[derive(Debug)]
pub struct ServedFake {
    directory: PathBuf,
    child: Child,
}

impl ServedFake {
    /// Starts the program `keelway-cri-fake` with `--socket` and these arguments, and waits until it responds.
    pub async fn start<A: AsRef<OsStr>>(test: &str, program: &Path, arguments: &[A]) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = env::temp_dir().join(format!("keelway-{test}-{}-{count}", process::id()));
        fs::create_dir(&directory)?;
        let child = Command::new(program)
            .arg("--socket")
            .arg(directory.join("cri.sock"))
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .inspect_err(|_| drop(fs::remove_dir_all(&directory)))?;
        let mut served = Self { directory, child };
        served.answers().await?;
        Ok(served)
    }

    /// Returns the directory of the socket. The test may put files of its own there.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join("cri.sock")
    }

    /// Returns a client of this fake.
    pub fn runtime(&self) -> Result<CriRuntime, CriError> {
        CriRuntime::on_socket(self.socket(), Deadlines::default())
    }

    /// Sends SIGTERM, and waits until the process has ended.
    pub fn end(&mut self) -> io::Result<ExitStatus> {
        // The kernel does not reuse the id of a child before `wait`.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        self.child.wait()
    }

    async fn answers(&mut self) -> io::Result<()> {
        let runtime = self.runtime().map_err(io::Error::other)?;
        let mut ask = tokio::time::interval(Duration::from_millis(10));
        let answered = async {
            while runtime.version().await.is_err() {
                if let Some(status) = self.child.try_wait()? {
                    return Err(io::Error::other(format!("the fake ended: {status}")));
                }
                ask.tick().await;
            }
            Ok(())
        };
        tokio::time::timeout(START_WITHIN, answered).await.map_err(io::Error::other)?
    }
}

impl Drop for ServedFake {
    fn drop(&mut self) {
        let ended = if matches!(self.child.try_wait(), Ok(Some(_))) { Ok(()) } else { self.end().map(drop) };
        if let Err(error) = ended.and_then(|()| fs::remove_dir_all(&self.directory)) {
            tracing::error!(%error, "a test's fake is not cleared away");
        }
    }
}
