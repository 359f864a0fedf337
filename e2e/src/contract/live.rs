//! A real machine as a subject of the contract.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use async_trait::async_trait;
use keelway_api::{machine::MachineState, release};
use keelway_cri::testing::cache;
use keelway_machine::{action::Action, report::ApplyReport};
use keelway_machine_io::local::LocalMachine;
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::{ContractSubject, ProgramBehaviour};
use crate::{TestFleet, TestMachine, process};

/// The time within which etcd must respond.
const ANSWER: Duration = Duration::from_secs(3);

/// The private machine of a fleet without agents.
pub struct LiveMachine {
    world: TestFleet,
    machine: TestMachine,
    local: RwLock<Arc<LocalMachine>>,
}

impl LiveMachine {
    /// Wraps the private machine of a fleet that [`TestFleet::create_two_without_agents`] created.
    pub async fn of(world: TestFleet) -> Self {
        let machine = world.machines().into_iter().find(|machine| !machine.is_public()).unwrap();
        let local = RwLock::new(connect(&machine).await);
        Self { world, machine, local }
    }

    fn local(&self) -> Arc<LocalMachine> {
        self.local.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn connect(machine: &TestMachine) -> Arc<LocalMachine> {
    let archives = cache().unwrap().join("images");
    Arc::new(LocalMachine::connect(&machine.socket(), Some(archives)).await.unwrap())
}

#[async_trait]
impl ContractSubject for LiveMachine {
    fn program(&self, behaviour: ProgramBehaviour) -> (String, Vec<String>) {
        match behaviour {
            ProgramBehaviour::Serves => (self.pause(), vec!["/pause".to_owned()]),
            ProgramBehaviour::Fails => (self.etcd(), vec!["etcd".to_owned(), "--no-such-flag".to_owned()]),
        }
    }

    fn etcd(&self) -> String {
        release::newest().etcd_image(None)
    }

    fn pause(&self) -> String {
        release::newest().pause_image(None)
    }

    fn address(&self) -> IpAddr {
        self.machine.addresses()[0]
    }

    async fn execute(&self, actions: Vec<Action>) -> ApplyReport {
        self.local().execute(actions, &CancellationToken::new(), &|_| {}).await
    }

    async fn observe(&self) -> MachineState {
        self.local().observe().await.unwrap()
    }

    async fn kill(&self, container: &str) {
        let pid = self.local().runtime().container_pid(container).await.unwrap().unwrap();
        process::signal(pid, Signal::KILL);
    }

    async fn restart_runtime(&self) {
        let pid = self.machine.pid();
        process::signal(pid, Signal::KILL);
        assert!(process::ends_within(pid, ANSWER));
        self.world.make_whole_without_agents();
        let local = connect(&self.machine).await;
        *self.local.write().unwrap_or_else(PoisonError::into_inner) = local;
    }

    async fn is_ready(&self, member: SocketAddr) -> bool {
        let Ok(mut stream) = self.machine.connect(member) else { return false };
        let mut answer = String::new();
        let asked = stream
            .set_read_timeout(Some(ANSWER))
            .and_then(|()| stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n"))
            .and_then(|()| stream.read_to_string(&mut answer));
        asked.is_ok() && answer.split(' ').nth(1) == Some("200")
    }
}
