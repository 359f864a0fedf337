//! What the client relies on, with real etcd members over mutual TLS.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

#[path = "../../../../cluster-controller/tests/live/host.rs"]
mod host;
#[expect(dead_code, reason = "the test of orders in lib/reconciler uses the rest")]
mod member;
#[path = "../../../../cluster-controller/tests/live/wait.rs"]
mod wait;

use std::process::Command;

use keelway_cri::testing::cache;
use keelway_etcd_client::{EtcdAlarm, EtcdClient, EtcdError, StatusResponse};
use member::{QUOTA, StoreProcesses};
use sha2::{Digest, Sha256};

/// All cases use one store, which grows to two members and shrinks again.
#[test]
fn a_store_grows_is_kept_and_shrinks() {
    host::on_own_host("a_store_grows_is_kept_and_shrinks", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(cases());
    });
}

async fn cases() {
    let mut store = StoreProcesses::of_one_member();
    let first = store.client(0);
    wait::until("the first member leads", async || first.status().await.is_ok_and(|status| status.leader != 0)).await;
    only_the_authority_s_clients_are_served(&store).await;
    a_member_reports_its_database(&first).await;
    let second = a_learner_becomes_a_voter(&mut store, &first).await;
    the_leader_moves(&first, &second).await;
    a_store_without_quorum_reports_no_members(&mut store, &first, &second).await;
    a_snapshot_is_whole(&store, &second).await;
    an_alarm_is_reported_and_disarmed(&store, [&first, &second]).await;
    a_removed_member_is_gone(&first, &second).await;
}

fn id(status: &StatusResponse) -> u64 {
    status.header.unwrap().member_id
}

async fn only_the_authority_s_clients_are_served(store: &StoreProcesses) {
    store.stranger(0).status().await.unwrap_err();
    let error = store.client_of_name(0, "etcd-9").status().await.unwrap_err();
    assert!(error.to_string().contains("etcd-9"), "{error}");
}

async fn a_member_reports_its_database(first: &EtcdClient) {
    let status = first.status().await.unwrap();
    assert_eq!((status.leader, status.is_learner), (id(&status), false));
    assert!(status.db_size >= status.db_size_in_use && status.db_size_in_use > 0, "{status:?}");
    assert_eq!((status.db_size_quota, status.version.as_str()), (QUOTA, "3.7.0"));
    assert!(status.raft_applied_index > 0 && status.errors.is_empty(), "{status:?}");
}

async fn a_learner_becomes_a_voter(store: &mut StoreProcesses, first: &EtcdClient) -> EtcdClient {
    let urls = vec![store.peer_url(1)];
    let added = first.add_learner(urls.clone()).await.unwrap();
    assert!(added.is_learner && added.name.is_empty());
    let again = first.add_learner(urls.clone()).await.unwrap_err();
    // The id depends on the time in seconds, so that one of two checks refuses.
    assert!(again.to_string().contains("already exist"), "{again}");
    let early = first.promote(added.id).await.unwrap_err();
    assert!(early.is_learner_behind(), "{early}");
    store.start_added(1);
    let second = store.client(1);
    wait::until("the learner responds", async || second.status().await.is_ok_and(|status| status.is_learner)).await;
    second.members().await.unwrap_err();
    wait::until("the learner is a voter", async || match first.promote(added.id).await {
        Ok(()) => true,
        Err(error) => {
            assert!(error.is_learner_behind(), "{error}");
            false
        }
    })
    .await;
    let twice = first.promote(added.id).await.unwrap_err();
    assert!(!twice.is_learner_behind(), "{twice}");
    let list = first.members().await.unwrap();
    let listed: Vec<_> = list.members.iter().map(|member| (member.name.as_str(), member.is_learner)).collect();
    assert!(listed.contains(&("etcd-0", false)) && listed.contains(&("etcd-1", false)), "{listed:?}");
    assert_eq!(list.members.iter().find(|member| member.id == added.id).unwrap().peer_ur_ls, urls);
    second
}

async fn the_leader_moves(first: &EtcdClient, second: &EtcdClient) {
    let [from, to] = [id(&first.status().await.unwrap()), id(&second.status().await.unwrap())];
    let refused = second.move_leader(from).await.unwrap_err();
    assert_eq!(refused.to_string(), "MoveLeader failed: not leader");
    first.move_leader(to).await.unwrap();
    wait::until("both report the new leader", async || {
        let leader = async |client: &EtcdClient| client.status().await.unwrap().leader;
        leader(first).await == to && leader(second).await == to
    })
    .await;
}

async fn a_store_without_quorum_reports_no_members(
    store: &mut StoreProcesses,
    first: &EtcdClient,
    second: &EtcdClient,
) {
    store.stop(1);
    wait::until("the rest knows no leader", async || first.status().await.unwrap().leader == 0).await;
    assert!(matches!(first.members().await.unwrap_err(), EtcdError::TimedOut { .. } | EtcdError::Status { .. }));
    second.status().await.unwrap_err();
    store.start_again(1);
    wait::until("the quorum is back, over the same clients", async || second.members().await.is_ok()).await;
}

async fn a_snapshot_is_whole(store: &StoreProcesses, second: &EtcdClient) {
    store.put(0, "a", 100_000).unwrap();
    let (mut stream, mut database, mut left) = (second.snapshot().await.unwrap(), Vec::new(), u64::MAX);
    while let Some(part) = stream.next_part().await.unwrap() {
        database.extend_from_slice(&part.blob);
        left = part.remaining_bytes;
    }
    assert_eq!(left, 0);
    let (content, digest) = database.split_at(database.len() - 32);
    assert_eq!(Sha256::digest(content).as_slice(), digest);
    let path = member::path("snapshot.db");
    std::fs::write(&path, &database).unwrap();
    let etcdutl = cache().unwrap().join("bin/etcdutl");
    let ran = Command::new(etcdutl).args(["snapshot", "status"]).arg(path).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

async fn an_alarm_is_reported_and_disarmed(store: &StoreProcesses, [first, second]: [&EtcdClient; 2]) {
    let alarms = async |client: &EtcdClient| -> Vec<(u64, EtcdAlarm)> {
        let errors = client.status().await.unwrap().errors;
        errors.iter().filter_map(|text| EtcdAlarm::of_status_error(text)).collect()
    };
    while store.put(0, "b", 1 << 20).is_ok() {}
    wait::until("both report the alarm", async || !alarms(first).await.is_empty() && !alarms(second).await.is_empty())
        .await;
    let revision = first.status().await.unwrap().header.unwrap().revision;
    store.etcdctl(0, &["compaction", "--physical", &revision.to_string()]).unwrap();
    for client in [first, second] {
        let before = client.status().await.unwrap();
        client.defragment().await.unwrap();
        assert!(client.status().await.unwrap().db_size < before.db_size);
    }
    for (member, alarm) in alarms(first).await {
        assert_eq!(alarm, EtcdAlarm::NoSpace);
        first.disarm(member, alarm).await.unwrap();
    }
    wait::until("no alarm is left", async || alarms(first).await.is_empty() && alarms(second).await.is_empty()).await;
    store.put(0, "c", 1).unwrap();
    let hashes = [first.hash(revision).await.unwrap(), second.hash(revision).await.unwrap()];
    assert_eq!(hashes.each_ref().map(|hash| hash.hash), [hashes[0].hash; 2]);
}

async fn a_removed_member_is_gone(first: &EtcdClient, second: &EtcdClient) {
    let removed = id(&first.status().await.unwrap());
    // etcd changes no members until they have been connected for five seconds (`HealthInterval`).
    wait::until("the member is removed", async || match second.remove(removed).await {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.to_string(), "MemberRemove failed: unhealthy cluster");
            false
        }
    })
    .await;
    second.remove(removed).await.unwrap_err();
    let list = second.members().await.unwrap();
    assert_eq!(list.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), ["etcd-1"]);
    wait::until("the removed member stops", async || first.status().await.is_err()).await;
}
