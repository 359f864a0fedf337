//! Tasks of the project: `cargo xtask images`, `cargo xtask agent`, `cargo xtask deb`, `cargo xtask docs`, `cargo xtask man`, `cargo xtask test`,
//! `cargo xtask bench`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cache::Cache;
use crate::images::{Options, ProductScope};

mod agent;
mod archive;
mod bench;
mod cache;
mod deb;
mod debian;
mod docs;
mod elf;
mod go;
mod images;
#[cfg(test)]
mod made;
#[cfg(test)]
mod package_test;
mod process;
mod progress;
#[expect(dead_code, unreachable_pub, reason = "a part of keelway-api, whose dependencies would keep tasks waiting")]
#[path = "../../lib/api/src/release.rs"]
mod release;
mod table;
mod test;

const USAGE: &str = "\
usage: cargo xtask images [--missing] [--own | --others] [--no-tests] [--only NAME,..] [--list] [--pull] [--plain]
       cargo xtask agent
       cargo xtask deb
       cargo xtask docs
       cargo xtask man [DIRECTORY]
       cargo xtask test [WORD..]
       cargo xtask bench start [--rounds N]
       cargo xtask bench join [--rounds N]
       cargo xtask bench failover [--rounds N]
       cargo xtask bench agent [--rounds N]
       cargo xtask bench vpn [--rounds N] [--seconds S]

images makes container images and programs in the cache, $KEELWAY_CACHE or keelway in the user's cache directory.

  --missing      only what is not there yet, or was made from other versions
  --own          only images of this workspace's programs, as the last build left them in target/debug
  --others       only what has none of them; without either, the workspace is built first
  --no-tests     leave out what only tests run: helm, crictl, ..
  --only NAME,.. only these: etcd, kubectl, ..
  --list         say what there is, and make nothing
  --pull         images are pulled: make only the programs that are not in PATH
  --plain        no changing line, also on a terminal

agent builds keelway-hypervisor-agent, keelway-cluster-controller, keelway-helper and keelway-manager without shared libraries, as they are
shipped, and says where they are.

deb makes the Debian package of keelway-hypervisor-agent, with a systemd unit, beside it.

docs writes the parts of docs/ that follow from the programs: every field, reason and port; and manifests/crds.

man writes a man page for each command into DIRECTORY (target/man).

test builds and runs every test, and clippy beside them, as many at once as the cores carry. WORDs choose programs by their names: live,
'e2e worker_outages', clippy. A live test that fails is run once more, alone: if it passes then, it is listed as FLAKY, and in target/flaky.tsv. When
each program ran is in target/test-times.tsv, what it wrote in target/test-logs. As root.

bench start measures how fast control planes start and what they take, beside the same programs as plain processes, and writes
the table of docs/performance.md. It makes local hypervisors: as root. Seven rounds take about thirteen minutes.

  --rounds N     how often both take their turn (7)

bench join measures how fast a machine becomes a worker, beside the kubelet alone, and what the worker's daemon takes, and writes
the table of docs/performance.md. It makes local hypervisors: as root. Seven rounds take about six minutes.

  --rounds N     how often both take their turn (7)

bench failover measures how long workers and their clients wait while public machines are lost, come back, and give their
ingresses to others, and writes the table of docs/performance.md. It makes local hypervisors: as root.

  --rounds N     how often each machine is lost and each ingress moves (7)

bench agent measures what asking a runtime through its machine's agent costs, beside asking on its socket, and one driver with two
hundred agents on a network, and writes the table of docs/performance.md. It makes local hypervisors and namespaces: as root.

  --rounds N     how often both ways take their turn, and the agents begin anew (7)

bench vpn measures the VPN beside others and writes the table of docs/performance.md. It makes network namespaces: as root.

  --rounds N     how often all that is compared takes its turn (5)
  --seconds S    how long each stream is (3)
";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    match arguments.next().as_deref() {
        Some("images") => match options(arguments)? {
            Some(options) => images::run(&options, &Cache::of_environment()?),
            None => help(),
        },
        Some("agent") => match arguments.next() {
            None => shipped_agent(),
            Some(option) => bail!("agent has no option {option}"),
        },
        Some("deb") => match arguments.next() {
            None => package(),
            Some(option) => bail!("deb has no option {option}"),
        },
        Some("docs") => docs::write(),
        Some("man") => docs::man(&arguments.next().unwrap_or_else(|| "target/man".to_owned())),
        Some("test") => test::run(&arguments.collect::<Vec<String>>()),
        Some("bench") => bench::run(arguments),
        Some("help" | "--help" | "-h") => help(),
        Some(task) => bail!("there is no task {task}\n\n{USAGE}"),
        None => bail!("no task is named\n\n{USAGE}"),
    }
}

fn shipped_agent() -> Result<()> {
    for program in agent::build_all()? {
        writeln!(io::stdout(), "{}", program.display())?;
    }
    Ok(())
}

fn package() -> Result<()> {
    writeln!(io::stdout(), "{}", deb::build()?.display())?;
    Ok(())
}

fn help() -> Result<()> {
    io::stdout().write_all(USAGE.as_bytes())?;
    Ok(())
}

/// Parses the options of `images`. Returns `None` if help is requested.
fn options(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--missing" => options.missing = true,
            "--list" => options.list = true,
            "--pull" => options.pull = true,
            "--own" => options.part = ProductScope::Own,
            "--others" => options.part = ProductScope::Others,
            "--no-tests" => options.no_tests = true,
            "--plain" => options.plain = true,
            "--only" => match arguments.next() {
                Some(names) => options.only.extend(names.split(',').map(str::to_owned)),
                None => bail!("--only wants names\n\n{USAGE}"),
            },
            "--help" | "-h" => return Ok(None),
            other => bail!("images has no option {other}\n\n{USAGE}"),
        }
    }
    Ok(Some(options))
}
