//! Runs `ginkgo` with Kubernetes' `e2e.test`.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use keelway_api::release;
use keelway_cri::testing::cache;
use keelway_e2e::{Kubectl, program_directory, worker_fleet::WorkerFleet};
use keelway_machine_io::image;

use crate::omitted;

/// A regular expression for the names of the specs to run. Without it, all run. The page then has those of them that the last run of all specs left out.
const FOCUS: &str = "KEELWAY_CONFORMANCE_FOCUS";
/// The report of all specs, and of those that a focus selects.
const OF_ALL: &str = "report.json";
const OF_FOCUS: &str = "focus.json";
/// The number of specs that run at a time.
const PROCESSES: &str = "KEELWAY_CONFORMANCE_PROCESSES";
/// The number of runs of a spec that fails. On a machine with few cores, load alone exceeds the deadlines of some specs.
const ATTEMPTS: &str = "2";
/// Two cores need about half an hour for all specs.
const DEADLINE: &str = "3h";

/// The programs of the suite, and the directory of its output.
pub(crate) struct Suite {
    cache: PathBuf,
    output: PathBuf,
    focus: Option<String>,
}

impl Suite {
    pub(crate) fn of_environment() -> Self {
        let output = Path::new(program_directory()).with_file_name("conformance");
        fs::create_dir_all(&output).unwrap();
        let focus = env::var(FOCUS).ok().filter(|focus| !focus.is_empty());
        Self { cache: cache().unwrap(), output, focus }
    }

    /// Returns the report of the last run of all specs, if there is one. If this run has all specs itself, it needs no earlier report, and this is `None`.
    pub(crate) fn earlier_report(&self) -> Option<String> {
        self.focus.as_ref().and_then(|_| fs::read_to_string(self.output.join(OF_ALL)).ok())
    }

    /// Returns whether all specs run.
    pub(crate) fn is_whole(&self) -> bool {
        self.focus.is_none()
    }

    fn report(&self) -> &'static str {
        if self.is_whole() { OF_ALL } else { OF_FOCUS }
    }

    /// Returns the file with the output of the suite.
    pub(crate) fn log(&self) -> PathBuf {
        self.output.join("log")
    }

    /// Imports all images of the suite, and the image of etcd, into the runtime of a worker.
    pub(crate) fn import_images(&self, worker_fleet: &WorkerFleet, worker: &str) {
        let etcd = image::archive_name(&release::newest().etcd_image(None));
        worker_fleet.worker(worker).import(&self.cache.join("images").join(etcd));
        for archive in fs::read_dir(self.cache.join("conformance")).unwrap() {
            worker_fleet.worker(worker).import(&archive.unwrap().path());
        }
    }

    /// Runs the specs, and returns the report of ginkgo.
    pub(crate) fn run(&self, kubectl: &Kubectl) -> String {
        println!("the output of the conformance tests is in {}", self.log().display());
        let report = self.output.join(self.report());
        // A suite that ends without a report must not leave that of the previous run.
        let _ = fs::remove_file(&report);
        let log = File::create(self.log()).unwrap();
        let status = self.command(kubectl).stdout(log.try_clone().unwrap()).stderr(log).status().unwrap();
        println!("ginkgo ended: {status}");
        fs::read_to_string(&report).unwrap()
    }

    fn command(&self, kubectl: &Kubectl) -> Command {
        let program = |name| self.cache.join("bin").join(name);
        let home = kubectl.file().parent().unwrap();
        let mut ginkgo = Command::new(program("ginkgo"));
        ginkgo
            .args(["--no-color", "--flake-attempts", ATTEMPTS, "--timeout", DEADLINE, "--procs", &processes()])
            .args(["--label-filter", &omitted::label_filter()])
            .args(omitted::SPECS.iter().flat_map(|(part, _)| ["--skip", part]))
            .args(self.focus.iter().flat_map(|focus| ["--focus", focus]))
            .args(["--json-report", self.report(), "--output-dir"])
            .arg(&self.output)
            .arg(program("e2e.test"))
            .args(["--", "--provider", "skeleton", "--disable-log-dump", "--kubeconfig"])
            .arg(kubectl.file())
            .arg("--kubectl-path")
            .arg(program("kubectl"))
            .env("HOME", home)
            .current_dir(home);
        ginkgo
    }
}

/// Specs wait more than they compute, so that twice as many as there are cores run at a time.
fn processes() -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    env::var(PROCESSES).unwrap_or_else(|_| (2 * cores).to_string())
}
