//! Measures an agent that supervises ten components.

use std::{fs, time::Duration};

use keelway_api::Documents;
use keelway_e2e::{TestControlPlane, TestFleet, process};

use crate::{size::pause, table::Table};

/// One etcd member, three API servers, and two of each of the others, all on one machine.
const PODS: usize = 10;
/// After this time, the memory that creating the cluster needed is freed, and every probe has run.
const CALM: Duration = Duration::from_secs(30);
/// How long CPU time is counted: it covers six rounds of probes and one periodic observation.
const QUIET: Duration = Duration::from_secs(60);
/// The kernel counts CPU time in this unit (`USER_HZ`).
const TICKS_IN_A_SECOND: f64 = 100.0;

/// Measurements of one agent.
pub(crate) struct Figures {
    program: f64,
    resident: f64,
    quiet: f64,
}

/// Measures the agent of a private machine, in a fleet of its own.
pub(crate) fn measure() -> Figures {
    let mut world = TestFleet::new("e2ebag");
    let made = world.create_two();
    let keelway = &world.keelway;
    let inject = ["cluster", "inject", "--name", "c1", "--etcd-replicas", "1", "--control-plane-replicas", "3"];
    let mut wanted = Documents::read(&keelway.run(&inject, &made).succeeded().stdout).unwrap();
    for cluster in wanted.clusters.values_mut() {
        let plane = &mut cluster.spec.control_plane;
        plane.kube_controller_manager.replicas = Some(2);
        plane.kube_scheduler.replicas = Some(2);
    }
    let text = keelway.run(&["reconcile"], wanted.write().as_bytes()).succeeded().stdout;
    let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    let plane = TestControlPlane::new(keelway, text, "c1.kubeconfig");
    let machine = plane.private();
    assert_eq!(machine.running().len(), PODS);
    pause(CALM);
    let pid = machine.agent_pid();
    let before = ticks(pid);
    pause(QUIET);
    let quiet = (ticks(pid) - before) / TICKS_IN_A_SECOND / QUIET.as_secs_f64() * 100.0;
    let figures = Figures { program: size(pid), resident: resident(pid), quiet };
    let deleted = keelway.run(&["cluster", "delete", "--name", "c1"], &plane.text).succeeded().stdout;
    let _ = keelway.run(&["reconcile"], &deleted).succeeded();
    figures
}

impl Figures {
    pub(crate) fn report(&self, table: &mut Table) {
        table.under("the agent's program", "MB", &[self.program], 15.0);
        table.under("the agent's resident memory with ten components", "MiB", &[self.resident], 20.0);
        let what = format!("its time on a processor over {} s in which nothing happens", QUIET.as_secs());
        table.under(&what, "% of a core", &[self.quiet], 0.1);
    }
}

/// Returns the size of the program that a process runs, in MB.
fn size(pid: u32) -> f64 {
    let bytes = fs::metadata(format!("/proc/{pid}/exe")).unwrap().len();
    f64::from(u32::try_from(bytes).unwrap()) / 1e6
}

/// Returns the resident memory in MiB, including pages of the program.
fn resident(pid: u32) -> f64 {
    let text = process::status(pid, "VmRSS").unwrap();
    text.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap() / 1024.0
}

/// Returns the CPU time of all threads, including those that have exited: fields 14 and 15 of `stat`, the 12th and 13th after the name.
fn ticks(pid: u32) -> f64 {
    let text = String::from_utf8(process::file(pid, "stat").unwrap()).unwrap();
    let (_, fields) = text.rsplit_once(')').unwrap();
    let fields = fields.split_ascii_whitespace().skip(11).take(2);
    fields.map(|field| field.parse::<f64>().unwrap()).sum()
}
