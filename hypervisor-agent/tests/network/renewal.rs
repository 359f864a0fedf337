//! Renewal and revocation of certificates.

use std::sync::Arc;

use futures::StreamExt;
use keelway_agent_api::{
    client::{AgentClientError, HypervisorAgentClient, channel},
    enrollment::DriverTrust,
};
use keelway_tls::component::client_without;

use crate::{
    WITHIN,
    enrollment::{FIRST, enrolled},
    installation::{Installation, MACHINE},
    machine::{Machine, config},
};

const SECOND: &str = "4000000000000000000000000000002f";

async fn enrolled_machine(installation: &mut Installation) -> Machine {
    let token = installation.token(MACHINE, 1);
    let machine = Machine::enrolling(&token);
    enrolled(&machine, installation, &token).await.unwrap();
    machine
}

async fn serial(client: &HypervisorAgentClient) -> String {
    client.state(WITHIN).await.unwrap().identity.unwrap().serial
}

#[tokio::test]
async fn a_certificate_is_replaced_while_connections_continue() {
    let mut installation = Installation::new(1);
    let mut machine = enrolled_machine(&mut installation).await;
    let driver = installation.driver(|_| {});
    let client = machine.client(&driver);
    let mut watched = client.watch(WITHIN).await.unwrap();
    let before = watched.next().await.unwrap();
    let key = || std::fs::read_to_string(machine.identity().files().key_file).unwrap();
    let old = key();

    let request = client.request_certificate(WITHIN).await.unwrap();
    let granted = installation.grant(&request, SECOND, |_| {});
    client.give_identity(Some(granted.certificate), granted.trust, WITHIN).await.unwrap();
    assert_eq!(serial(&client).await, SECOND);
    assert_ne!(key(), old, "the key is a new one");
    // Existing watches continue, and new connections get the new certificate.
    client.apply(&config(1, "one"), &|_| {}).await.unwrap();
    assert!(watched.next().await.unwrap() > before);
    let shown = crate::refusals::greet(&machine, &crate::refusals::tls(Some(&driver))).await.unwrap();
    let facts = keelway_pki::CertificateFacts::from_der(&shown).unwrap();
    assert_eq!(facts.serial, SECOND);
    machine.restart(None).await;
    assert_eq!(serial(&machine.client(&driver)).await, SECOND);
}

#[tokio::test]
async fn a_certificate_without_a_request_is_refused() {
    let mut installation = Installation::new(1);
    let machine = enrolled_machine(&mut installation).await;
    let driver = installation.driver(|_| {});
    let client = machine.client(&driver);
    let refused = |given: Result<(), AgentClientError>| matches!(given, Err(AgentClientError::Refused(_)));
    let request = client.request_certificate(WITHIN).await.unwrap();
    let of_another =
        installation.grant(&request, SECOND, |of| of.dns_names = vec!["hv-2.hypervisor.keelway".to_owned()]);
    let give = |certificate| client.give_identity(Some(certificate), installation.trust(&[]), WITHIN);
    assert!(refused(give(of_another.certificate).await));
    // The agent has discarded the key of the request.
    let late = Installation::new(1).grant(&request, SECOND, |_| {});
    assert!(refused(give(late.certificate).await));
    assert_eq!(serial(&client).await, FIRST);
    // The agent does not renew certificates whose files an administrator manages.
    let by_hand = Machine::new(&mut Installation::new(1), keelway_hypervisor_agent::agent::ConnectionLimits::default());
    let client = by_hand.client(&driver);
    assert!(matches!(client.request_certificate(WITHIN).await, Err(AgentClientError::Refused(_))));
    assert_eq!(client.state(WITHIN).await.unwrap().identity, None);
}

#[tokio::test]
async fn a_driver_that_is_revoked_is_heard_no_more() {
    let mut installation = Installation::new(1);
    let machine = enrolled_machine(&mut installation).await;
    let (driver, stolen) = (installation.driver(|_| {}), installation.driver(|_| {}));
    assert!(machine.serves(&stolen).await, "it is as good as the other one until then");
    machine.client(&driver).give_identity(None, installation.trust(&[&stolen]), WITHIN).await.unwrap();
    assert!(!machine.serves(&stolen).await);
    assert!(machine.serves(&driver).await);
    assert_eq!(serial(&machine.client(&driver)).await, FIRST, "its certificate goes on");
}

#[tokio::test]
async fn an_agent_that_is_revoked_is_spoken_with_no_more() {
    let mut installation = Installation::new(1);
    let machine = enrolled_machine(&mut installation).await;
    let driver = installation.driver(|_| {});
    let file = |name: &str| std::fs::read(driver.path().join(name)).unwrap();
    let (authorities, certificate, key) = (file("ca.crt"), file("tls.crt"), file("tls.key"));
    let answers = async |list: Option<String>| {
        let list = list.as_ref().map(String::as_bytes);
        let config = client_without(&authorities, list, Some((&certificate, &key))).unwrap();
        let identity = Arc::new(keelway_tls::TlsClient::of(Arc::new(config)));
        let channel = channel(&machine.address.to_string(), &MACHINE.parse().unwrap(), identity).unwrap();
        HypervisorAgentClient::on_channel(channel).state(WITHIN).await.is_ok()
    };
    let DriverTrust { revoked: nobody, .. } = installation.trust(&[]);
    assert!(answers(None).await && answers(Some(nobody)).await);
    assert!(answers(Some(installation.revoke_serial(SECOND))).await, "somebody else");
    assert!(!answers(Some(installation.revoke_serial(FIRST))).await);
}
