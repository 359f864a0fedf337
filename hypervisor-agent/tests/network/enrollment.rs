//! Enrollment of an agent, and the attempts that it refuses.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use keelway_agent_api::enrollment::{EnrollError, GrantedIdentity, enroll};
use keelway_base::error_chain::chain_text;
use keelway_hypervisor_agent::container::{install_certificate, request_certificate};
use keelway_pki::{CertificateUsage, EnrollmentSide, EnrollmentToken, IssuedCertificate, LeafRequest, ProvenChannel};
use keelway_tls::{ProvisionalServer, connect_unverified, read_client_hello};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::{
    WITHIN,
    installation::{AGENT, ID, Installation, MACHINE, hours},
    machine::Machine,
    refusals::Log,
};

/// A change to the certificate of an agent that makes it invalid.
type Differs = fn(&mut LeafRequest);

pub(crate) const FIRST: &str = "4000000000000000000000000000000f";

/// Enrolls an agent at an address, as the driver does.
async fn enroll_at(
    address: SocketAddr,
    token: &EnrollmentToken,
    grant: impl FnOnce(&str) -> GrantedIdentity,
) -> Result<(), EnrollError> {
    let stream = TcpStream::connect(address).await.unwrap();
    enroll(stream, &MACHINE.parse().unwrap(), token, |request| Ok(grant(request))).await
}

pub(crate) async fn enrolled(
    machine: &Machine,
    installation: &mut Installation,
    token: &EnrollmentToken,
) -> Result<(), EnrollError> {
    enroll_at(machine.address, token, |request| installation.grant(request, FIRST, |_| {})).await
}

fn changed(token: &EnrollmentToken, change: impl FnOnce(&mut EnrollmentToken)) -> EnrollmentToken {
    let mut token = token.clone();
    change(&mut token);
    token
}

fn refused(enrolled: Result<(), EnrollError>) -> String {
    let error = enrolled.unwrap_err();
    assert!(matches!(error, EnrollError::Refused(_)), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn an_agent_answers_with_its_certificate_once_it_has_one() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, 1);
    let mut machine = Machine::enrolling(&token);
    let driver = installation.driver(|_| {});
    assert!(!machine.serves(&driver).await, "it has no certificate yet");
    enrolled(&machine, &mut installation, &token).await.unwrap();
    let state = machine.client(&driver).state(WITHIN).await.unwrap();
    assert_eq!(state.identity.unwrap().serial, FIRST);
    // Its unit starts the agent again with the same command line, which has the token.
    machine.restart(Some(&token)).await;
    assert!(machine.serves(&driver).await);
    machine.restart(None).await;
    assert!(machine.serves(&driver).await);
}

#[tokio::test]
async fn a_token_is_good_once() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, 1);
    let mut machine = Machine::enrolling(&token);
    enrolled(&machine, &mut installation, &token).await.unwrap();
    let log = Log::begin();
    assert!(refused(enrolled(&machine, &mut installation, &token).await).contains("already used"));
    machine.restart(Some(&token)).await;
    assert!(refused(enrolled(&machine, &mut installation, &token).await).contains("already used"));
    let driver = installation.driver(|_| {});
    assert!(machine.serves(&driver).await);
    assert!(log.text().contains("already used") && !log.text().contains(&*token.encode()), "{}", log.text());
    machine.restart(None).await;
    assert!(enrolled(&machine, &mut installation, &token).await.is_err(), "it has none to compare with");
    // An agent that has lost the record of the used token accepts the token again.
    std::fs::remove_dir_all(machine.identity().path()).unwrap();
    machine.restart(Some(&token)).await;
    enrolled(&machine, &mut installation, &token).await.unwrap();
    // The agent accepts a second token. It serves with its current certificate until the second enrollment.
    let next = installation.token(MACHINE, 1);
    machine.restart(Some(&next)).await;
    assert!(machine.serves(&driver).await);
    enrolled(&machine, &mut installation, &next).await.unwrap();
    assert!(refused(enrolled(&machine, &mut installation, &next).await).contains("already used"));
    machine.restart(Some(&token)).await;
    assert!(refused(enrolled(&machine, &mut installation, &token).await).contains("already used"));
}

#[tokio::test]
async fn only_a_holder_of_the_token_can_enroll() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, 1);
    let machine = Machine::enrolling(&token);
    let guess = installation.token(MACHINE, 1);
    let log = Log::begin();
    assert!(refused(enrolled(&machine, &mut installation, &guess).await).contains("a different token"));
    let guess = changed(&guess, |guess| guess.id.clone_from(&token.id));
    assert!(refused(enrolled(&machine, &mut installation, &guess).await).contains("proof"), "the id is no secret");
    let other_machine = changed(&token, |token| token.machine = "hv-2".to_owned());
    assert!(refused(enrolled(&machine, &mut installation, &other_machine).await).contains("proof"));
    let other_installation = changed(&token, |token| token.installation = "00000000000000ee".to_owned());
    assert!(refused(enrolled(&machine, &mut installation, &other_installation).await).contains("proof"));
    assert!(!log.text().contains(&*token.encode()), "{}", log.text());
    // The agent still accepts a driver that has the token.
    enrolled(&machine, &mut installation, &token).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_does_not_hold_the_token_gets_no_certificate() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, 1);
    let mut grants = 0;
    let impostor = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = impostor.local_addr().unwrap();
    // Responds as an agent does, with an invalid proof.
    tokio::spawn(async move {
        let provisional = provisional();
        let greeted = read_client_hello(impostor.accept().await.unwrap().0).await.unwrap();
        let (mut stream, _) = provisional.finish(greeted).await.unwrap();
        let length = stream.read_u32().await.unwrap();
        stream.read_exact(&mut vec![0; usize::try_from(length).unwrap()]).await.unwrap();
        // An `EnrollAnswer` whose `proof` is 32 zeros.
        let answer = [&[0x12, 32][..], &[0; 32]].concat();
        stream.write_u32(34).await.unwrap();
        stream.write_all(&answer).await.unwrap();
        stream.flush().await.unwrap();
        let _ = stream.read_u8().await;
    });
    let enrolled = enroll_at(address, &token, |request| {
        grants += 1;
        installation.grant(request, FIRST, |_| {})
    });
    assert!(matches!(enrolled.await, Err(EnrollError::Proof)));
    assert_eq!(grants, 0);
}

#[tokio::test]
async fn an_expired_token_cannot_enroll() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, -1);
    let mut machine = Machine::enrolling(&token);
    assert!(refused(enrolled(&machine, &mut installation, &token).await).contains("the token expired at"));
    // Only the expiry time is changed.
    let token = changed(&token, |token| token.expires = installation.token(MACHINE, 1).expires);
    machine.restart(Some(&token)).await;
    enrolled(&machine, &mut installation, &token).await.unwrap();
}

#[tokio::test]
async fn an_agent_accepts_only_its_own_certificate_from_the_authority_of_its_token() {
    let (mut installation, mut other) = (Installation::new(1), Installation::new(2));
    let token = installation.token(MACHINE, 1);
    let machine = Machine::enrolling(&token);
    let unlike: [(&str, Differs); 6] = [
        ("another machine", |of| of.dns_names = vec!["hv-2.hypervisor.keelway".to_owned()]),
        ("another installation", |of| of.organizations = vec!["00000000000000ee".to_owned()]),
        ("another machine", |of| of.dns_names.truncate(1)),
        ("both servers and clients", |of| of.usages = vec![CertificateUsage::ClientAuth]),
        ("both servers and clients", |of| of.usages = vec![CertificateUsage::ServerAuth]),
        ("is not valid", |of| of.validity = hours(-2, -1)),
    ];
    for (why, differs) in unlike {
        let enrolled = enroll_at(machine.address, &token, |request| installation.grant(request, FIRST, differs));
        let refused = refused(enrolled.await);
        assert!(refused.contains(why), "{refused}");
    }
    let enrolled_by_other = enroll_at(machine.address, &token, |request| other.grant(request, FIRST, |_| {}));
    assert!(refused(enrolled_by_other.await).contains("not one that the token names"));
    let another_key = enroll_at(machine.address, &token, |_| {
        let key = keelway_pki::PrivateKeyPem::mint(&mut ChaCha8Rng::seed_from_u64(9)).unwrap();
        let request = keelway_pki::client_signing_request(&key, "a", "b").unwrap();
        installation.grant(&request, FIRST, |_| {})
    });
    assert!(refused(another_key.await).contains("another key"));
    // None of these attempts uses up the token.
    enrolled(&machine, &mut installation, &token).await.unwrap();
}

#[tokio::test]
async fn an_enrollment_cut_off_before_the_certificate_is_repeated() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, 1);
    let mut machine = Machine::enrolling(&token);
    let name = MACHINE.parse().unwrap();
    let cut_off =
        enroll(TcpStream::connect(machine.address).await.unwrap(), &name, &token, |_| Err("cut off".to_owned()));
    assert!(matches!(cut_off.await, Err(EnrollError::Sign(_))));
    // The agent restarts as well, and discards the key of the first attempt.
    machine.restart(Some(&token)).await;
    enrolled(&machine, &mut installation, &token).await.unwrap();
}

#[tokio::test]
async fn an_enrollment_cut_off_before_the_last_response_is_complete() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, 1);
    let machine = Machine::enrolling(&token);
    let granted = Arc::new(AtomicBool::new(false));
    let between = deaf_once(machine.address, Arc::clone(&granted)).await;
    let cut_off = enroll_at(between, &token, |request| {
        granted.store(true, SeqCst);
        installation.grant(request, FIRST, |_| {})
    });
    assert!(matches!(cut_off.await, Err(EnrollError::Io(_))));
    let driver = installation.driver(|_| {});
    assert!(machine.serves(&driver).await);
    assert!(refused(enrolled(&machine, &mut installation, &token).await).contains("already used"));
}

/// Relays a connection until `deaf` is set. Then it closes the connection when the agent sends data.
async fn deaf_once(agent: SocketAddr, deaf: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut driver_read, mut driver_write) = listener.accept().await.unwrap().0.into_split();
        let (mut agent_read, mut agent_write) = TcpStream::connect(agent).await.unwrap().into_split();
        let forwards = tokio::spawn(async move { tokio::io::copy(&mut driver_read, &mut agent_write).await });
        let mut bytes = vec![0; 1 << 16];
        loop {
            let count = agent_read.read(&mut bytes).await.unwrap_or_default();
            if count == 0 || deaf.load(SeqCst) {
                break;
            }
            driver_write.write_all(&bytes[..count]).await.unwrap();
        }
        forwards.abort();
    });
    address
}

#[tokio::test]
async fn silent_and_flooding_clients_do_not_block_an_enrollment() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, 1);
    let machine = Machine::enrolling(&token);
    let stranger = async || {
        let stream = TcpStream::connect(machine.address).await.unwrap();
        connect_unverified(ServerName::try_from(AGENT).unwrap(), stream).await.unwrap().0
    };
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(stranger().await);
    }
    // The agent closes the connection after the length of a message of one gigabyte.
    let mut loud = stranger().await;
    loud.write_u32(1 << 30).await.unwrap();
    loud.flush().await.unwrap();
    assert!(tokio::time::timeout(WITHIN, loud.read_u8()).await.unwrap().is_err());
    enrolled(&machine, &mut installation, &token).await.unwrap();
    assert_eq!(silent.len(), 300);
}

fn provisional() -> ProvisionalServer {
    let request = LeafRequest {
        common_name: "keelway:agent".to_owned(),
        organizations: vec![ID.to_owned()],
        dns_names: vec![AGENT.to_owned()],
        ip_addresses: Vec::new(),
        usages: vec![CertificateUsage::ServerAuth],
        validity: hours(-1, 1),
    };
    let shown = IssuedCertificate::self_signed(&request, &mut ChaCha8Rng::seed_from_u64(3)).unwrap();
    ProvisionalServer::new(&shown.certificate_pem, shown.key_pem.expose()).unwrap()
}

/// Starts a man in the middle, which terminates TLS on both sides with its own certificate and relays the plain text.
async fn man_in_the_middle(agent: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let provisional = provisional();
        while let Ok((stream, _)) = listener.accept().await {
            let (mut driver, _) = provisional.finish(read_client_hello(stream).await.unwrap()).await.unwrap();
            let to_agent = TcpStream::connect(agent).await.unwrap();
            let (mut agent, _) = connect_unverified(ServerName::try_from(AGENT).unwrap(), to_agent).await.unwrap();
            let _ = copy_bidirectional(&mut driver, &mut agent).await;
        }
    });
    address
}

#[tokio::test]
async fn a_man_in_the_middle_has_nothing_to_pass_on() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, 1);
    let machine = Machine::enrolling(&token);
    let between = man_in_the_middle(machine.address).await;
    let through = enroll_at(between, &token, |request| installation.grant(request, FIRST, |_| {}));
    assert!(refused(through.await).contains("proof"));
    enrolled(&machine, &mut installation, &token).await.unwrap();
}

/// For comparison: a proof that is not bound to a connection passes through the man in the middle.
#[tokio::test]
async fn a_proof_of_no_connection_passes_through_a_man_in_the_middle() {
    let mut installation = Installation::new(1);
    let token = installation.token(MACHINE, 1);
    let anywhere = || ProvenChannel::new([0; 32], b"");
    let agent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = man_in_the_middle(agent.local_addr().unwrap()).await;
    let proven = tokio::spawn({
        let token = token.clone();
        async move {
            let greeted = read_client_hello(agent.accept().await.unwrap().0).await.unwrap();
            let (mut stream, channel) = provisional().finish(greeted).await.unwrap();
            let mut proof = [0; 32];
            stream.read_exact(&mut proof).await.unwrap();
            (token.proves(EnrollmentSide::Driver, &anywhere(), &proof), channel)
        }
    });
    let stream = TcpStream::connect(between).await.unwrap();
    let (mut stream, channel) = connect_unverified(ServerName::try_from(AGENT).unwrap(), stream).await.unwrap();
    stream.write_all(&token.proof(EnrollmentSide::Driver, &anywhere())).await.unwrap();
    stream.flush().await.unwrap();
    let (proven, of_agent) = proven.await.unwrap();
    assert!(proven && channel != of_agent);
}

/// An agent in a container gets its certificate by commands in the container. The network serves nobody before.
#[tokio::test]
async fn the_first_certificate_arrives_at_the_socket_alone() {
    let mut installation = Installation::new(1);
    let mut machine = Machine::awaiting_certificate();
    let (driver, token) = (installation.driver(|_| {}), installation.token(MACHINE, 1));
    assert!(!machine.serves(&driver).await, "it has no certificate yet");
    assert!(enrolled(&machine, &mut installation, &token).await.is_err(), "it waits for no token");

    let (socket, folder) = (machine.socket(), machine.identity());
    let request = request_certificate(&socket, &folder).await.unwrap().unwrap();
    let other = request_certificate(&socket, &folder).await.unwrap().unwrap();
    let GrantedIdentity { certificate, trust } = installation.grant(&request, FIRST, |_| {});
    let error = install_certificate(&socket, certificate, trust).await.unwrap_err();
    assert!(chain_text(&error).contains("another key"), "a later request replaced this one: {error}");
    assert!(!machine.serves(&driver).await);

    let GrantedIdentity { certificate, trust } = installation.grant(&other, FIRST, |_| {});
    // The agent gave up the key of the request that was refused.
    assert!(install_certificate(&socket, certificate, trust).await.is_err());
    let request = request_certificate(&socket, &folder).await.unwrap().unwrap();
    let GrantedIdentity { certificate, trust } = installation.grant(&request, FIRST, |_| {});
    install_certificate(&socket, certificate, trust).await.unwrap();
    assert!(machine.serves(&driver).await);
    assert_eq!(request_certificate(&socket, &folder).await.unwrap(), None, "it has a valid certificate");
    machine.restart_awaiting().await;
    assert!(machine.serves(&driver).await);
}
