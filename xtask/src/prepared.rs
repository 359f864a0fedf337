//! The images that local hypervisors share: the root of a containerd into which each archive of the cache is imported once.
//!
//! `containerd/KEY/` of the cache is such a root, and `containerd/current` links to the newest. It never changes, because machines link to its layers.
//! The next one begins as a copy, with hard links, and imports only what differs.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::archive::sha256;
use crate::cache::{self, Cache, CacheLock};
use crate::process::{self, RunningProcess};
use crate::progress::ProgressOutput;

/// The directory of the roots in the cache.
const ROOTS: &str = "containerd";
/// The link to the newest root.
const CURRENT: &str = "current";
/// The names and digests of the archives in a root.
const CONTENT: &str = "archives";
/// The state of local hypervisors, which link to roots.
const LOCAL_HYPERVISORS: &str = "/var/lib/keelway-local";
/// Files that containerd changes in place.
const DATABASES: [&str; 2] =
    ["io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"];
/// The lease whose removal waits until there is no garbage.
const GARBAGE_LEASE: &str = "garbage";
/// How long containerd may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prepares the images of the cache, if containerd and its client are there. Only root can unpack images.
pub(crate) fn refresh(cache: &Cache, progress: ProgressOutput) -> Result<()> {
    let programs = [cache.file("bin/containerd"), cache.file("bin/ctr")];
    if fs::metadata("/proc/self")?.uid() != 0 || !programs.iter().all(|program| program.is_file()) {
        return Ok(());
    }
    let lock = cache.lock(|| progress.print("waiting for another run"))?;
    let archives = archives(cache)?;
    let content = archives.iter().map(|(name, recipe)| format!("{name} {recipe}\n")).collect::<Vec<_>>().concat();
    let roots = cache.file(ROOTS);
    let (current, root) = (roots.join(CURRENT), roots.join(&sha256(content.as_bytes())[..16]));
    if fs::read_to_string(current.join(CONTENT)).is_ok_and(|found| found == content) {
        return Ok(());
    }
    if !root.exists() {
        progress.print("preparing images for local hypervisors");
        let scratch = cache.scratch(&lock)?;
        let made = make(cache, &scratch, &current, &archives).and_then(|made| {
            fs::write(made.join(CONTENT), &content).context("write the list of archives")?;
            fs::create_dir_all(&roots).context("create the directory of prepared images")?;
            fs::rename(&made, &root).context("move prepared images")
        });
        cache::remove(&scratch)?;
        made?;
    }
    let previous = fs::read_link(&current).unwrap_or_default();
    let link = roots.join("next");
    drop(fs::remove_file(&link));
    symlink(&root, &link).and_then(|()| fs::rename(&link, &current)).context("link prepared images")?;
    remove_others(&roots, &[root, previous, current], &lock)
}

/// Returns the archives of the cache, each with the digest of its recipe.
fn archives(cache: &Cache) -> Result<Vec<(String, String)>> {
    let mut archives = Vec::new();
    for entry in fs::read_dir(cache.file("images")).context("list the images of the cache")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(recipe) = cache.recipe(&format!("images/{name}")) {
            archives.push((name, sha256(recipe.as_bytes())));
        }
    }
    archives.sort();
    Ok(archives)
}

/// Returns a new root below `scratch`. It begins with the images of the current one.
fn make(cache: &Cache, scratch: &Path, current: &Path, archives: &[(String, String)]) -> Result<PathBuf> {
    let root = scratch.join("root");
    let known = fs::read_to_string(current.join(CONTENT)).unwrap_or_default();
    if !known.is_empty() {
        process::output(Command::new("cp").args(["--archive", "--link"]).arg(current.canonicalize()?).arg(&root))?;
        for file in DATABASES.map(|file| root.join(file)) {
            let own = file.with_extension("own");
            fs::copy(&file, &own).and_then(|_| fs::rename(&own, &file)).context("copy a database")?;
        }
        fs::remove_file(root.join(CONTENT)).context("remove the list of archives")?;
    }
    let containerd = RunningContainerd::start(cache, scratch, &root)?;
    for (name, recipe) in archives {
        if !known.contains(&format!("{name} {recipe}\n")) {
            containerd.import(cache, name)?;
        }
    }
    containerd.collect_garbage(cache)?;
    containerd.stop()?;
    Ok(root)
}

/// A containerd without the plugins for pods.
struct RunningContainerd {
    process: RunningProcess,
    socket: PathBuf,
}

impl RunningContainerd {
    fn start(cache: &Cache, scratch: &Path, root: &Path) -> Result<Self> {
        let (config, socket, notify) = (scratch.join("c.toml"), scratch.join("c.sock"), scratch.join("notify"));
        let text = format!(
            "version = 3\nroot = '{}'\nstate = '{}'\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n[grpc]\n  address = '{}'\n",
            root.display(),
            scratch.join("state").display(),
            socket.display()
        );
        fs::write(&config, text).context("write containerd's configuration")?;
        let reports = UnixDatagram::bind(&notify).context("listen for containerd")?;
        reports.set_read_timeout(Some(PATIENCE))?;
        let log = fs::File::create(scratch.join("log")).context("create containerd's log")?;
        let process = Command::new(cache.file("bin/containerd"))
            .arg("--config")
            .arg(&config)
            .env("NOTIFY_SOCKET", &notify)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("run containerd")?;
        let this = Self { process: RunningProcess(process), socket };
        let mut message = [0; 512];
        loop {
            let length = reports.recv(&mut message).context("wait for containerd")?;
            if message.get(..length).is_some_and(|text| text.starts_with(b"READY=1")) {
                return Ok(this);
            }
        }
    }

    fn import(&self, cache: &Cache, archive: &str) -> Result<()> {
        let archive = cache.file("images").join(archive);
        process::output(self.ctr(cache, &["images", "import", "--local"]).arg(archive)).map(drop)
    }

    /// Removes the layers of images that newer ones have replaced, which each machine would otherwise do soon after its start. The removal of a lease
    /// can wait for that.
    fn collect_garbage(&self, cache: &Cache) -> Result<()> {
        process::output(&mut self.ctr(cache, &["leases", "create", "--id", GARBAGE_LEASE]))?;
        process::output(&mut self.ctr(cache, &["leases", "delete", "--sync", GARBAGE_LEASE])).map(drop)
    }

    fn ctr(&self, cache: &Cache, words: &[&str]) -> Command {
        let mut ctr = Command::new(cache.file("bin/ctr"));
        ctr.arg("--address").arg(&self.socket).args(["--namespace", "k8s.io"]).args(words);
        ctr
    }

    fn stop(mut self) -> Result<()> {
        process::output(Command::new("kill").arg(self.process.0.id().to_string()))?;
        let status = self.process.0.wait().context("wait for containerd's end")?;
        ensure!(status.success(), "containerd: {status}");
        Ok(())
    }
}

/// Removes all roots but these. Tests may link to the previous one. While there are local hypervisors, they may link to any.
fn remove_others(roots: &Path, kept: &[PathBuf], _lock: &CacheLock) -> Result<()> {
    let is_used = match fs::read_dir(LOCAL_HYPERVISORS) {
        Ok(mut fleets) => fleets.next().is_some(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    };
    if is_used {
        return Ok(());
    }
    for entry in fs::read_dir(roots).context("list prepared images")? {
        let path = entry?.path();
        if !kept.contains(&path) {
            cache::remove(&path)?;
        }
    }
    Ok(())
}
