//! The contract of machines and of etcd: the simulated ones pass the same cases as real containerd and real etcd.
#![expect(clippy::print_stdout, reason = "a test prints what it did")]

use std::time::Instant;

use keelway_e2e::{
    TestFleet,
    contract::{Case, ContractSubject, ETCD, LiveMachine, RUNTIME},
    host::on_own_host,
    simulator::SimulatedMachine,
};

#[tokio::test(start_paused = true)]
async fn simulated() {
    all(&SimulatedMachine::default(), RUNTIME).await;
    all(&SimulatedMachine::default(), ETCD).await;
}

#[test]
fn real() {
    on_own_host("real", || {
        let mut world = TestFleet::new("e2econ");
        world.create_two_without_agents();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let machine = runtime.block_on(LiveMachine::of(world));
        runtime.block_on(all(&machine, RUNTIME));
        runtime.block_on(all(&machine, ETCD));
    });
}

async fn all(subject: &dyn ContractSubject, cases: &[Case]) {
    for (name, case) in cases {
        println!("{name} ..");
        let started = Instant::now();
        case(subject).await;
        println!("{name}: {} ms", started.elapsed().as_millis());
    }
}
