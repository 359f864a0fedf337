//! The manager, with a directory of documents or a management cluster as its store.

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
use keelway_manager::health::DEFAULT_ADDRESS;
use keelway_manager_client::client::DEFAULT_SOCKET;

use crate::{deadline, keelway::program, metrics, process};

/// One `keelway-manager` process. It is killed on drop.
pub struct Manager {
    store: ManagerStore,
    log: PathBuf,
    child: Option<Child>,
}

/// The store of the documents.
enum ManagerStore {
    Directory(PathBuf),
    /// A kubeconfig file.
    Kubernetes(PathBuf),
}

impl Manager {
    /// Starts a manager with a directory as its store. The directory is created if it does not exist. The log is beside it.
    pub fn start(directory: &Path) -> Self {
        Self::over(ManagerStore::Directory(directory.to_owned()), directory)
    }

    /// Starts a manager with a management cluster as its store. The log is beside the kubeconfig.
    pub fn with(kubeconfig: &Path) -> Self {
        Self::over(ManagerStore::Kubernetes(kubeconfig.to_owned()), kubeconfig)
    }

    fn over(store: ManagerStore, beside: &Path) -> Self {
        let mut manager = Self { store, log: beside.with_extension("log"), child: None };
        manager.start_again();
        manager
    }

    /// Starts another process with the same documents. Returns when it serves requests.
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
            // The socket of a killed manager remains, but refuses connections.
            ManagerStore::Directory(_) => UnixStream::connect(DEFAULT_SOCKET).is_ok(),
            ManagerStore::Kubernetes(_) => TcpStream::connect(DEFAULT_ADDRESS).is_ok(),
        });
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Kills the manager with SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends the manager as a service manager does.
    pub fn stop(&mut self) {
        process::signal(self.pid(), rustix::process::Signal::TERM);
        assert!(process::ends_within(self.pid(), deadline::READ), "the manager ends when it is asked to");
        assert!(self.child.take().unwrap().wait().unwrap().success());
    }

    /// Returns the value of a sample from the metrics endpoint, or `None` if the sample is missing.
    pub fn figure(&self, sample: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(DEFAULT_ADDRESS).unwrap();
        let text = metrics::ask(&mut stream, "/metrics").unwrap();
        text.lines().find_map(|line| line.strip_prefix(sample)?.trim().parse().ok())
    }

    /// Returns the log, which consists of lines of JSON.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Returns the directory of the documents.
    pub fn store(&self) -> &Path {
        self.directory()
    }

    fn directory(&self) -> &Path {
        match &self.store {
            ManagerStore::Directory(directory) => directory,
            ManagerStore::Kubernetes(_) => panic!("a management cluster has no files"),
        }
    }

    /// Returns the documents in the directory, or `None` while a file is being replaced.
    pub fn documents(&self) -> Option<Documents> {
        documents_in(self.directory())
    }

    /// Replaces a file as an editor does: writes a new file and renames it.
    pub fn write(&self, path: &str, text: &str) {
        let file = self.directory().join(path);
        let beside = file.with_extension("swp");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut handle = File::create(&beside).unwrap();
        handle.write_all(text.as_bytes()).unwrap();
        fs::rename(beside, file).unwrap();
    }

    /// Returns the content of a file.
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

/// Returns the documents of a directory, or `None` while one of its files is being replaced.
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
