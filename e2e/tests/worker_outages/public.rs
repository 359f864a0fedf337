//! A public machine with an ingress and a gateway loses its power, and gets it back.

use std::{net::SocketAddr, time::Duration};

use keelway_e2e::{
    deadline, outage,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet},
};
use serde_json::Value;

use crate::{
    WORKERS,
    clients::{Clients, Gaps},
    idle::{self, Idle},
    logs::Logs,
};

/// Three times the stated limits: 4 s until a connection that times out is reset, and 6 s until logs and pods are available again.
const RESET: Duration = Duration::from_secs(12);
pub(crate) const BACK: Duration = Duration::from_secs(18);
/// Less than the time in which a silent gateway is detected, so no packet was lost.
const NONE: Duration = Duration::from_secs(2);

pub(crate) struct Public {
    pub(crate) machine: String,
    /// The address of the ingress and, for UDP, of the gateway.
    pub(crate) address: SocketAddr,
    /// The context of the kubeconfig for this ingress.
    pub(crate) context: String,
}

/// Returns the public machines in the order of their ingresses.
pub(crate) fn all(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> Vec<Public> {
    let (config, machines) = (cluster.kubectl.kubeconfig(), worker_fleet.fleet.machines());
    let public = |context: &Value| {
        let server = of(&config["clusters"], "name", &context["context"]["cluster"])["cluster"]["server"].clone();
        let address: SocketAddr = server.as_str().unwrap().strip_prefix("https://").unwrap().parse().unwrap();
        let machine = machines.iter().find(|machine| machine.addresses().contains(&address.ip())).unwrap();
        Public { machine: machine.name().to_owned(), address, context: context["name"].as_str().unwrap().to_owned() }
    };
    config["contexts"].as_array().unwrap().iter().map(public).collect()
}

/// The effect of an outage on clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    /// From the loss of power until the last idle connection through the machine was reset.
    pub(crate) reset: Duration,
    pub(crate) lost: Gaps,
    pub(crate) back: Gaps,
}

impl Outage {
    /// Fails the test if the outage was longer than stated.
    pub(crate) fn assert_good(&self) {
        assert!(self.reset < RESET, "{self:?}");
        self.lost.assert_under(BACK);
        self.back.assert_under(NONE);
    }
}

/// Cuts the power of a public machine, and restores it. `cluster` must use the other machine.
pub(crate) fn is_lost_and_comes_back(
    worker_fleet: &WorkerFleet,
    cluster: &TestCluster,
    clients: &Clients,
    lost: &Public,
    other: &Public,
) -> Outage {
    let log = |worker: &&str| Logs::start(&cluster.kubectl, other.address, format!("on-{worker}"));
    let logs: Vec<Logs> = cluster.workers.iter().map(log).collect();
    let worker = worker_fleet.worker("w2");
    let idle = Idle::open(&worker, idle::api(cluster));
    deadline::until("both ingresses have connections", deadline::KUBERNETES, || {
        let now = worker.status();
        [lost, other].iter().all(|public| ingress(&now, public)["connections"].as_u64() >= Some(2))
    });

    deadline::until("logs are read", deadline::KUBERNETES, || logs.iter().all(|logs| !logs.answers().is_empty()));

    let what = format!("{} lost its power", lost.machine);
    let began = outage::now();
    let off = worker_fleet.fleet.cut(&lost.machine);
    deadline::until("no connection goes there any more", RESET, || {
        let now = worker.status();
        idle.look();
        ingress(&now, lost)["answers"] == false && ingress(&now, lost)["connections"] == 0
    });
    let reset = idle.last_reset(off);
    println!("{:>7} ms  {what}: until the last idle connection through it was reset", reset.as_millis());
    all_workers(worker_fleet, "the other gateway carries all", BACK, |now| tunnel(now, other)["active"] == true);
    let gaps = clients.went_on(&what, began, cluster, &logs);

    let what = format!("{} got its power back", lost.machine);
    let began = outage::now();
    worker_fleet.fleet.power("start", &lost.machine);
    all_workers(worker_fleet, "its ingress and its gateway answer", deadline::KUBERNETES, |now| {
        ingress(now, lost)["answers"] == true && tunnel(now, lost)["answers"] == true
    });
    let used = Idle::open(&worker, idle::api(cluster));
    deadline::until("connections go there again", deadline::KUBERNETES, || {
        ingress(&worker.status(), lost)["connections"].as_u64() >= Some(1)
    });
    deadline::until("there is nothing to do", deadline::KUBERNETES, || {
        worker_fleet.keelway(&["plan", "--exit-code"]).code() == 0
    });
    drop(used);
    Outage { reset, lost: gaps, back: clients.went_on(&what, began, cluster, &logs) }
}

/// Waits until this holds for the status of each of the first workers.
pub(crate) fn all_workers(worker_fleet: &WorkerFleet, what: &str, limit: Duration, are: impl Fn(&Value) -> bool) {
    let workers = WORKERS.map(|(name, _)| worker_fleet.worker(name));
    let took = deadline::until(what, limit, || workers.iter().all(|worker: &TestWorker<'_>| are(&worker.status())));
    println!("{:>7} ms  until {what}", took.as_millis());
}

fn ingress<'a>(status: &'a Value, public: &Public) -> &'a Value {
    of(&status["ingresses"], "address", &public.address.to_string().into())
}

pub(crate) fn tunnel<'a>(status: &'a Value, public: &Public) -> &'a Value {
    of(&status["tunnels"], "endpoint", &public.address.to_string().into())
}

/// Returns the entry of a list that has this value.
fn of<'a>(list: &'a Value, key: &str, value: &Value) -> &'a Value {
    list.as_array().unwrap().iter().find(|entry| entry[key] == *value).unwrap()
}
