//! The manager, over a directory of documents or a management cluster.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::Write,
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use keelway_api::Documents;
use keelway_cri::testing::cache;
use keelway_manager::{client::DEFAULT_SOCKET, health::DEFAULT_ADDRESS};

use crate::{deadline, keelway::program, metrics, process};

/// One `keelway-manager`, which is killed where nobody ends it.
pub struct Manager {
    store: ManagerStore,
    log: PathBuf,
    child: Option<Child>,
}

/// Where its documents are.
enum ManagerStore {
    Directory(PathBuf),
    /// By the file of a kubeconfig.
    Kubernetes(PathBuf),
}

impl Manager {
    /// Over a directory, which is made where there is none; its log is beside it.
    pub fn start(directory: &Path) -> Self {
        Self::over(ManagerStore::Directory(directory.to_owned()), directory)
    }

    /// Over a management cluster, by a kubeconfig; its log is beside that.
    pub fn with(kubeconfig: &Path) -> Self {
        Self::over(ManagerStore::Kubernetes(kubeconfig.to_owned()), kubeconfig)
    }

    fn over(store: ManagerStore, beside: &Path) -> Self {
        let mut manager = Self { store, log: beside.with_extension("log"), child: None };
        manager.start_again();
        manager
    }

    /// Another process over the same documents. It can be asked then.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "one manager at a time");
        let log = OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let mut command = Command::new(program().with_file_name("keelway-manager"));
        command.arg("run");
        match &self.store {
            ManagerStore::Directory(directory) => command.arg(format!("--store=dir:{}", directory.display())),
            ManagerStore::Kubernetes(kubeconfig) => {
                command.arg("--store=kubernetes").arg("--kubeconfig").arg(kubeconfig)
            }
        };
        command.arg("--images").arg(cache().unwrap().join("images"));
        let path = env::join_paths(
            [cache().unwrap().join("bin")].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap())),
        );
        self.child = Some(command.env("PATH", path.unwrap()).stdin(Stdio::null()).stderr(log).spawn().unwrap());
        deadline::until("the manager listens", deadline::READ, || match self.store {
            // The socket of one that was killed stays, and nobody listens on it.
            ManagerStore::Directory(_) => UnixStream::connect(DEFAULT_SOCKET).is_ok(),
            ManagerStore::Kubernetes(_) => TcpStream::connect(DEFAULT_ADDRESS).is_ok(),
        });
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Ends it by the signal that none can catch.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends it as a service manager does.
    pub fn stop(&mut self) {
        process::signal(self.pid(), rustix::process::Signal::TERM);
        assert!(process::ends_within(self.pid(), deadline::READ), "the manager ends when it is asked to");
        assert!(self.child.take().unwrap().wait().unwrap().success());
    }

    /// A figure that it tells Prometheus; none where it does not tell it.
    pub fn figure(&self, sample: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(DEFAULT_ADDRESS).unwrap();
        let text = metrics::ask(&mut stream, "/metrics").unwrap();
        text.lines().find_map(|line| line.strip_prefix(sample)?.trim().parse().ok())
    }

    /// What it said, as lines of JSON.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn directory(&self) -> &Path {
        match &self.store {
            ManagerStore::Directory(directory) => directory,
            ManagerStore::Kubernetes(_) => panic!("a management cluster has no files"),
        }
    }

    /// The documents in its directory.
    pub fn documents(&self) -> Option<Documents> {
        documents_in(self.directory())
    }

    /// A person writes a file: a new one in the place of the one before.
    pub fn write(&self, path: &str, text: &str) {
        let file = self.directory().join(path);
        let beside = file.with_extension("swp");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut handle = File::create(&beside).unwrap();
        handle.write_all(text.as_bytes()).unwrap();
        fs::rename(beside, file).unwrap();
    }

    /// What a file holds.
    pub fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.directory().join(path)).ok()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
        println!("{}", self.log());
    }
}

/// The documents of a directory; none while one of them is being replaced.
pub fn documents_in(directory: &Path) -> Option<Documents> {
    let mut text = String::new();
    collect(directory, &mut text).ok()?;
    Documents::read(text.as_bytes()).ok()
}

fn collect(directory: &Path, text: &mut String) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), text)?;
        } else if entry.path().extension().is_some_and(|suffix| suffix == "yaml") && !name.starts_with('.') {
            text.push_str("---\n");
            text.push_str(&fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}
