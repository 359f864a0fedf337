//! Tasks of the project: `cargo xtask images`, `cargo xtask agent`, `cargo xtask deb`, `cargo xtask docs`, `cargo xtask man`, `cargo xtask test`,
//! `cargo xtask bench`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cache::Cache;
use crate::images::{Options, ProductScope};
use crate::table::ProductSet;

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
mod prepared;
mod process;
mod progress;
#[expect(dead_code, unreachable_pub, reason = "a part of keelway-api, whose dependencies would keep tasks waiting")]
#[path = "../../lib/api/src/release.rs"]
mod release;
mod table;
mod test;

const USAGE: &str = "\
usage: cargo xtask images [--missing] [--own | --others] [--no-tests | --conformance | --earlier-minors] [--only NAME,..] [--list] [--pull] [--plain]
       cargo xtask agent
       cargo xtask deb
       cargo xtask docs
       cargo xtask man [DIRECTORY]
       cargo xtask test [WORD..]
       cargo xtask bench start [--rounds N]
       cargo xtask bench join [--rounds N]
       cargo xtask bench failover [--rounds N]
       cargo xtask bench agent [--rounds N]
       cargo xtask bench stores [--rounds N]
       cargo xtask bench vpn [--rounds N] [--seconds S]
       cargo xtask bench fleet [--rounds N] [--clusters N[,N..]] [--objects N[,N..]]

images builds container images and programs in the cache: $KEELWAY_CACHE, or keelway in the user's cache directory.

  --missing      only what is missing, or was built from other versions
  --own          only images of this workspace's programs, from target/debug
  --others       only other images and programs; without --own and --others, the workspace is built first
  --no-tests     omit what only tests use: helm, crictl, ..
  --conformance  instead of all others, the programs and images of Kubernetes' conformance tests
  --earlier-minors
                 instead of all others, the images of the supported minor versions of Kubernetes before the newest, and kubeadm
  --only NAME,.. only these products: etcd, kubectl, ..
  --list         list the products and whether they exist, and build nothing
  --pull         for machines that pull images: build only the programs that are not in PATH
  --plain        no progress line, even on a terminal

agent builds keelway-hypervisor-agent, keelway-cluster-controller, keelway-fleet-controller, keelway-fleet-agent and
keelway-manager without shared libraries, as they are shipped, and prints their paths.

deb builds the Debian package of keelway-hypervisor-agent, with a systemd unit, beside the program.

docs writes the parts of docs/ that are generated from the programs: fields, reasons, ports and arguments; and manifests/crds.

man writes a man page for each command into DIRECTORY (target/man).

test builds and runs every test and clippy, in parallel as far as the cores allow. WORDs select programs by their names: live,
'e2e worker_outages', clippy. A live test that fails is run once more, alone: if it passes then, it is listed as FLAKY, and in target/flaky.tsv. The
times of each program are in target/test-times.tsv, and its output in target/test-logs. Requires root.

bench start measures how fast control planes start and what they use, compared with the same programs as plain processes, and writes
the table of docs/performance.md. It creates local hypervisors and requires root. Seven rounds take about thirteen minutes.

  --rounds N     the number of runs of each candidate (7)

bench join measures how fast a machine becomes a worker, compared with the kubelet alone, and what the worker's daemon uses, and writes
the table of docs/performance.md. It creates local hypervisors and requires root. Seven rounds take about six minutes.

  --rounds N     the number of runs of each candidate (7)

bench failover measures how long workers and their clients wait while public machines fail, recover, and pass their ingresses to
others, and while the tunnels of a worker change to TLS and back to UDP, and writes the table of docs/performance.md. It creates local
hypervisors and requires root.

  --rounds N     the number of failures of each machine and of moves of each ingress (7)

bench agent measures requests to a runtime through its machine's agent, compared with requests on its socket, and one driver with two
hundred agents on a network, and writes the table of docs/performance.md. It creates local hypervisors and namespaces and requires root.

  --rounds N     the number of runs of both ways, and of restarts of the agents (7)

bench stores measures the replacement of an etcd member whose database has 100 MiB, and a snapshot of it, compared with the same steps by
hand with etcdctl, and writes the table of docs/performance.md if the machine is quiet. It creates local hypervisors and requires root.

  --rounds N     the number of replacements and snapshots on each side (7)

bench vpn compares the VPN with others and writes the table of docs/performance.md. It creates network namespaces and requires root.

  --rounds N     the number of runs of each candidate (5)
  --seconds S    the duration of each stream (3)
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
            Some(option) => bail!("unknown option {option} of agent"),
        },
        Some("deb") => match arguments.next() {
            None => package(),
            Some(option) => bail!("unknown option {option} of deb"),
        },
        Some("docs") => docs::write(),
        Some("man") => docs::man(&arguments.next().unwrap_or_else(|| "target/man".to_owned())),
        Some("test") => test::run(&arguments.collect::<Vec<String>>()),
        Some("bench") => bench::run(arguments),
        Some("help" | "--help" | "-h") => help(),
        Some(task) => bail!("unknown task {task}\n\n{USAGE}"),
        None => bail!("no task was given\n\n{USAGE}"),
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
            "--conformance" => options.set = ProductSet::Conformance,
            "--earlier-minors" => options.set = ProductSet::EarlierMinors,
            "--plain" => options.plain = true,
            "--only" => match arguments.next() {
                Some(names) => options.only.extend(names.split(',').map(str::to_owned)),
                None => bail!("--only requires names\n\n{USAGE}"),
            },
            "--help" | "-h" => return Ok(None),
            other => bail!("unknown option {other} of images\n\n{USAGE}"),
        }
    }
    Ok(Some(options))
}
