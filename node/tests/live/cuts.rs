//! A join that is cut off can be run again, or undone, at each moment.

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

/// How long this may take where there is time for at least so many cuts.
const BUDGET: Duration = Duration::from_secs(20);
const LEAST: usize = 6;
/// Where `keelway-cut` tells of the moments that it comes to: on the worker's machine.
const POINTS: &str = "/run/points";

/// As far as the daemon's start, which takes a second.
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
        // A name of its own: where no peer was made, the cluster waits some minutes for the key that it has approved.
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

fn again(name: &str) -> [&str; 9] {
    let [join, stdin, allow, flag, group] = join();
    [join, stdin, allow, flag, group, "--service", "none", "--node-name", name]
}

/// A machine on which nothing was changed yet is no worker.
async fn leave(world: &World) {
    if world.machine.file("/var/lib/keelway-node").exists() {
        world.machine.node_well(&["leave"], "").await;
    }
}

/// The moments of a join that is not cut off, each kind of them once: plugins are written one like the other.
async fn moments(world: &World, token: &str) -> Vec<(usize, String)> {
    let (is_cut, told) = cut(world, token, &["--service", "none", "--node-name", "whole"], "KILL nowhere").await;
    assert!(!is_cut);
    leave(world).await;
    let mut known = BTreeSet::new();
    let of_kind = |line: &str| if line.contains("cni") { "plugin".to_owned() } else { line.to_owned() };
    let lines = told.lines().enumerate().filter(|(_, line)| known.insert(of_kind(line)));
    lines.map(|(at, line)| (at + 1, line.to_owned())).collect()
}

/// Joins until it is cut off. Returns whether it was, and the moments that it came to.
async fn cut(world: &World, token: &str, more: &[&str], at: &str) -> (bool, String) {
    let program = built("keelway-cut").display().to_string();
    let (points, at) = (format!("POINTS={POINTS}"), format!("CUT={at}"));
    let words = [&[points.as_str(), at.as_str(), program.as_str(), "node"], &join()[..], more].concat();
    let output = world.machine.ran("env", &words, token).await;
    let points = world.machine.file(POINTS);
    let told = fs::read_to_string(&points).unwrap();
    fs::remove_file(points).unwrap();
    let is_cut = output.status.signal() == Some(Signal::KILL.as_raw());
    assert!(is_cut || output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    (is_cut, told)
}

/// While the daemon starts, it is undone; or, at once and under the same name, waited for once more, and then forgotten by the machine
/// alone.
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

/// The cluster still knows the worker: its name is free once that is mended.
async fn forgotten(world: &World, token: &str, join: &[&str]) {
    let output = world.machine.node(join, token).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("a worker named w2 is in the cluster"), "{said}");
    let nodes: Api<Node> = Api::all(world.admin.clone());
    let peers: Api<WireGuardPeer> = Api::all(world.admin.clone());
    peers.delete("w2", &DeleteParams::default()).await.unwrap();
    wait::until("the Node went with its peer", async || nodes.get_opt("w2").await.unwrap().is_none()).await;
    world.machine.node_well(&again("w2"), token).await;
    world.machine.node_well(&["leave"], "").await;
}
