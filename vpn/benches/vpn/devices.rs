//! A stream through two devices, compared with wireguard-go and with boringtun's own device.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::report::{Report, Row, median};
use crate::streams::stream;
use crate::support::{End, Namespace, Running, chain, started, theirs, v4};
use crate::{Plan, left, ours, right};

pub(crate) struct Round {
    /// In Gbit/s.
    pub(crate) speed: f64,
    /// Resident memory of the larger device, in bytes.
    memory: u64,
    /// Processor time of both devices, in milliseconds for each gigabit.
    cpu: f64,
}

pub(crate) fn round(plan: &Plan, start: impl Fn(&Namespace, &End) -> Running) -> Round {
    let [a, b] = chain(1500);
    let far = start(&b, &right());
    let near = start(&a, &left());
    stream(&a, &b, v4(2), Duration::from_millis(500));
    let before = near.process.cpu() + far.process.cpu();
    let speed = stream(&a, &b, v4(2), plan.seconds);
    let cpu = (near.process.cpu() + far.process.cpu()).saturating_sub(before).as_secs_f64();
    Round {
        speed,
        memory: near.process.memory().max(far.process.memory()),
        cpu: cpu * 1000.0 / (speed * plan.seconds.as_secs_f64()),
    }
}

/// Starts boringtun's own device with one thread, its fastest setting.
fn boringtun(namespace: &Namespace, end: &End) -> Running {
    started(namespace, end, &boringtun_program(), &["-f", "--disable-drop-privileges", "--threads", "1"])
}

/// Returns the path of boringtun. It is installed once, in cargo's target directory.
pub(crate) fn boringtun_program() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boringtun");
    let program = root.join("bin/boringtun-cli");
    if !program.exists() {
        let status = Command::new("cargo").args(["install", "boringtun-cli", "--locked", "--root"]).arg(&root).status();
        assert!(status.is_ok_and(|status| status.success()), "cargo install boringtun-cli");
    }
    program
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    let (mut mine, mut go, mut boring) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        mine.push(round(plan, ours));
        go.push(round(plan, theirs));
        boring.push(round(plan, boringtun));
    }
    let speeds = |rounds: &[Round]| rounds.iter().map(|round| round.speed).collect::<Vec<_>>();
    let what = "one TCP stream, two devices, beside wireguard-go";
    report.add(Row::ratio(what, "Gbit/s", &speeds(&mine), &speeds(&go), 1.5));
    let what = "the same, beside boringtun's device (one thread)";
    report.add(Row::ratio(what, "Gbit/s", &speeds(&mine), &speeds(&boring), 2.0));
    let memory = mine.iter().map(|round| round.memory).max().unwrap_or_default() as f64 / 1e6;
    report.add(Row::at_most("memory of a device under that load", "MB", memory, 10.0));
    let cpu = |rounds: &[Round]| median(rounds.iter().map(|round| round.cpu).collect());
    report.note(format!(
        "Processor time of both devices for each gigabit of that stream: ours {:.0} ms, wireguard-go {:.0} ms, boringtun {:.0} ms.",
        cpu(&mine),
        cpu(&go),
        cpu(&boring)
    ));
}
