//! Networks that are cut with packet filters, so that connections get no answer and no error.

use std::{
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

use keelway_e2e::{
    TestMachine, command, deadline, process,
    worker_fleet::{TestWorker, WorkerFleet},
};

/// A network that is cut.
pub(crate) struct NetworkCut<'a> {
    what: String,
    since: Instant,
    restore: Box<dyn Fn() + 'a>,
}

impl NetworkCut<'_> {
    /// Restores the network once it was cut for this long.
    pub(crate) fn end_after(self, least: Duration) {
        deadline::until(&self.what, deadline::KUBERNETES, || self.since.elapsed() >= least);
        (self.restore)();
        println!("{:>7} ms  {}", self.since.elapsed().as_millis(), self.what);
    }
}

/// Drops all packets between a worker, or a pod of it, and the addresses of an API.
pub(crate) fn of_worker<'a>(worker_fleet: &'a WorkerFleet, name: &'a str, api: &[SocketAddr]) -> NetworkCut<'a> {
    let of = |hook: &str| {
        let rules = api.iter().flat_map(|address| {
            let family = if address.is_ipv4() { "ip" } else { "ip6" };
            [
                format!("add rule inet cut {hook} {family} daddr {} tcp dport {} drop\n", address.ip(), address.port()),
                format!("add rule inet cut {hook} {family} saddr {} tcp sport {} drop\n", address.ip(), address.port()),
            ]
        });
        format!("add chain inet cut {hook} {{ type filter hook {hook} priority -300; }}\n{}", rules.collect::<String>())
    };
    let rules = format!("add table inet cut\n{}{}", of("prerouting"), of("output"));
    let worker: TestWorker<'a> = worker_fleet.worker(name);
    let _ = worker.run(&["nft", "-f", "-"], rules.as_bytes()).succeeded();
    let restore = move || drop(worker.run(&["nft", "delete", "table", "inet", "cut"], &[]).succeeded());
    NetworkCut { what: format!("{name} was cut off from the fleet"), since: Instant::now(), restore: Box::new(restore) }
}

/// Drops all packets of a machine, except those to itself.
pub(crate) fn of_machine(machine: &TestMachine) -> NetworkCut<'_> {
    let rules = "
add table inet cut
add chain inet cut output { type filter hook output priority 0; policy drop; }
add rule inet cut output oifname lo accept
add chain inet cut input { type filter hook input priority 0; policy drop; }
add rule inet cut input iifname lo accept
";
    filtered(machine, "cut", rules, format!("{} was cut off", machine.name()))
}

/// Drops all packets that the user of a process sends to these ports.
pub(crate) fn of_process<'a>(machine: &'a TestMachine, pid: u32, ports: &[u16]) -> NetworkCut<'a> {
    let users = process::status(pid, "Uid").unwrap();
    let user = users.split_whitespace().next().unwrap();
    assert_ne!(user, "0", "the rule would drop packets of others");
    let rules =
        ports.iter().map(|port| format!("add rule inet process output meta skuid {user} tcp dport {port} drop\n"));
    let rules = rules.collect::<Vec<_>>().concat();
    let chain = "add chain inet process output { type filter hook output priority 0; }";
    let rules = format!("add table inet process\n{chain}\n{rules}");
    filtered(machine, "process", &rules, format!("user {user} of {} was cut off from the API", machine.name()))
}

fn filtered<'a>(machine: &'a TestMachine, table: &'static str, rules: &str, what: String) -> NetworkCut<'a> {
    nft(machine, &["-f", "-"], rules);
    let restore = move || nft(machine, &["delete", "table", "inet", table], "");
    NetworkCut { what, since: Instant::now(), restore: Box::new(restore) }
}

fn nft(machine: &TestMachine, arguments: &[&str], rules: &str) {
    let run = || command::run(Command::new("nft").args(arguments), rules.as_bytes(), deadline::READ);
    let _ = machine.within(run).succeeded();
}
