//! Cases for every etcd.

use std::net::SocketAddr;

use keelway_api::{
    machine::{ContainerPhase, Mount, Pod},
    name::PodName,
};
use keelway_machine::action::PodAction;

use super::subject::{Case, ContractSubject, container, pod, pod_of};

macro_rules! cases {
    ($($case:ident,)*) => {
        /// All cases.
        pub const CASES: &[Case] = &[$((stringify!($case), |subject| Box::pin($case(subject))),)*];
    };
}

cases! {
    a_store_is_ready_with_more_than_half_of_its_members,
    a_member_goes_on_with_its_data_whatever_its_flags_say,
    a_member_that_lost_its_data_does_not_start_beside_others,
    a_member_is_one_of_its_initial_cluster,
    a_port_is_one_member_s,
}

/// The data directory, as the member sees it.
const DATA: &str = "/var/lib/etcd";

/// Three members on ports that no other case uses. Each names the members of `initial`.
struct EtcdCluster<'a> {
    subject: &'a dyn ContractSubject,
    first_port: u16,
}

impl EtcdCluster<'_> {
    fn name(&self, member: u16) -> PodName {
        pod(&format!("etcd-{}", self.first_port * 10 + member))
    }

    fn client(&self, member: u16) -> SocketAddr {
        SocketAddr::new(self.subject.address(), self.first_port + member * 2)
    }

    fn peer(&self, member: u16) -> SocketAddr {
        SocketAddr::new(self.subject.address(), self.first_port + member * 2 + 1)
    }

    fn member(&self, member: u16, initial: &[u16]) -> (PodName, Pod) {
        let initial: Vec<String> = initial
            .iter()
            .map(|other| format!("{}=http://{}", self.name(*other).component, self.peer(*other)))
            .collect();
        let (client, peer) = (format!("http://{}", self.client(member)), format!("http://{}", self.peer(member)));
        let flags = [
            ("name", self.name(member).component.to_string()),
            ("data-dir", DATA.to_owned()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer),
            ("initial-cluster", initial.join(",")),
            ("initial-cluster-token", format!("{:016x}", self.first_port)),
            ("initial-cluster-state", "new".to_owned()),
        ];
        let words = flags.iter().map(|(flag, value)| format!("--{flag}={value}"));
        let command = std::iter::once("etcd".to_owned()).chain(words).collect();
        let data = Mount { source: "data".to_owned(), target: DATA.to_owned(), read_only: false };
        let container = container(self.subject.etcd(), command, vec![data]);
        (self.name(member), pod_of(container, vec!["data".to_owned()], self.subject.pause()))
    }

    /// Starts these members and ends all others. The data of the others stays.
    async fn run(&self, members: &[u16]) {
        let pods: Vec<_> = members.iter().map(|member| self.member(*member, &[0, 1, 2])).collect();
        self.subject.apply_pods(&pods).await;
    }

    async fn until_ready(&self, member: u16, ready: bool) {
        self.subject.until_ready(self.client(member), ready).await;
    }

    async fn kill(&self, member: u16) {
        let found = self.subject.container(&self.name(member)).await;
        self.subject.kill(&found.id).await;
        assert_eq!(self.subject.exit_code(&self.name(member)).await, 137);
    }
}

async fn a_store_is_ready_with_more_than_half_of_its_members(subject: &dyn ContractSubject) {
    let store = EtcdCluster { subject, first_port: 2_100 };
    store.run(&[0]).await;
    store.until_ready(0, false).await;
    store.run(&[0, 1, 2]).await;
    for member in 0..3 {
        store.until_ready(member, true).await;
        assert!(subject.observe().await.data_of(&store.name(member), "data").used);
    }
    store.kill(0).await;
    store.until_ready(1, true).await;
    store.kill(1).await;
    store.until_ready(2, false).await;
    store.run(&[0, 1, 2]).await;
    for member in 0..3 {
        store.until_ready(member, true).await;
    }
    subject.apply_pods(&[]).await;
}

async fn a_member_goes_on_with_its_data_whatever_its_flags_say(subject: &dyn ContractSubject) {
    let store = EtcdCluster { subject, first_port: 2_200 };
    store.run(&[0, 1, 2]).await;
    store.until_ready(0, true).await;
    // With these flags, a member without data would form a separate one-member cluster.
    let alone = store.member(0, &[0]);
    subject.apply_pods(&[alone.clone(), store.member(1, &[0, 1, 2]), store.member(2, &[0, 1, 2])]).await;
    store.until_ready(0, true).await;
    store.kill(1).await;
    store.kill(2).await;
    store.until_ready(0, false).await;
    subject.apply_pods(&[]).await;
}

async fn a_member_that_lost_its_data_does_not_start_beside_others(subject: &dyn ContractSubject) {
    let store = EtcdCluster { subject, first_port: 2_300 };
    store.run(&[0, 1, 2]).await;
    for member in 0..3 {
        store.until_ready(member, true).await;
    }
    store.kill(0).await;
    subject.act(&store.name(0), PodAction::RemovePath { path: format!("{}/data", store.name(0)) }).await.unwrap();
    assert!(!subject.observe().await.data_of(&store.name(0), "data").used);
    store.run(&[0, 1, 2]).await;
    assert_ne!(subject.exit_code(&store.name(0)).await, 0);
    store.until_ready(1, true).await;
    subject.apply_pods(&[]).await;
}

async fn a_member_is_one_of_its_initial_cluster(subject: &dyn ContractSubject) {
    let store = EtcdCluster { subject, first_port: 2_400 };
    subject.apply_pods(&[store.member(0, &[1, 2])]).await;
    assert_ne!(subject.exit_code(&store.name(0)).await, 0);
    subject.apply_pods(&[]).await;
}

async fn a_port_is_one_member_s(subject: &dyn ContractSubject) {
    let store = EtcdCluster { subject, first_port: 2_500 };
    subject.apply_pods(&[store.member(0, &[0])]).await;
    store.until_ready(0, true).await;
    let (_, same) = store.member(0, &[0]);
    let other = store.name(9);
    subject.apply_pods(&[store.member(0, &[0]), (other.clone(), same)]).await;
    assert_ne!(subject.exit_code(&other).await, 0);
    assert_eq!(subject.container(&store.name(0)).await.phase, ContainerPhase::Running);
    subject.apply_pods(&[]).await;
}
