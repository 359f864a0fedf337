//! Tests of a leader with machines that remember terms.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Documents, Hypervisor,
    jiff::Timestamp,
    machine::{MachineState, ObservedValue},
    name::{ClusterId, HypervisorName},
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::action::Action;
use keelway_planner::{ComponentHealth, Probe, Waves};
use rand::{SeedableRng, rngs::StdRng};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    ApplyOutcome, ChangingDocuments, Components, Minter, NoProgress, PassContext, PassError, PassOutcome, PkiMinter,
    RunControl, Store, StoreError, Task, Watcher, observe::tests::empty, reconcile_continuously,
};

const MACHINE: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-1}
spec: {role: Private, endpoint: {agent: {unix: {path: /run/agent.sock}}}, addresses: {private: [10.0.0.1]}}
status:
  installation: 00000000000000ff
  issued: {term: 3, generation: 8, digest: d}
";

/// A machine that records all requests.
#[derive(Default)]
struct Machine {
    newest: AtomicU64,
    /// Whether the agent restarts once after it was fenced.
    forgets: AtomicBool,
    asked: Mutex<Vec<String>>,
    looked: CancellationToken,
}

impl Machine {
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Machines for Machine {
    async fn observe(&self, _: &Hypervisor) -> ObservedValue<MachineState> {
        self.asked.lock().unwrap().push("look".to_owned());
        if self.forgets.swap(false, Ordering::Relaxed) {
            self.newest.store(0, Ordering::Relaxed);
        } else {
            self.looked.cancel();
        }
        ObservedValue::Known(MachineState { term: self.newest.load(Ordering::Relaxed), ..empty() })
    }

    async fn fence(&self, _: &Hypervisor, term: u64) -> Result<u64, String> {
        self.asked.lock().unwrap().push(format!("fence {term}"));
        Ok(self.newest.fetch_max(term, Ordering::Relaxed).max(term))
    }

    async fn apply(&self, _: &Hypervisor, _: ConfigDelivery, _: Vec<Action>, _: &RunControl) -> ApplyOutcome {
        self.asked.lock().unwrap().push("apply".to_owned());
        ApplyOutcome::default()
    }

    async fn dial(&self, _: &Hypervisor, _: SocketAddr, _: Duration) -> io::Result<MachineConnection> {
        Err(io::ErrorKind::NotConnected.into())
    }

    async fn changed(&self, _: &[&Hypervisor]) {
        std::future::pending::<()>().await;
    }
}

/// Documents in memory, with a watcher that ignores all events.
#[derive(Default)]
struct Nobody(Mutex<Arc<Documents>>);

#[async_trait]
impl Store for Nobody {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        Ok(self.0.lock().unwrap().clone())
    }

    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        *self.0.lock().unwrap() = Arc::new(documents.clone());
        Ok(())
    }
}

#[async_trait]
impl ChangingDocuments for Nobody {
    async fn changed(&self) {
        std::future::pending::<()>().await;
    }
}

#[async_trait]
impl Components for Nobody {
    async fn health(&self, _: &Documents, _: &Probe) -> ComponentHealth {
        ComponentHealth::Healthy
    }

    async fn bindings(&self, _: &Documents, _: &ClusterId) -> ObservedValue<String> {
        ObservedValue::unreachable("there is no cluster")
    }

    async fn bind(&self, _: &Documents, _: &ClusterId, _: Timestamp) -> Result<(), String> {
        Ok(())
    }
}

impl Watcher for Nobody {
    fn saved(&mut self, _: &Documents, _: &Documents) {}

    fn began(&mut self, _: &Task) {}
    fn machine_observed(&mut self, _: &HypervisorName, _: &ObservedValue<MachineState>) {}
    fn passed(&mut self, _: &Task, _: &PassOutcome, _: Duration) {}
    fn applied(&mut self, _: &Task, _: &ApplyOutcome) {}
    fn failed(&mut self, _: &Task, _: &PassError, _: Duration) {}
    fn queued(&mut self, _: usize) {}
    fn ended(&mut self, _: &Task) {}
    fn load_failed(&mut self, _: &StoreError) {}
}

fn documents() -> Documents {
    Documents::read(MACHINE.as_bytes()).unwrap()
}

/// Leads until the machine is observed.
async fn lead(machine: &Arc<Machine>, term: u64) -> StopReason {
    lead_over(&machine.looked, machine.clone(), documents(), term).await
}

async fn lead_over(
    stop: &CancellationToken,
    machines: Arc<dyn Machines>,
    documents: Documents,
    term: u64,
) -> StopReason {
    let store = Arc::new(Nobody(Mutex::new(Arc::new(documents))));
    let run = RunControl { stop: stop.clone(), progress: Arc::new(NoProgress) };
    let context =
        PassContext { store: store.clone(), machines, components: store.clone(), clock: Arc::new(Timestamp::now), run };
    let mut minter: Box<dyn Minter> = Box::new(PkiMinter::new(StdRng::seed_from_u64(1)));
    reconcile_continuously(
        &context,
        Driver::Leader { term },
        Waves::default(),
        &mut *minter,
        &*store,
        &mut Nobody::default(),
    )
    .await
}

#[tokio::test]
async fn a_machine_learns_the_term_before_it_is_observed() {
    let machine = Arc::new(Machine::default());
    assert_eq!(lead(&machine, 4).await, StopReason::Stopped);
    assert_eq!(machine.asked(), ["fence 4", "look"]);
}

#[tokio::test]
async fn an_agent_that_lost_the_term_is_fenced_and_observed_again() {
    let machine = Arc::new(Machine { forgets: true.into(), ..Machine::default() });
    assert_eq!(lead(&machine, 4).await, StopReason::Stopped);
    assert_eq!(machine.asked(), ["fence 4", "look", "fence 4", "look"]);
}

#[tokio::test]
async fn a_leader_stops_when_a_machine_knows_a_later_one() {
    let machine = Arc::new(Machine { newest: 6.into(), ..Machine::default() });
    assert_eq!(lead(&machine, 4).await, StopReason::Superseded { term: 6 });
    assert_eq!(machine.asked(), ["fence 4"]);
}

#[tokio::test]
async fn a_new_leader_reads_the_highest_term_of_documents_and_machines() {
    let machine = Machine::default();
    assert_eq!(highest_known_term(&machine, &documents()).await, 3);
    machine.newest.store(6, Ordering::Relaxed);
    assert_eq!(highest_known_term(&machine, &documents()).await, 6);
    machine.newest.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(highest_known_term(&machine, &documents()).await, 3, "no driver can have this term");
    assert_eq!(machine.asked(), ["fence 0", "fence 0", "fence 0"]);
}

/// Three machines. The first claims a term, the others are observed.
struct Three {
    claims: u64,
    others: Machine,
    looks: AtomicU64,
}

#[async_trait]
impl Machines for Three {
    async fn observe(&self, machine: &Hypervisor) -> ObservedValue<MachineState> {
        let seen = self.others.observe(machine).await;
        if self.looks.fetch_add(1, Ordering::Relaxed) == 0 {
            self.others.looked.cancel();
        }
        seen
    }

    async fn fence(&self, machine: &Hypervisor, term: u64) -> Result<u64, String> {
        if machine.metadata.name.as_deref() == Some("hv-1") {
            return Ok(self.claims);
        }
        self.others.fence(machine, term).await
    }

    async fn apply(
        &self,
        machine: &Hypervisor,
        config: ConfigDelivery,
        actions: Vec<Action>,
        run: &RunControl,
    ) -> ApplyOutcome {
        self.others.apply(machine, config, actions, run).await
    }

    async fn dial(&self, _: &Hypervisor, _: SocketAddr, _: Duration) -> io::Result<MachineConnection> {
        Err(io::ErrorKind::NotConnected.into())
    }

    async fn changed(&self, _: &[&Hypervisor]) {
        std::future::pending::<()>().await;
    }
}

#[tokio::test]
async fn one_machine_that_claims_a_later_term_ends_no_leader() {
    let others = ["hv-2", "hv-3"].map(|name| {
        MACHINE
            .replace("hv-1", name)
            .replace("10.0.0.1", &format!("10.0.0.{}", &name[3..]))
            .replace("agent.sock", &format!("{name}.sock"))
    });
    let world = Documents::read(format!("{MACHINE}---\n{}---\n{}", others[0], others[1]).as_bytes()).unwrap();
    for claims in [9, 1 << 63, u64::MAX] {
        let machines = Arc::new(Three { claims, others: Machine::default(), looks: AtomicU64::new(0) });
        assert_eq!(highest_known_term(&*machines, &world).await, 3, "one machine's word moves no term");
        let led = lead_over(&machines.others.looked, machines.clone(), world.clone(), 4).await;
        assert_eq!(led, StopReason::Stopped, "{claims}");
        assert!(machines.looks.load(Ordering::Relaxed) > 0, "the others are looked at");
    }
}
