//! Devices of several implementations, running in a namespace.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::end::{ConfigFile, End, public_key};
use super::namespace::Namespace;
use super::process::{Process, run, wait_until};

/// A running device of any implementation.
pub struct Running {
    pub process: Process,
    pub interface: String,
    _config: ConfigFile,
}

/// Returns a name that no other interface of the test has.
fn interface_name() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("wg{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn socket(interface: &str) -> PathBuf {
    Path::new("/var/run/wireguard").join(format!("{interface}.sock"))
}

/// Starts Keelway's device.
pub fn ours(namespace: &Namespace, end: &End, program: &Path, options: &[&str]) -> Running {
    let interface = interface_name();
    let config = ConfigFile::new(&end.quick_config());
    let args = [&["device", &interface, "--config", config.path()], options].concat();
    let mut process = namespace.spawn(program, &args, &[("RUST_LOG", "keelway_vpn=debug")]);
    wait_until("our device is up", Duration::from_secs(10), || {
        assert!(process.is_running(), "{}", process.log());
        process.log().contains(" up ") || process.log().contains("up \u{1b}")
    });
    Running { process, interface, _config: config }
}

/// Starts wireguard-go.
pub fn theirs(namespace: &Namespace, end: &End) -> Running {
    started(namespace, end, &program("wireguard-go"), &["-f"])
}

/// Starts an implementation that has the name of an interface as its argument and that `wg` and `ip` configure.
pub fn started(namespace: &Namespace, end: &End, program: &Path, options: &[&str]) -> Running {
    let interface = interface_name();
    let process = namespace.spawn(program, &[options, &[&interface]].concat(), &[("LOG_LEVEL", "error")]);
    let path = socket(&interface);
    wait_until("the device is up", Duration::from_secs(10), || path.exists());
    let config = ConfigFile::new(&end.wg_config());
    run("wg", &["setconf", &interface, config.path()]);
    namespace.ip(&["addr", "add", &format!("10.232.0.{}/24", end.number), "dev", &interface]);
    namespace.ip(&["link", "set", &interface, "up", "mtu", &end.mtu.to_string()]);
    if end.mtu >= 1280 {
        namespace.ip(&["addr", "add", &format!("fd32::{}/64", end.number), "dev", &interface, "nodad"]);
    }
    Running { process, interface, _config: config }
}

/// Returns a peer from `wg show .. dump`: endpoint, time of the latest handshake, received and sent bytes.
pub fn dump(interface: &str, peer: u8) -> (String, u64, u64, u64) {
    let text = run("wg", &["show", interface, "dump"]);
    let key = public_key(peer).to_string();
    let line = text.lines().find(|line| line.starts_with(&key)).unwrap_or_else(|| panic!("no peer {key} in {text}"));
    let fields: Vec<&str> = line.split('\t').collect();
    (fields[2].to_owned(), fields[4].parse().unwrap(), fields[5].parse().unwrap(), fields[6].parse().unwrap())
}

/// Returns the number of handshakes that Keelway's device has completed.
pub fn handshakes(running: &Running) -> usize {
    running.process.log().matches("HandshakeCompleted").count()
}

/// Returns the path of a program that `cargo xtask images` builds, from its cache or from PATH.
fn program(name: &str) -> PathBuf {
    let set = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("KEELWAY_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("keelway")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/keelway")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = cache.map(|cache| cache.join("bin")).into_iter().chain(std::env::split_paths(&path));
    places
        .map(|place| place.join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("{name} is missing: cargo xtask images --missing --only {name}"))
}
