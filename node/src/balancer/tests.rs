mod tls_ingress;

use tokio::io::AsyncReadExt;

use self::tls_ingress::{TestAuthority, TlsIngress};
use super::*;

#[test]
fn one_client_address_cannot_use_up_the_connections_of_others() {
    let clients = Arc::new(ConnectionCounts::default());
    let address = |last: u8| IpAddr::from([10, 244, 0, last]);
    let greedy: Vec<_> = (0..MOST_OF_ONE).map(|_| clients.admit(address(1)).unwrap()).collect();
    assert!(clients.admit(address(1)).is_none());
    let others: Vec<_> = (2..5)
        .map(|last| (0..MOST_OF_ONE).map(|_| clients.admit(address(last)).unwrap()).collect::<Vec<_>>())
        .collect();
    assert!(clients.admit(address(9)).is_none(), "all of them are too many");
    drop(greedy);
    assert!(clients.admit(address(9)).is_some());
    drop(others);
    assert!(clients.lock().is_empty());
}

/// How long a test waits for an event.
const DEADLINE: Duration = Duration::from_secs(60);

/// A balancer that serves on loopback.
async fn serving(authority: &TestAuthority, ingresses: &[&TlsIngress]) -> (Arc<Balancer>, SocketAddr) {
    let balancer = Balancer::new(&authority.pem(), HttpProxies::default()).unwrap();
    let addresses: Vec<SocketAddr> = ingresses.iter().map(|ingress| ingress.address).collect();
    balancer.set(&addresses, &authority.pem()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Arc::clone(&balancer).serve(listener));
    (balancer, address)
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waits = async {
        while !is_so() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, waits).await.unwrap_or_else(|_| panic!("{what}: not within {DEADLINE:?}"));
}

/// Whether the balancer ended this connection.
async fn is_ended(connection: &mut TcpStream) -> bool {
    let read = timeout(Duration::from_millis(20), connection.read(&mut [0])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn checks_of_an_ingress_share_one_handshake() {
    let authority = TestAuthority::new();
    let ingress = TlsIngress::start(&authority).await;
    let (balancer, _) = serving(&authority, &[&ingress]).await;
    until("three checks", || ingress.requests() >= 3).await;
    assert_eq!(ingress.handshakes(), 1);
    balancer.set(&[ingress.address], &authority.pem()).unwrap();
    let before = ingress.requests();
    until("a check after the same authorities", || ingress.requests() > before).await;
    assert_eq!(ingress.handshakes(), 1);
}

#[tokio::test]
async fn an_ingress_of_an_unknown_authority_says_what_to_do() {
    let (known, later) = (TestAuthority::new(), TestAuthority::later());
    let ingress = TlsIngress::start(&later).await;
    let (balancer, _) = serving(&known, &[&ingress]).await;
    until("a check", || balancer.status()[0].answers == Some(false)).await;
    let problem = balancer.status()[0].problem.clone().unwrap();
    assert!(problem.contains("authority that this worker does not know"), "{problem}");
    // The worker learns of the next authority.
    balancer.set(&[ingress.address], &(known.pem() + &later.pem())).unwrap();
    until("a check", || balancer.status()[0].answers == Some(true)).await;
    assert_eq!(balancer.status()[0].problem, None);
}

#[tokio::test]
async fn an_ended_connection_of_checks_is_no_failure() {
    let authority = TestAuthority::new();
    let ingress = TlsIngress::start(&authority).await;
    let (balancer, _) = serving(&authority, &[&ingress]).await;
    until("a check", || balancer.status()[0].answers == Some(true)).await;
    ingress.end_connections();
    until("a check over a new connection", || {
        assert_eq!(balancer.status()[0].answers, Some(true));
        ingress.handshakes() == 2
    })
    .await;
}

#[tokio::test]
async fn an_api_server_that_stops_is_not_the_whole_ingress() {
    let authority = TestAuthority::new();
    let ingress = TlsIngress::start(&authority).await;
    let (balancer, _) = serving(&authority, &[&ingress]).await;
    until("a check", || balancer.status()[0].answers == Some(true)).await;
    // The API server behind the open connection is not ready, the next one is.
    ingress.refuse_next(1);
    until("a check over a new connection", || {
        assert_eq!(balancer.status()[0].answers, Some(true));
        ingress.handshakes() == 2
    })
    .await;
    ingress.refuse_next(usize::MAX);
    until("no API server is ready", || balancer.status()[0].answers == Some(false)).await;
}

#[tokio::test]
async fn live_connections_stay_while_nothing_better_responds() {
    let authority = TestAuthority::new();
    let (lost, other) = (TlsIngress::start(&authority).await, TlsIngress::start(&authority).await);
    other.set_silent(true);
    let (balancer, address) = serving(&authority, &[&lost, &other]).await;
    let answers = |ingress: &TlsIngress| {
        let status = balancer.status();
        status.iter().find(|found| found.address == ingress.address).unwrap().answers
    };
    until("one responds", || answers(&lost) == Some(true) && answers(&other) == Some(false)).await;
    let mut connection = TcpStream::connect(address).await.unwrap();
    until("a connection", || balancer.status().iter().any(|ingress| ingress.connections == 1)).await;

    lost.set_silent(true);
    until("none responds", || answers(&lost) == Some(false)).await;
    // Further failed checks of the lost ingress do not end the connection.
    let before = lost.requests() + lost.handshakes();
    until("two more checks", || lost.requests() + lost.handshakes() >= before + 2).await;
    assert!(!is_ended(&mut connection).await);

    other.set_silent(false);
    let reset = async { while !is_ended(&mut connection).await {} };
    timeout(DEADLINE, reset).await.expect("the connection is reset once another ingress responds");
}

#[tokio::test]
async fn an_ingress_that_is_no_longer_listed_keeps_its_connections_until_another_one_responds() {
    let authority = TestAuthority::new();
    let (removed, other) = (TlsIngress::start(&authority).await, TlsIngress::start(&authority).await);
    other.set_silent(true);
    let (balancer, address) = serving(&authority, &[&removed]).await;
    until("it responds", || balancer.status()[0].answers == Some(true)).await;
    let mut connection = TcpStream::connect(address).await.unwrap();
    until("a connection", || balancer.status()[0].connections == 1).await;
    balancer.set(&[other.address], &authority.pem()).unwrap();
    until("the other one fails", || balancer.status()[0].answers == Some(false)).await;
    assert!(!is_ended(&mut connection).await);
    other.set_silent(false);
    let reset = async { while !is_ended(&mut connection).await {} };
    timeout(DEADLINE, reset).await.expect("the connection is reset once another ingress responds");
}
