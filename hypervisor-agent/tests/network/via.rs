//! Agents that the driver reaches through the agent of another machine. That agent dials them, or they wait at it for calls.

use std::{net::SocketAddr, path::Path, sync::Arc};

use futures::{FutureExt, StreamExt};
use keelway_agent_api::{
    client::{DialTarget, HypervisorAgentClient},
    enrollment::enroll,
};
use keelway_hypervisor_agent::agent::{AgentNetwork, ConnectionLimits};
use tempfile::TempDir;
use tokio::{net::TcpListener, time::timeout};
use tonic::Code;

use crate::{
    WITHIN,
    enrollment::FIRST,
    installation::{Installation, MACHINE, files},
    machine::{Machine, config},
};

const BEHIND: &str = "hv-2";

fn identity(folder: &Path) -> Arc<keelway_tls::TlsClient> {
    Arc::new(keelway_tls::TlsClient::new(files(folder)).unwrap())
}

/// Connects to the agent of a machine through the agent of [`MACHINE`].
fn through(public: &Machine, machine: &str, address: Option<SocketAddr>, driver: &TempDir) -> HypervisorAgentClient {
    let way = DialTarget::through(public.client(driver), &machine.parse().unwrap(), address, identity(driver.path()));
    HypervisorAgentClient::on_channel(way.unwrap().channel())
}

fn listening(installation: &mut Installation, name: &str, address: SocketAddr) -> Machine {
    Machine::of(name, installation, |files| {
        AgentNetwork::of_files(files, ConnectionLimits::default()).unwrap().listening_on(address).unwrap()
    })
}

/// Creates a machine that does not listen on a port.
fn waiting(installation: &mut Installation, name: &str, at: &[SocketAddr]) -> Machine {
    let at = at.to_vec();
    Machine::of(name, installation, |files| {
        AgentNetwork::of_files(files, ConnectionLimits::default()).unwrap().waiting_at(at)
    })
}

/// Polls until the agent of the machine responds: the driver is not notified when an agent starts to wait.
async fn reached(public: &Machine, machine: &str, driver: &TempDir) -> HypervisorAgentClient {
    let client = through(public, machine, None, driver);
    let looking = async {
        while client.state(WITHIN).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHIN, looking).await.unwrap();
    client
}

#[tokio::test]
async fn one_that_another_agent_dials() {
    let mut installation = Installation::new(1);
    let public = Machine::new(&mut installation, ConnectionLimits::default());
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let private = listening(&mut installation, BEHIND, loopback);
    let driver = installation.driver(|_| {});
    let client = through(&public, BEHIND, Some(private.address), &driver);
    timeout(WITHIN, client.apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    assert_eq!(client.state(WITHIN).await.unwrap().applied.unwrap().generation, 1);
    assert_eq!(public.client(&driver).state(WITHIN).await.unwrap().applied, None);
    // The endpoint must have the certificate of the requested machine.
    assert!(through(&public, "hv-3", Some(private.address), &driver).state(WITHIN).await.is_err());
    assert!(through(&public, BEHIND, Some(public.address), &driver).state(WITHIN).await.is_err());
    assert!(through(&public, MACHINE, Some(public.address), &driver).state(WITHIN).await.is_ok());
}

#[tokio::test]
async fn one_that_waits_to_be_called() {
    let mut installation = Installation::new(1);
    let public = Machine::new(&mut installation, ConnectionLimits::default());
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let private = waiting(&mut installation, BEHIND, &[nobody, public.address]);
    let driver = installation.driver(|_| {});
    let client = reached(&public, BEHIND, &driver).await;
    timeout(WITHIN, client.apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    let mut revisions = client.watch(WITHIN).await.unwrap();
    revisions.next().await.unwrap();
    assert_eq!(public.client(&driver).state(WITHIN).await.unwrap().applied, None);
    let kept = std::fs::read(private.state_file("config")).unwrap();
    assert!(!kept.is_empty());
    assert!(through(&public, "hv-3", None, &driver).state(WITHIN).await.is_err(), "nobody waits under that name");

    private.stop.cancel();
    while timeout(WITHIN, revisions.next()).await.unwrap().is_some() {}
    assert!(client.state(WITHIN).await.is_err());
    assert!(public.serves(&driver).await);
}

#[tokio::test]
async fn a_waiting_agent_reconnects_to_a_restarted_agent() {
    let mut installation = Installation::new(1);
    let public = Machine::new(&mut installation, ConnectionLimits::default());
    let at = public.address;
    let _private = waiting(&mut installation, BEHIND, &[at]);
    let driver = installation.driver(|_| {});
    reached(&public, BEHIND, &driver).await;
    public.stop.cancel();
    let again = async {
        loop {
            // The port is free after the previous agent has closed its socket.
            if let Ok(listener) = std::net::TcpListener::bind(at) {
                return drop(listener);
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHIN, again).await.unwrap();
    let public = listening(&mut installation, MACHINE, at);
    reached(&public, BEHIND, &driver).await;
}

/// The agent in between relays connections and does not read them, so that enrollment and later requests use the same route.
#[tokio::test]
async fn one_is_enrolled_through_another_and_then_waits_there() {
    let mut installation = Installation::new(1);
    let public = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let token = installation.token(BEHIND, 1);
    let private = Machine::enrolling_and_waiting(&token, vec![public.address]);
    let machine = BEHIND.parse().unwrap();
    let way =
        |address| DialTarget::through(public.client(&driver), &machine, address, identity(driver.path())).unwrap();
    let direct = way(Some(private.address));
    let grant = |request: &str| Ok(installation.grant_of(BEHIND, request, FIRST, |_| {}));
    enroll(direct.connection().await.unwrap(), &machine, &token, grant).await.unwrap();
    let identity = HypervisorAgentClient::on_channel(direct.channel()).state(WITHIN).await.unwrap().identity;
    assert_eq!(identity.unwrap().serial, FIRST);
    assert_eq!(reached(&public, BEHIND, &driver).await.state(WITHIN).await.unwrap().identity.unwrap().serial, FIRST);
}

/// Returns the status with which the agent responds to another agent on its port.
async fn refusal(public: &Machine, agent: &TempDir, path: &'static str) -> Code {
    let mut grpc = tonic::client::Grpc::new(public.channel(agent.path()));
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    let answer = grpc.server_streaming(tonic::Request::new(()), path, codec).await;
    let Ok(answer) = answer else { return answer.map(drop).unwrap_err().code() };
    // An agent that waits gets no message until it is called.
    let mut said = answer.into_inner();
    let first = said.message().now_or_never();
    first.and_then(Result::err).map_or(Code::Ok, |status| status.code())
}

#[tokio::test]
async fn an_agent_may_wait_and_nothing_else() {
    let mut installation = Installation::new(1);
    let public = Machine::new(&mut installation, ConnectionLimits::default());
    let (agent, driver) = (installation.agent(BEHIND), installation.driver(|_| {}));
    let asked = [
        "/keelway.agent.v1.Agent/GetState",
        "/keelway.agent.v1.Agent/GetConfig",
        "/keelway.agent.v1.Agent/Apply",
        "/keelway.agent.v1.Agent/WatchState",
        "/keelway.agent.v1.Agent/WatchEvents",
        "/keelway.agent.v1.Agent/Dial",
        "/keelway.agent.v1.Agent/ListLogs",
        "/keelway.agent.v1.Agent/ReadLog",
        "/keelway.agent.v1.Agent/Adopt",
        "/keelway.agent.v1.Exchange/Call",
        "/runtime.v1.RuntimeService/Version",
        "/runtime.v1.RuntimeService/ExecSync",
        "/runtime.v1.ImageService/ListImages",
    ];
    for path in asked {
        assert_eq!(refusal(&public, &agent, path).await, Code::PermissionDenied, "{path}");
        assert_ne!(refusal(&public, &driver, path).await, Code::PermissionDenied, "{path}, for the driver");
    }
    assert_eq!(refusal(&public, &agent, "/keelway.agent.v1.Exchange/Wait").await, Code::Ok);
    // Only agents have a name to wait under.
    assert_eq!(refusal(&public, &driver, "/keelway.agent.v1.Exchange/Wait").await, Code::PermissionDenied);
}

/// An agent waits under the name in its certificate, and cannot choose another one.
#[tokio::test]
async fn an_agent_is_called_by_its_own_name() {
    let mut installation = Installation::new(1);
    let public = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let _other = waiting(&mut installation, "hv-3", &[public.address]);
    reached(&public, "hv-3", &driver).await;
    let why = through(&public, BEHIND, None, &driver).state(WITHIN).await.unwrap_err();
    assert!(format!("{why:?}").contains("is not connected here"), "{why:?}");
    // The agent with this name is reached, although another agent has waited here before.
    let _private = waiting(&mut installation, BEHIND, &[public.address]);
    reached(&public, BEHIND, &driver).await;
    assert!(through(&public, "hv-3", None, &driver).state(WITHIN).await.is_ok());
}
