//! Orders to a store, with real etcd members: each can be repeated, by the same driver and by a second one.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod documents;
#[path = "../../../../cluster-controller/tests/live/host.rs"]
mod host;
#[expect(dead_code, reason = "the test of the client uses the rest")]
#[path = "../../../etcd-client/tests/real_etcd/member.rs"]
mod member;
mod space;
#[path = "../../../../cluster-controller/tests/live/wait.rs"]
mod wait;

use keelway_api::{membership::MembershipReason, name::ComponentName};
use keelway_planner::{ListedMember, MemberId, StoreObservation, StoreOrder};

use documents::TestDriver;
use member::StoreProcesses;

#[test]
fn orders_take_effect_once() {
    host::on_own_host("orders_take_effect_once", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(orders());
    });
}

#[test]
fn a_full_store_and_a_corrupt_member_are_repaired() {
    host::on_own_host("a_full_store_and_a_corrupt_member_are_repaired", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(space::repairs());
    });
}

fn name(member: &str) -> ComponentName {
    member.parse().unwrap()
}

fn listed(store: &StoreObservation, member: &str) -> (MemberId, ListedMember) {
    let list = store.list.as_ref().unwrap();
    let found = list.iter().find(|(_, listed)| listed.name == member || (member.is_empty() && listed.name.is_empty()));
    found.map(|(id, listed)| (*id, listed.clone())).unwrap()
}

async fn orders() {
    let mut processes = StoreProcesses::of_one_member();
    let drivers = [TestDriver::new(&processes), TestDriver::new(&processes)];
    let [driver, second] = &drivers;
    wait::until("the first member confirms the list", async || driver.store().await.list.is_some()).await;
    let store = driver.store().await;
    assert_eq!(store.leader(), Some(store.report(&name("etcd-0")).unwrap().id));
    assert!(store.report(&name("etcd-1")).is_none(), "it has not started");

    let add = StoreOrder::AddLearner { component: name("etcd-1"), peer_urls: vec![processes.peer_url(1)] };
    // One of two drivers may be refused if both add the learner at once. Neither adds another one.
    let both = tokio::join!(driver.order(&add), second.order(&add));
    assert!(both.0.is_ok() || both.1.is_ok(), "{both:?}");
    driver.order(&add).await.unwrap();
    let store = driver.store().await;
    assert_eq!(store.list.as_ref().unwrap().len(), 2, "{store:?}");
    let (id, learner) = listed(&store, "");
    assert!(learner.is_learner);

    let promote = StoreOrder::Promote { component: name("etcd-1"), id };
    let early = driver.order(&promote).await.unwrap_err();
    assert!(early.contains("in sync with leader"), "{early}");
    processes.start_added(1);
    wait::until("the learner is a voter", async || driver.order(&promote).await.is_ok()).await;
    second.order(&promote).await.unwrap();
    let store = second.store().await;
    assert!(!listed(&store, "etcd-1").1.is_learner && store.report(&name("etcd-1")).is_some());

    let (first, _) = listed(&store, "etcd-0");
    let hand_over = StoreOrder::MoveLeader { from: first, to: id };
    wait::until("the leader has moved", async || {
        driver.order(&hand_over).await.is_ok() && driver.store().await.leader() == Some(id)
    })
    .await;
    second.order(&hand_over).await.unwrap();
    assert_eq!(second.store().await.leader(), Some(id));

    let remove = StoreOrder::Remove { component: name("etcd-0"), id: first, reason: MembershipReason::Replicas };
    // etcd changes no members until they have been connected for five seconds.
    wait::until("the first member is removed", async || driver.order(&remove).await.is_ok()).await;
    second.order(&remove).await.unwrap();
    let store = second.store().await;
    assert_eq!(store.list.unwrap().into_keys().collect::<Vec<_>>(), [id]);

    processes.stop(1);
    let lost = driver.order(&remove).await.unwrap_err();
    assert!(lost.contains("majority"), "nothing is assumed of a store that does not respond: {lost}");
}
