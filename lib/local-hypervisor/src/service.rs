//! Starts programs of a machine that report when they are ready, like services of systemd (`sd_notify(3)`).

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixDatagram, UnixStream},
    process::{Child, Command},
    time::timeout,
};

use crate::{Launcher, LocalHypervisorError, files::write_atomically, fleet::FleetMachine, launch::Launch};

/// How long a program may take to report that it is ready. Measured: 0.3 s; with all cores busy, some seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lines of the log that an error quotes.
const QUOTED_LINES: usize = 15;

/// How long a gRPC server may take for its first frame. Measured: less than a millisecond. A server that takes this long hangs.
const FRAME: Duration = Duration::from_secs(10);

/// The client's preface and its empty settings (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Whether a gRPC server responds on a socket. A connection alone proves nothing, because the kernel accepts it even if the server hangs.
pub(crate) async fn answers(socket: &Path) -> bool {
    let answer = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(PREFACE).await?;
        stream.read_u8().await
    };
    matches!(timeout(FRAME, answer).await, Ok(Ok(_)))
}

/// A program of a machine, with its files.
pub(crate) struct MachineService<'a> {
    pub(crate) machine: &'a FleetMachine,
    pub(crate) program: &'static str,
    /// The name of its notify socket in the machine's `/run`.
    pub(crate) notify: &'static str,
    pub(crate) launch: PathBuf,
    pub(crate) log: PathBuf,
}

impl MachineService<'_> {
    /// Returns the variable `NOTIFY_SOCKET` for the program.
    pub(crate) fn notify_socket(&self) -> (String, String) {
        ("NOTIFY_SOCKET".to_owned(), format!("/run/{}", self.notify))
    }

    /// Starts the program, and waits until it is ready.
    pub(crate) async fn start(&self, launch: &Launch, launcher: &Launcher) -> Result<(), LocalHypervisorError> {
        let notify = self.machine.run().join(self.notify);
        if notify.exists() {
            fs::remove_file(&notify).map_err(LocalHypervisorError::file("remove", &notify))?;
        }
        let text = serde_json::to_vec_pretty(launch)
            .map_err(|source| LocalHypervisorError::Record { path: self.launch.clone(), source })?;
        write_atomically(&self.launch, &text)?;
        let reports = UnixDatagram::bind(&notify).map_err(LocalHypervisorError::file("listen on", &notify))?;
        let child = self.spawn(launcher)?;
        let result = self.wait_until_ready(child, &reports).await;
        let removed = fs::remove_file(&notify).map_err(LocalHypervisorError::file("remove", notify));
        result.and(removed)
    }

    fn spawn(&self, launcher: &Launcher) -> Result<Child, LocalHypervisorError> {
        let path = &self.log;
        let log =
            File::options().create(true).append(true).open(path).map_err(LocalHypervisorError::file("open", path))?;
        let second = log.try_clone().map_err(LocalHypervisorError::file("open", path))?;
        Command::new(&launcher.program)
            .args(&launcher.arguments)
            .arg(&self.launch)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second)
            .spawn()
            .map_err(|source| LocalHypervisorError::Spawn { program: launcher.program.clone(), source })
    }

    /// Waits until the program is ready, ends, or the time is over.
    async fn wait_until_ready(&self, mut child: Child, reports: &UnixDatagram) -> Result<(), LocalHypervisorError> {
        let (program, machine) = (self.program, self.machine.name());
        let outcome = timeout(PATIENCE, async {
            tokio::select! {
                ready = wait_for_ready_message(reports) => ready.map(|()| None),
                ended = child.wait() => ended.map(Some),
            }
        });
        match outcome.await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(status))) => {
                Err(LocalHypervisorError::Ended { program, machine, status, log: self.end_of_log() })
            }
            Ok(Err(source)) => Err(LocalHypervisorError::system("wait for a program")(source)),
            Err(_) => {
                child.kill().await.map_err(LocalHypervisorError::system("stop a program"))?;
                Err(LocalHypervisorError::NotReady { program, machine, waited: PATIENCE, log: self.end_of_log() })
            }
        }
    }

    fn end_of_log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
    }
}

/// Waits for the message `READY=1` of `sd_notify(3)`.
async fn wait_for_ready_message(reports: &UnixDatagram) -> io::Result<()> {
    let mut buffer = [0; 512];
    loop {
        let length = reports.recv(&mut buffer).await?;
        let message = String::from_utf8_lossy(&buffer[..length]);
        if message.lines().any(|line| line == "READY=1") {
            return Ok(());
        }
    }
}
