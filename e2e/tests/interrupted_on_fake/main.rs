//! `keelway reconcile`, interrupted at any point, on fake machines: no data is lost, and the same command continues.
//!
//! A round creates a cluster and deletes it again, and a signal interrupts both. After SIGTERM, stdout has the current documents. After SIGKILL,
//! they are in the file that stderr names. The final state is that of a run without interruption.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test binary fails by panic")]
#![expect(clippy::print_stdout, reason = "it prints what it counted")]

mod cut;
mod in_place;
mod kept;
mod machine;
mod managed;
mod observed;
mod recovered;
mod reference;
mod round;
mod world;

use std::collections::BTreeSet;

use cut::{Cut, Point};
use keelway_cri::fake::SignalTiming;
use keelway_planner::FirstBindings;
use reference::{Counts, reference};
use round::rounds;
use rustix::process::Signal;

#[tokio::test]
async fn a_signal_after_each_call() {
    calls(SignalTiming::AfterAnswer).await;
}

#[tokio::test]
async fn a_signal_before_each_answer() {
    calls(SignalTiming::BeforeAnswer).await;
}

#[tokio::test]
async fn a_signal_at_each_failpoint() {
    // One failpoint is before an effect and the next one after it: half of each have one of the signals.
    let signals = [Signal::TERM, Signal::KILL, Signal::KILL, Signal::TERM];
    interrupt_at_failpoints(|points| alternating(points.into_iter(), &signals)).await;
}

#[tokio::test]
#[ignore = "long: both signals at each failpoint"]
async fn each_signal_at_each_failpoint() {
    interrupt_at_failpoints(|points| cuts(points.into_iter())).await;
}

/// Interrupts before and after each save and each effect: calls on both machines, files, records, and objects applied in the cluster.
async fn interrupt_at_failpoints(with_signals: impl Fn(Vec<Point>) -> Vec<Cut>) {
    let found = reference().await;
    let at_all = |counts: &Counts| with_signals((1..=counts.failpoints).map(Point::Failpoint).collect());
    let (while_created, while_deleted) = (at_all(&found.birth), at_all(&found.deletion));
    rounds("failpoints", while_created, while_deleted).await;
}

#[tokio::test]
async fn a_signal_while_objects_are_stored_in_the_cluster() {
    let found = reference().await;
    let ends = FirstBindings::Cluster.stages().map(|stage| stage.len()).into_iter().scan(0, |before, length| {
        let first = *before + 1;
        *before += length;
        Some([first, *before])
    });
    // The objects of one stage are stored concurrently, so only the first and the last of each stage are points.
    let ends: BTreeSet<usize> = ends.flatten().collect();
    let stored = cuts(ends.into_iter().map(Point::Stored));
    let deletions = cuts((1..=found.deletion.calls[0]).map(|nth| Point::Call(0, nth, SignalTiming::AfterAnswer)));
    rounds("stored objects", stored, deletions).await;
}

/// Interrupts at each call. The two tests send different signals at the same call.
async fn calls(when: SignalTiming) {
    let signals = match when {
        SignalTiming::AfterAnswer => [Signal::TERM, Signal::KILL],
        SignalTiming::BeforeAnswer => [Signal::KILL, Signal::TERM],
    };
    let found = reference().await;
    let of_machine = |machine: usize, last: usize| (1..=last).map(move |nth| Point::Call(machine, nth, when));
    let of_both = |counts: &Counts| {
        let [private, public] = counts.calls;
        alternating(of_machine(0, private).chain(of_machine(1, public)), &signals)
    };
    rounds("calls", of_both(&found.birth), of_both(&found.deletion)).await;
}

/// Returns each point with each signal.
fn cuts(points: impl Iterator<Item = Point>) -> Vec<Cut> {
    points.flat_map(|point| [Signal::TERM, Signal::KILL].map(|signal| Cut { point, signal })).collect()
}

/// Returns the points with one signal each, in turn.
fn alternating(points: impl Iterator<Item = Point>, signals: &[Signal]) -> Vec<Cut> {
    points.zip(signals.iter().copied().cycle()).map(|(point, signal)| Cut { point, signal }).collect()
}
