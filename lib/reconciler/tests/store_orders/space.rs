//! A real store that fills up, and a member that etcd reports as corrupt: the decisions of passes and their orders repair both.

use std::time::{Duration, Instant};

use keelway_api::{name::ComponentName, store_observation::MemberAlarm};
use keelway_etcd_client::EtcdAlarm;
use keelway_planner::{StoreObservation, StoreOrder, WaitBlocker};

use crate::{documents::TestDriver, member::StoreProcesses, wait};

/// The size of a value. A member raises its alarm when the next value does not fit.
const VALUE: usize = 256 << 10;
/// The number of keys that the test may delete while the store is full.
const SPARE: usize = 5;
/// Many times longer than any repair takes.
const DEADLINE: Duration = Duration::from_secs(120);

pub(crate) async fn repairs() {
    let processes = StoreProcesses::of_three_members();
    let mut driver = TestDriver::of_three(&processes).await;
    assert_eq!(driver.pass().await.0, None, "a store that works gets no order");
    history_is_compacted_and_freed(&processes, &mut driver).await;
    data_that_fills_the_quota_is_left_to_a_person(&processes, &mut driver).await;
    a_corrupt_member_leaves(&processes, &mut driver).await;
}

/// Values of one key fill the databases. Only their history is large.
async fn history_is_compacted_and_freed(processes: &StoreProcesses, driver: &mut TestDriver) {
    for number in 0..SPARE {
        processes.put(0, &format!("spare/{number}"), 1).unwrap();
    }
    // Larger values leave so many free pages that a store can go on without compaction.
    while processes.put(0, "a", VALUE / 8).is_ok() {}
    wait_for_alarm(driver, MemberAlarm::NoSpace).await;
    let leader = driver.store().await.leader().unwrap();
    // etcd counts freed pages as used until its next write to the database. In a cluster, objects that expire are such writes.
    let mut orders = Vec::new();
    for number in 0..SPARE {
        let is_over = |store: &StoreObservation, waiting: &[WaitBlocker]| {
            store.alarms().is_empty() || waiting.contains(&WaitBlocker::FilledQuota)
        };
        orders.extend(pass_until(driver, is_over).await);
        if driver.store().await.alarms().is_empty() {
            break;
        }
        processes.etcdctl(0, &["del", &format!("spare/{number}")]).unwrap();
    }
    assert!(driver.store().await.alarms().is_empty(), "{orders:?}");
    let defragmented: Vec<_> = orders
        .iter()
        .filter_map(|order| {
            let StoreOrder::Defragment { component, id, .. } = order else { return None };
            Some((component, *id))
        })
        .collect();
    assert!(matches!(orders.first(), Some(StoreOrder::Compact { .. })), "{orders:?}");
    assert_eq!(defragmented.len(), 3, "each member once: {orders:?}");
    assert_eq!(defragmented.last().unwrap().1, leader, "the member that led is the last: {orders:?}");
    let moved = orders.iter().position(|order| matches!(order, StoreOrder::MoveLeader { .. })).unwrap();
    let last = orders.iter().rposition(|order| matches!(order, StoreOrder::Defragment { .. })).unwrap();
    assert!(moved < last, "{orders:?}");
    processes.put(1, "a", VALUE).unwrap();
    let store = driver.store().await;
    for member in store.members.values() {
        assert!(member.known().unwrap().database.size < 4 << 20, "{store:?}");
    }
}

/// Many keys fill the databases. Nothing is defragmented until a person deletes them.
async fn data_that_fills_the_quota_is_left_to_a_person(processes: &StoreProcesses, driver: &mut TestDriver) {
    let mut number = 0;
    loop {
        while processes.put(0, &format!("many/{number}"), VALUE / 8).is_ok() {
            number += 1;
        }
        wait_for_alarm(driver, MemberAlarm::NoSpace).await;
        // The first rounds may leave a few free pages, which are used then.
        let is_filled = |waiting: &[WaitBlocker]| waiting.contains(&WaitBlocker::FilledQuota);
        pass_until(driver, |store, waiting| is_filled(waiting) || store.alarms().is_empty()).await;
        if !driver.store().await.alarms().is_empty() {
            break;
        }
    }
    for _ in 0..3 {
        let (order, waiting) = driver.pass().await;
        assert!(matches!(order, None | Some(StoreOrder::Compact { .. })), "no loop: {order:?}");
        assert!(waiting.contains(&WaitBlocker::FilledQuota), "{waiting:?}");
    }
    // etcd counts freed pages as used until its next write to the database, so what one compaction frees is seen after a later deletion.
    for digit in 1..10 {
        processes.etcdctl(0, &["del", &format!("many/{digit}"), "--prefix"]).unwrap();
        driver.pass().await;
    }
    until_alarms_end(driver).await;
    processes.put(2, "a", VALUE).unwrap();
}

/// etcd raises the alarm after it compared hashes. The test raises it in its place.
async fn a_corrupt_member_leaves(processes: &StoreProcesses, driver: &mut TestDriver) {
    let store = driver.store().await;
    let corrupt: ComponentName = "etcd-1".parse().unwrap();
    let id = store.report(&corrupt).unwrap().id;
    processes.client(0).raise(id.0, EtcdAlarm::Corrupt).await.unwrap();
    wait_for_alarm(driver, MemberAlarm::Corrupt).await;
    let refused = processes.put(0, "a", 1).unwrap_err();
    assert!(refused.contains("corrupt cluster"), "{refused}");
    let orders = until_alarms_end(driver).await;
    let removed =
        orders.iter().position(|order| matches!(order, StoreOrder::Remove { component, .. } if *component == corrupt));
    let disarmed = orders.iter().position(|order| matches!(order, StoreOrder::Disarm { .. }));
    assert!(removed.is_some() && removed < disarmed, "{orders:?}");
    assert!(!driver.store().await.list.unwrap().contains_key(&id));
    processes.put(0, "a", 1).unwrap();
}

async fn wait_for_alarm(driver: &TestDriver, alarm: MemberAlarm) {
    wait::until("the alarm is reported", async || {
        driver.store().await.alarms().iter().any(|(_, raised)| *raised == alarm)
    })
    .await;
}

/// Runs passes until the store has no alarm, and returns their orders.
async fn until_alarms_end(driver: &mut TestDriver) -> Vec<StoreOrder> {
    pass_until(driver, |store, _| store.alarms().is_empty()).await
}

async fn pass_until(
    driver: &mut TestDriver,
    is_over: impl Fn(&StoreObservation, &[WaitBlocker]) -> bool,
) -> Vec<StoreOrder> {
    let (began, mut orders) = (Instant::now(), Vec::new());
    loop {
        let (order, waiting) = driver.pass().await;
        orders.extend(order);
        if is_over(&driver.store().await, &waiting) {
            println!("{:>7} ms  {orders:?}", began.elapsed().as_millis());
            return orders;
        }
        assert!(began.elapsed() < DEADLINE, "{orders:?}, waits for {waiting:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
