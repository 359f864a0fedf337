//! Tests of the agent's package: its files, its unit, and its installation and use on a machine whose root is a directory.
//!
//! The packaged program is the one that the build of the workspace left beside the tests. Its shared libraries are copied into the root.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    deb, debian,
    process::{RunningProcess, copy, output},
};

const UNIT: &str = "usr/lib/systemd/system/keelway-hypervisor-agent.service";
const ENABLED: &str = "etc/systemd/system/multi-user.target.wants/keelway-hypervisor-agent.service";
const DEFAULTS: &str = "etc/default/keelway-hypervisor-agent";
/// The exposure in tenths, as `systemd-analyze security` counts it. Up to 5.0 is "medium". Running as root accounts for 0.4.
const EXPOSURE: &str = "24";
const EXPOSURE_OF_MANAGERS: &str = "13";
const WITHIN: Duration = Duration::from_secs(30);

/// Returns the path of a program that the build of the workspace left.
fn built(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join(name);
    assert!(program.exists(), "{} does not exist; build it with `cargo build --workspace`", program.display());
    program
}

/// A machine whose root is a directory, and the package.
struct PackageHost {
    root: TempDir,
    package: PathBuf,
}

impl PackageHost {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("keelway-deb-").tempdir().unwrap();
        for directory in
            ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log", "tmp", "proc", "sys", "run/containerd"]
        {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        for file in ["status", "available"] {
            fs::write(root.path().join("var/lib/dpkg").join(file), "").unwrap();
        }
        let package = deb::package(&built("keelway-hypervisor-agent"), root.path(), "none").unwrap();
        Self { root, package }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn dpkg(&self, arguments: &[&str]) -> String {
        let mut dpkg = Command::new("dpkg");
        let root = format!("--root={}", self.root.path().display());
        let log = format!("--log={}", self.path("var/log/dpkg.log").display());
        output(dpkg.args([&root, &log, "--force-script-chrootless", "--force-confold"]).args(arguments)).unwrap()
    }

    fn install(&self) {
        self.dpkg(&["--install", self.package.to_str().unwrap()]);
    }

    /// Returns whether the unit is enabled. The link is not followed, because its target is a path on the machine.
    fn enabled(&self) -> bool {
        fs::symlink_metadata(self.path(ENABLED)).is_ok()
    }

    /// Copies the shared libraries of the agent, which is not static here.
    fn lay_libraries(&self) {
        let program = built("keelway-hypervisor-agent");
        for library in debian::closure(&program).unwrap().iter().skip(1) {
            let place = self.path(library.strip_prefix("/").unwrap().to_str().unwrap());
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            copy(library, &place);
        }
    }
}

/// Returns the values of a setting of the unit, in order.
fn settings(unit: &str, name: &str) -> Vec<String> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.map(str::to_owned).collect()
}

/// Returns the command line of the unit with the arguments of the package's defaults.
fn command_line(machine: &PackageHost) -> Vec<String> {
    let unit = fs::read_to_string(machine.path(UNIT)).unwrap();
    let defaults = fs::read_to_string(machine.path(DEFAULTS)).unwrap();
    let given = defaults.lines().find_map(|line| line.strip_prefix("ARGUMENTS=\"")?.strip_suffix('"')).unwrap();
    let start = settings(&unit, "ExecStart").concat();
    start.replace("$ARGUMENTS", given).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_package_has_its_files_and_metadata() {
    let machine = PackageHost::new();
    let listed = output(Command::new("dpkg-deb").arg("-c").arg(&machine.package)).unwrap();
    let found: BTreeSet<(&str, &str)> = listed
        .lines()
        .filter(|line| line.starts_with('-'))
        .map(|line| (&line[..10], line.rsplit(" ./").next().unwrap()))
        .collect();
    let name = "keelway-hypervisor-agent";
    let [program, doc, man] =
        ["usr/bin", "usr/share/doc", "usr/share/man/man8"].map(|folder| format!("{folder}/{name}"));
    let [changelog, copyright, man] =
        [format!("{doc}/changelog.gz"), format!("{doc}/copyright"), format!("{man}.8.gz")];
    let plain = "-rw-r--r--";
    let wanted = [
        ("-rwxr-xr-x", program.as_str()),
        (plain, UNIT),
        (plain, DEFAULTS),
        (plain, changelog.as_str()),
        (plain, copyright.as_str()),
        (plain, man.as_str()),
    ];
    assert_eq!(found, BTreeSet::from(wanted), "{listed}");
    assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");

    let told = output(Command::new("dpkg-deb").arg("-f").arg(&machine.package)).unwrap();
    for line in
        ["Package: keelway-hypervisor-agent", &format!("Version: {}", env!("CARGO_PKG_VERSION")), "Section: admin"]
    {
        assert!(told.lines().any(|found| found == line), "{line} is not in\n{told}");
    }
    let conffiles = output(Command::new("dpkg-deb").args(["-I"]).arg(&machine.package).arg("conffiles")).unwrap();
    assert_eq!(conffiles.trim(), format!("/{DEFAULTS}"));
}

#[test]
fn a_package_can_be_removed_and_leaves_other_files() {
    let machine = PackageHost::new();
    machine.install();
    assert!(machine.enabled());
    assert_eq!(machine.dpkg(&["--verify"]), "");
    let data = machine.path("var/lib/keelway/owner");
    fs::create_dir_all(data.parent().unwrap()).unwrap();
    fs::write(&data, "00000000000000ff").unwrap();

    // A file that the administrator changed survives an upgrade and a removal.
    let defaults = machine.path(DEFAULTS);
    fs::write(&defaults, "ARGUMENTS=\"--listen=unix:///run/other.sock\"\n").unwrap();
    machine.install();
    machine.dpkg(&["--remove", "keelway-hypervisor-agent"]);
    assert!(fs::read_to_string(&defaults).unwrap().contains("other.sock"));
    assert!(!machine.path(UNIT).exists());
    machine.dpkg(&["--purge", "keelway-hypervisor-agent"]);
    assert!(!defaults.exists() && !machine.enabled());
    assert!(data.exists());
}

#[test]
fn the_unit_is_valid_and_has_few_privileges() {
    let machine = PackageHost::new();
    machine.install();
    let runtime = "[Service]\nExecStart=/usr/bin/keelway-hypervisor-agent\n";
    fs::write(machine.path(UNIT).with_file_name("containerd.service"), runtime).unwrap();
    is_sound(&machine, "keelway-hypervisor-agent.service", EXPOSURE);
}

/// The manager reaches machines over their network and needs no capability.
#[test]
fn the_managers_unit_is_valid_and_needs_no_capability() {
    let machine = PackageHost::new();
    let unit = machine.path(UNIT).with_file_name("keelway-manager.service");
    for (path, file) in [
        (unit, manifest("keelway-manager.service")),
        (machine.path("usr/bin/keelway-manager"), built("keelway-manager")),
    ] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        copy(&file, &path);
    }
    is_sound(&machine, "keelway-manager.service", EXPOSURE_OF_MANAGERS);
}

fn manifest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("manifests").join(name)
}

fn is_sound(machine: &PackageHost, unit: &str, exposure: &str) {
    // The targets that the unit refers to, and those that every unit depends on.
    for other in ["sysinit", "basic", "shutdown", "network-online", "multi-user"] {
        let target = machine.path(UNIT).with_file_name(format!("{other}.target"));
        fs::write(target, "[Unit]\nDefaultDependencies=no\n").unwrap();
    }
    let root = format!("--root={}", machine.root.path().display());
    let mut verify = Command::new("systemd-analyze");
    let verified = verify.args([&root, "--man=no", "verify", unit]).output().unwrap();
    let words = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && words.lines().all(|line| !line.contains(unit)), "{words}");

    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", &format!("--threshold={exposure}"), &root, unit]);
    output(&mut security).unwrap();
}

/// The test uses what the unit defines: command line, capabilities and no new privileges. The agent sends one notification when it is ready.
#[test]
fn an_installed_agent_runs_as_its_unit_defines() {
    let machine = PackageHost::new();
    machine.install();
    machine.lay_libraries();
    let runtime = machine.path("run/containerd/containerd.sock");
    let mut fake = Command::new(built("keelway-cri-fake"));
    let _runtime = RunningProcess(fake.arg("--socket").arg(&runtime).stdout(Stdio::null()).spawn().unwrap());

    let ready = UnixDatagram::bind(machine.path("run/notify")).unwrap();
    ready.set_read_timeout(Some(WITHIN)).unwrap();
    let unit = fs::read_to_string(machine.path(UNIT)).unwrap();
    let capabilities = settings(&unit, "CapabilityBoundingSet").concat().to_lowercase();
    let capabilities: String = capabilities.split_whitespace().map(|one| one.replace("cap_", ",+")).collect();
    assert!(unit.contains("NoNewPrivileges=yes\n") && !capabilities.is_empty());
    let mut confined = Command::new("unshare");
    confined.args(["--mount", "--propagation", "private", "sh", "-c"]);
    confined
        .arg("mount -t proc proc \"$1/proc\" && shift && exec setpriv \"$@\"")
        .args(["sh"])
        .arg(machine.root.path());
    // chroot itself needs the capability `sys_chroot`.
    confined.arg(format!("--bounding-set=-all,+sys_chroot{capabilities}")).arg("--no-new-privs");
    confined.args(["chroot"]).arg(machine.root.path()).args(command_line(&machine));
    confined.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("NOTIFY_SOCKET", "/run/notify");
    let mut agent = RunningProcess(confined.spawn().unwrap());

    let mut word = [0; 64];
    let length = ready.recv(&mut word).unwrap();
    assert_eq!(std::str::from_utf8(&word[..length]).unwrap().trim(), "READY=1");
    let socket = machine.path("run/keelway/agent.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(seen_through(&socket), "keelway-cri-fake");

    output(Command::new("kill").args(["-TERM", &agent.0.id().to_string()])).unwrap();
    assert!(agent.0.wait().unwrap().success());
}

/// Returns the name of the runtime that `keelway observe` reports for the agent.
fn seen_through(socket: &Path) -> String {
    let document = format!(
        "apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-1}}\nspec:\n  role: Private\n  endpoint: \
         {{agent: {{unix: {{path: {}}}}}}}\n  addresses: {{private: [10.0.0.1]}}\n",
        socket.display()
    );
    let file = socket.with_file_name("hv-1.yaml");
    fs::write(&file, document).unwrap();
    let seen = output(Command::new(built("keelway")).arg("observe").arg("-f").arg(&file)).unwrap();
    let runtime = seen.lines().skip_while(|line| line.trim() != "runtime:").nth(1).unwrap_or(&seen);
    runtime.trim().trim_start_matches("name: ").to_owned()
}
