//! The configuration of the containerd behind a socket, as `containerd config dump` prints it. containerd 2 reports neither the image of sandboxes nor
//! the snapshotter over CRI.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        process::CommandExt,
    },
    path::Path,
    process::Command,
    time::Duration,
};

use rustix::net::sockopt::socket_peercred;
use tokio::{net::UnixStream, time::timeout};

use crate::process;

/// The name of the program. Another program at the socket, such as a proxy, is not started.
const PROGRAM: &str = "containerd";
/// The options that name the configuration file.
const OPTIONS: [&str; 2] = ["--config", "-c"];
/// How long containerd may take to print its configuration.
const PRINTS: Duration = Duration::from_secs(10);

/// The settings that matter to a worker. `None` if containerd's configuration does not contain it, or cannot be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerdConfig {
    pub(super) snapshotter: Option<String>,
    pub(super) sandbox_image: Option<String>,
}

impl ContainerdConfig {
    /// Reads the configuration of the containerd that listens on a socket.
    pub(super) async fn of_socket(socket: &Path) -> Self {
        match dump(socket).await {
            Ok(text) => Self::parse(&text),
            Err(error) => {
                tracing::debug!(%error, socket = %socket.display(), "cannot read the configuration of containerd");
                Self::default()
            }
        }
    }

    /// Parses what containerd prints: TOML with one key per line, whose tables are never inline.
    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        let mut table = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                table = parts(header);
            } else if let Some((key, value)) = line.split_once(" = ").map(|(key, value)| (key, text_of(value))) {
                match (strings(&table).as_slice(), key) {
                    (["plugins", "io.containerd.cri.v1.images", "pinned_images"], "sandbox")
                    | (["plugins", "io.containerd.grpc.v1.cri"], "sandbox_image") => found.sandbox_image = value,
                    (
                        ["plugins", "io.containerd.cri.v1.images"]
                        | ["plugins", "io.containerd.grpc.v1.cri", "containerd"],
                        "snapshotter",
                    ) => found.snapshotter = value,
                    _ => {}
                }
            }
        }
        found
    }
}

/// Runs the program that listens on the socket, with its own configuration file.
async fn dump(socket: &Path) -> io::Result<String> {
    let pid = socket_peercred(&UnixStream::connect(socket).await?)?.pid;
    let own = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
    if fs::read_to_string(own.join("comm"))?.trim_end() != PROGRAM {
        return Err(io::Error::other("another program listens there"));
    }
    let command_line = fs::read(own.join("cmdline"))?;
    let mut command = Command::new(own.join("exe"));
    process::clear_environment(&mut command);
    // One program may be several, and choose by this name.
    command.arg0(OsStr::from_bytes(command_line.split(|byte| *byte == 0).next().unwrap_or_default()));
    command.args(config_option(&command_line)).args(["config", "dump"]);
    // The path of the file may be relative.
    command.current_dir(own.join("cwd"));
    let mut command = tokio::process::Command::from(command);
    let output = timeout(PRINTS, command.kill_on_drop(true).output()).await??;
    if !output.status.success() {
        return Err(io::Error::other(format!("`containerd config dump` ended with {}", output.status)));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

/// Returns the option with the configuration file, from a command line as the kernel lists it.
fn config_option(command_line: &[u8]) -> Vec<OsString> {
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
    let is_option = |word: &[u8]| OPTIONS.iter().any(|option| word == option.as_bytes());
    let is_joined = |word: &[u8]| {
        OPTIONS.iter().any(|option| word.strip_prefix(option.as_bytes()).is_some_and(|rest| rest.starts_with(b"=")))
    };
    let at = words.iter().position(|word| is_option(word) || is_joined(word));
    let taken = at.map_or(&[][..], |at| &words[at..words.len().min(at + if is_option(words[at]) { 2 } else { 1 })]);
    taken.iter().map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Splits the name of a table, such as `plugins.'io.containerd.cri.v1.images'.pinned_images`, at the dots outside of quotes.
fn parts(header: &str) -> Vec<String> {
    let (mut parts, mut quote) = (vec![String::new()], None);
    for letter in header.chars() {
        match (quote, letter) {
            (None, '.') => parts.push(String::new()),
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {
                if let Some(part) = parts.last_mut() {
                    part.push(letter);
                }
            }
        }
    }
    parts
}

fn strings(table: &[String]) -> Vec<&str> {
    table.iter().map(String::as_str).collect()
}

/// Returns a string without its quotes. `None` if it is empty, or no string.
fn text_of(value: &str) -> Option<String> {
    let quoted = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    quoted('\'').or_else(|| quoted('"')).filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from containerd 2.4.2, shortened.
    const SECOND: &str = "\
version = 4
root = '/var/lib/containerd'

[plugins]
  [plugins.'io.containerd.cri.v1.images']
    snapshotter = 'native'
    disable_snapshot_annotations = true
    image_pull_progress_timeout = '5m0s'

    [plugins.'io.containerd.cri.v1.images'.pinned_images]
      sandbox = 'registry.k8s.io/pause:3.10.2'

    [plugins.'io.containerd.cri.v1.images'.registry]
      config_path = '/etc/containerd/certs.d:/etc/docker/certs.d'

  [plugins.'io.containerd.cri.v1.runtime']
    enable_selinux = false

        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
          runtime_type = 'io.containerd.runc.v2'
          snapshotter = ''
          sandboxer = 'podsandbox'
";
    /// The form of containerd 1.7.
    const FIRST: &str = r#"
version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]
    restrict_oom_score_adj = false
    sandbox_image = "registry.k8s.io/pause:3.8"

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      snapshotter = "overlayfs"

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
          snapshotter = ""
"#;

    fn config(snapshotter: &str, sandbox_image: &str) -> ContainerdConfig {
        let some = |text: &str| Some(text.to_owned());
        ContainerdConfig { snapshotter: some(snapshotter), sandbox_image: some(sandbox_image) }
    }

    #[test]
    fn both_forms_of_containerds_configuration_are_read() {
        assert_eq!(ContainerdConfig::parse(SECOND), config("native", "registry.k8s.io/pause:3.10.2"));
        assert_eq!(ContainerdConfig::parse(FIRST), config("overlayfs", "registry.k8s.io/pause:3.8"));
        assert_eq!(ContainerdConfig::parse("sandbox = 'a'\nsnapshotter = 'b'\n"), ContainerdConfig::default());
        assert_eq!(ContainerdConfig::parse(&SECOND.replace("'native'", "''")).snapshotter, None);
    }

    #[test]
    fn the_file_is_that_of_the_running_containerd() {
        let option = |words: &[&str]| config_option(words.join("\0").as_bytes());
        assert_eq!(option(&["/usr/bin/containerd", ""]), [""; 0]);
        assert_eq!(
            option(&["containerd", "--log-level", "info", "--config", "/etc/k.toml", ""]),
            ["--config", "/etc/k.toml"]
        );
        assert_eq!(option(&["containerd", "-c=k.toml", "--root", "/r", ""]), ["-c=k.toml"]);
        assert_eq!(option(&["containerd", "--configuration", "x", "-c", ""]), ["-c", ""]);
    }
}
