//! A join that is interrupted at any failpoint can be repeated or undone.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use k8s_openapi::{api::core::v1::Node, jiff::SignedDuration};
use keelway_api::worker::WireGuardPeer;
use kube::{Api, api::DeleteParams};
use rand::{SeedableRng, rngs::ChaCha8Rng, seq::SliceRandom};
use rustix::process::Signal;

use crate::{built, found, machine::join, wait, world::World};

/// The time for all cuts. At least `LEAST` cuts are made, even if they take longer.
const BUDGET: Duration = Duration::from_secs(20);
const LEAST: usize = 6;
/// The file on the worker's machine in which `keelway-cut` records the failpoints that it reaches.
const POINTS: &str = "/run/points";

/// Interrupts joins at every failpoint before the start of the daemon, which takes a second.
pub(crate) async fn at_each_moment(world: &World) {
    let token = world.token(SignedDuration::from_hours(1)).await.encode();
    let before = found::look(&world.machine);
    let seed = rand::random();
    println!("        seed of the cuts: {seed}");
    let mut moments = moments(world, &token).await;
    assert!(moments.len() > LEAST, "{moments:?}");
    moments.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    let (began, all) = (Instant::now(), moments.len());
    let mut done = 0;
    for (nth, moment) in moments {
        if done >= LEAST && began.elapsed() > BUDGET {
            break;
        }
        // Each cut has a node name of its own: if the join made no peer, the cluster reserves the name for the approved key for some minutes.
        let name = format!("cut-{nth}");
        let (is_cut, _) =
            cut(world, &token, &["--service", "none", "--node-name", &name], &format!("KILL {nth}")).await;
        assert!(is_cut, "not cut at {nth}, {moment}");
        if done % 2 == 0 {
            println!("        cut at {moment}: again");
            world.machine.node_well(&again(&name), &token).await;
        } else {
            println!("        cut at {moment}: undone");
        }
        leave(world).await;
        found::same(&before, &world.machine);
        done += 1;
    }
    println!("{:>7} ms  cut at {done} of {all} moments", began.elapsed().as_millis());
}

fn again(name: &str) -> Vec<&str> {
    [&join()[..], &["--service", "none", "--node-name", name]].concat()
}

/// Leaves the cluster. If the join changed nothing on the machine yet, it is no worker.
async fn leave(world: &World) {
    if world.machine.file("/var/lib/keelway-node").exists() {
        world.machine.node_well(&["leave"], "").await;
    }
}

/// Returns the failpoints of a complete join, each kind once. All plugins are one kind, because they are written in the same way.
async fn moments(world: &World, token: &str) -> Vec<(usize, String)> {
    let (is_cut, reached) = cut(world, token, &["--service", "none", "--node-name", "whole"], "KILL nowhere").await;
    assert!(!is_cut);
    leave(world).await;
    let mut known = BTreeSet::new();
    let of_kind = |line: &str| if line.contains("cni") { "plugin".to_owned() } else { line.to_owned() };
    let lines = reached.lines().enumerate().filter(|(_, line)| known.insert(of_kind(line)));
    lines.map(|(at, line)| (at + 1, line.to_owned())).collect()
}

/// Joins with a cut at `at`. Returns whether the cut happened, and the failpoints that the join reached.
async fn cut(world: &World, token: &str, more: &[&str], at: &str) -> (bool, String) {
    let program = built("keelway-cut").display().to_string();
    let (points, at) = (format!("POINTS={POINTS}"), format!("CUT={at}"));
    let words = [&[points.as_str(), at.as_str(), program.as_str(), "node"], &join()[..], more].concat();
    let output = world.machine.run_with_input("env", &words, token).await;
    let points = world.machine.file(POINTS);
    let reached = fs::read_to_string(&points).unwrap();
    fs::remove_file(points).unwrap();
    let is_cut = output.status.signal() == Some(Signal::KILL.as_raw());
    assert!(is_cut || output.status.success(), "{reached}{}", String::from_utf8_lossy(&output.stderr));
    (is_cut, reached)
}

/// Interrupts a join while the daemon starts, and undoes it. Then interrupts it again, repeats it at once under the same name, and removes the
/// worker from the machine alone.
pub(crate) async fn while_it_starts(world: &World) {
    let token = world.token(SignedDuration::from_hours(1)).await.encode();
    let before = found::look(&world.machine);
    assert!(cut(world, &token, &["--node-name", "w2"], "KILL done \"daemon\"").await.0);
    world.machine.node_well(&["leave"], "").await;
    found::same(&before, &world.machine);

    assert!(cut(world, &token, &["--node-name", "w2"], "KILL begins \"daemon\"").await.0);
    let join = [&join()[..], &["--node-name", "w2"]].concat();
    world.machine.node_well(&join, &token).await;
    world.machine.node_well(&["forget"], "").await;
    found::same(&before, &world.machine);
    forgotten(world, &token, &join).await;
    found::same(&before, &world.machine);
}

/// The cluster still has the peer of a forgotten worker. The name is free once the peer is deleted.
async fn forgotten(world: &World, token: &str, join: &[&str]) {
    let output = world.machine.node(join, token).await;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("a worker named w2 is in the cluster"), "{stderr}");
    let nodes: Api<Node> = Api::all(world.admin.clone());
    let peers: Api<WireGuardPeer> = Api::all(world.admin.clone());
    peers.delete("w2", &DeleteParams::default()).await.unwrap();
    wait::until("the Node went with its peer", async || nodes.get_opt("w2").await.unwrap().is_none()).await;
    world.machine.node_well(&again("w2"), token).await;
    world.machine.node_well(&["leave"], "").await;
}
