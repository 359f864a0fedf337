//! Tests of the products in the cache.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::cache::Cache;
use crate::images::{self, Options, ProductScope};
use crate::process::{RunningProcess, output};
use crate::table::{GoBuild, ImageDefinition, Product, ProductSet, ProgramOrigin};

/// Returns the arguments that make a program print its version, and a part of the expected output.
fn question(origin: ProgramOrigin) -> (&'static [&'static str], String) {
    match origin {
        ProgramOrigin::Go(GoBuild::Kubernetes(_), "kubectl") => {
            (&["version", "--client"], format!("Client Version: v{}\n", version(origin)))
        }
        // agnhost does not know its own version.
        ProgramOrigin::Go(GoBuild::Kubernetes(_), "agnhost") => (&["--version"], "app version ".to_owned()),
        ProgramOrigin::Go(GoBuild::Kubernetes(_), _) => (&["--version"], format!("Kubernetes v{}\n", version(origin))),
        ProgramOrigin::Go(GoBuild::Etcd(_), "etcd") => (&["--version"], format!("etcd Version: {}\n", version(origin))),
        ProgramOrigin::Go(GoBuild::Etcd(_), name) => (&["version"], format!("{name} version: {}\n", version(origin))),
        ProgramOrigin::Go(GoBuild::Containerd, "containerd-shim-runc-v2") => {
            (&["-v"], format!("Version:  v{}\n", version(origin)))
        }
        ProgramOrigin::Go(GoBuild::Containerd, _) => (&["--version"], format!(" v{}", version(origin))),
        // wireguard-go prints the last version that was tagged.
        ProgramOrigin::Go(GoBuild::Wireguard, _) => (&["--version"], "wireguard-go v0.0.".to_owned()),
        ProgramOrigin::Go(GoBuild::CoreDns(_), _) => (&["-version"], format!("CoreDNS-{}\n", version(origin))),
        ProgramOrigin::Go(GoBuild::Distribution, _) => (&["--version"], format!(" v{}\n", version(origin))),
        ProgramOrigin::Go(GoBuild::MetricsServer, _) => (&["--version"], format!("v{}\n", version(origin))),
        ProgramOrigin::Go(GoBuild::CniPlugins, name) => (&[], format!("CNI {name} plugin v{}\n", version(origin))),
        ProgramOrigin::Go(GoBuild::CriTools, name) => {
            (&["--version"], format!("{name} version v{}\n", version(origin)))
        }
        ProgramOrigin::Go(GoBuild::Conformance, _) | ProgramOrigin::ModuleFile(..) => {
            panic!("{origin:?} is of the conformance tests, which ask it")
        }
        ProgramOrigin::Go(GoBuild::Helm, _) => (&["version", "--short"], format!("v{}\n", version(origin))),
        ProgramOrigin::Go(GoBuild::Versitygw, _) => (&["--version"], format!("v{}", version(origin))),
        ProgramOrigin::Workspace(name) => (&["--version"], format!("{name} {}\n", version(origin))),
        ProgramOrigin::C { name, .. } => (&["-v"], format!("{name} {}\n", version(origin))),
        ProgramOrigin::Debian { package: "bash" | "coreutils", .. } => (&["--version"], "Copyright".to_owned()),
        ProgramOrigin::Debian { .. } => (&["-v"], format!(" {}", version(origin))),
    }
}

fn version(origin: ProgramOrigin) -> &'static str {
    match origin {
        ProgramOrigin::Go(build, _) | ProgramOrigin::ModuleFile(build, _) => build.version(),
        ProgramOrigin::Workspace(_) => env!("CARGO_PKG_VERSION"),
        ProgramOrigin::C { version, .. } => version,
        ProgramOrigin::Debian { version, .. } => version.unwrap_or("v"),
    }
}

fn ask(origin: ProgramOrigin, mut command: Command) {
    let (arguments, wanted) = question(origin);
    let output = command.args(arguments).output().unwrap();
    // CNI plugins print their version to stderr.
    let said = [output.stdout.as_slice(), &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{origin:?}: {output:?}");
    assert!(said.contains(&wanted), "{} said {said:?}, not {wanted:?}", origin.name());
}

/// Returns the path of a product in the cache.
fn made(cache: &Cache, product: &Product) -> PathBuf {
    let path = cache.file(&product.path());
    let there = fs::exists(&path).unwrap();
    assert!(there, "{} does not exist; build it with `cargo xtask images --missing`", path.display());
    path
}

/// Unpacks the files of an image into a new directory. Another process writes them, for the reason that [`copy`](crate::process::copy) states.
fn unpacked(archive: &Path) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let unpack = r#"tar -xOf "$1" layer.tar | tar -xf - -C "$2""#;
    output(Command::new("sh").args(["-c", unpack, "sh"]).arg(archive).arg(root.path())).unwrap();
    root
}

/// Runs the programs of an image with the image as their root directory.
fn ask_image(image: &ImageDefinition, archive: &Path) {
    let root = unpacked(archive);
    for file in &image.files {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--root"]).arg(root.path()).arg(file.at);
        ask(file.origin, command);
    }
}

#[test]
fn each_program_prints_its_version() {
    let cache = Cache::of_environment().unwrap();
    for product in ProductSet::Standard.products() {
        let path = made(&cache, &product);
        match product {
            Product::Program(origin) => ask(origin, Command::new(path)),
            Product::Image(image) => ask_image(&image, &path),
        }
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(10), "{what}: not within ten seconds");
        thread::yield_now();
    }
}

fn children(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap()
}

#[test]
fn pause_reaps_orphans_and_ends_on_sigterm() {
    let cache = Cache::of_environment().unwrap();
    let product = ProductSet::Standard.products().into_iter().find(|product| product.name() == "pause").unwrap();
    let root = unpacked(&made(&cache, &product));
    let mut shell = Command::new("sh");
    // The child ends with its input, which is closed only once the shell has become `pause`: only `pause` can reap the child.
    shell.args(["-c", "{ cat <&3 & } 3<&0; exec \"$0\" </dev/null"]).arg(root.path().join("pause"));
    let mut pause = RunningProcess(shell.stdin(Stdio::piped()).spawn().unwrap());
    let id = pause.0.id();
    wait_until("the shell becomes pause", || fs::read_to_string(format!("/proc/{id}/comm")).unwrap() == "pause\n");
    assert!(!children(id).is_empty(), "the child is there");
    drop(pause.0.stdin.take());
    wait_until("the child is reaped", || children(id).is_empty());

    let sent = Command::new("kill").args(["-TERM", &id.to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(pause.0.wait().unwrap().code(), Some(0));
}

fn make(cache: &Cache, missing: bool) {
    let only = ["pause", "haproxy"].map(str::to_owned).into();
    let options = Options { only, missing, part: ProductScope::Others, plain: true, ..Options::default() };
    images::run(&options, cache).unwrap();
}

fn contents(cache: &Cache) -> BTreeMap<PathBuf, (u64, Vec<u8>)> {
    let images = fs::read_dir(cache.file("images")).unwrap();
    let paths = images.map(|entry| entry.unwrap().path());
    paths
        .map(|path| {
            let number = fs::metadata(&path).unwrap().ino();
            let content = fs::read(&path).unwrap();
            (path, (number, content))
        })
        .collect()
}

#[test]
fn two_runs_make_equal_bytes_and_a_warm_one_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path()).unwrap();
    make(&cache, true);
    let first = contents(&cache);
    assert_eq!(first.len(), 2);
    make(&cache, true);
    assert!(contents(&cache) == first, "a warm run wrote again");
    make(&cache, false);
    let again = contents(&cache);
    for (path, (number, content)) in &first {
        assert_ne!(*number, again[path].0, "{} was not made again", path.display());
        assert!(*content == again[path].1, "{} has other bytes now", path.display());
    }
    assert!(!cache.file("tmp").exists());
}
