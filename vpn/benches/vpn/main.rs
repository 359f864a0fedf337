//! The measurements of `docs/performance.md`: `cargo bench -p keelway-vpn --bench vpn -- [--rounds N] [--seconds S] [--write | --only tls]`.
//!
//! Rounds are interleaved, so that other work on the machine affects everything that is compared. A ratio is the median of the rounds' ratios.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a step that fails ends the benchmark; its table is its output"
)]
#![expect(clippy::cast_precision_loss, reason = "figures of a table have three digits")]

#[path = "../../tests/support/mod.rs"]
mod support;

mod crowds;
mod devices;
mod flood;
mod relays;
mod report;
mod stack;
mod streams;
mod tls;

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use report::Report;
use support::{End, Namespace, Running};

/// The extent of a run.
struct Plan {
    rounds: usize,
    seconds: Duration,
    write: bool,
    /// Only WireGuard over TLS is measured, while that is worked on.
    only_tls: bool,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let plan = plan(&arguments);
    if !plan.only_tls {
        // The host of the benchmark has no network to install from.
        devices::boringtun_program();
    }
    go_first();
    let again: Vec<&str> = arguments.iter().map(String::as_str).collect();
    support::on_own_host(&again, || measure(&plan));
}

/// Raises the priority of the benchmark above all other work on the machine. All processes started here inherit it. If the kernel groups
/// processes by session, the group has a priority of its own.
fn go_first() {
    if let Err(error) = rustix::process::nice(-19) {
        eprintln!("what else runs here takes part: {error}");
    }
    let _ = std::fs::write("/proc/self/autogroup", "-19");
}

fn measure(plan: &Plan) {
    let mut report = Report::new(plan.rounds, plan.seconds);
    if !plan.only_tls {
        devices::measure(plan, &mut report);
        relays::measure(plan, &mut report);
        crowds::measure(plan, &mut report);
        crowds::measure_change(&mut report);
        stack::measure(plan, &mut report);
        flood::measure(plan, &mut report);
    }
    tls::measure(plan, &mut report);
    println!("{}", report.render());
    if plan.write {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md");
        report.write_into(&path);
    }
    println!("{} met, {} missed", report.met(), report.missed());
}

fn plan(arguments: &[String]) -> Plan {
    let value = |name: &str| Some(&arguments[arguments.iter().position(|argument| argument == name)? + 1]);
    let number = |name: &str, default: u64| value(name).map_or(default, |text| text.parse().unwrap());
    Plan {
        rounds: usize::try_from(number("--rounds", 5)).unwrap(),
        seconds: Duration::from_secs(number("--seconds", 3)),
        write: arguments.iter().any(|argument| argument == "--write"),
        only_tls: value("--only").is_some_and(|only| only == "tls"),
    }
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_keelway-vpn"))
}

fn ours(namespace: &Namespace, end: &End) -> Running {
    support::ours(namespace, end, program(), &["--userspace"])
}

fn left() -> End {
    End::new(1).peer(2, "10.232.0.2/32", "Endpoint = 10.231.0.2:51820")
}

fn right() -> End {
    End::new(2).peer(1, "10.232.0.1/32", "")
}

/// Waits this long, for effects that have no event.
fn pause(time: Duration) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(time)).unwrap();
    let _ = socket.recv(&mut [0]);
}
