//! Both sides over a pipe, with files as on a machine.

use std::fs;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rustls_pki_types::ServerName;
use rustls_pki_types::pem::PemObject;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;
use crate::TlsClient;

const SERVER: &str = "agent.keelway";
const DRIVER: &str = "keelway:driver";
const WITHIN: Duration = Duration::from_secs(60);

fn hours(hours: i64) -> Validity {
    Validity::starting(Timestamp::now(), SignedDuration::from_hours(hours)).unwrap()
}

/// One authority, which writes signed certificates into folders.
struct Signer {
    authority: Authority,
    random: ChaCha8Rng,
}

impl Signer {
    fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        Self { authority: Authority::mint("infrastructure", hours(48), &mut random).unwrap(), random }
    }

    /// An authority with a name of its own, as each of several generations has.
    fn generation(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        Self { authority: Authority::mint_generation("infrastructure", hours(48), &mut random).unwrap(), random }
    }

    fn trusted(&self) -> String {
        self.authority.certificate().pem().to_owned()
    }

    fn write(&mut self, folder: &Path, (name, organization): (&str, &str), usage: CertificateUsage, trusts: &str) {
        let request = LeafRequest {
            common_name: name.to_owned(),
            organizations: vec![organization.to_owned()],
            dns_names: vec![SERVER.to_owned()],
            ip_addresses: Vec::new(),
            usages: vec![usage],
            validity: hours(24),
        };
        let issued = self.authority.issue(&request, &mut self.random).unwrap();
        fs::write(folder.join("ca.crt"), trusts).unwrap();
        fs::write(folder.join("tls.crt"), issued.certificate_pem).unwrap();
        fs::write(folder.join("tls.key"), issued.key_pem.expose()).unwrap();
    }

    fn revoke(&self, folder: &Path, revoked: &[&TempDir]) {
        fs::write(folder.join("revoked.crl"), self.list(revoked)).unwrap();
    }

    fn list(&self, revoked: &[&TempDir]) -> String {
        let revoked: Vec<_> = revoked.iter().map(|of| fs::read_to_string(of.path().join("tls.crt")).unwrap()).collect();
        let revoked: Vec<_> = revoked.iter().map(String::as_str).collect();
        self.authority.revoke(&revoked, 1, hours(24)).unwrap()
    }

    fn server(&mut self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        self.revoke(folder.path(), &[]);
        self.write(folder.path(), (SERVER, "one"), CertificateUsage::ServerAuth, &self.trusted());
        folder
    }

    fn client(&mut self, name: &str, organization: &str, trusts: &str) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path(), (name, organization), CertificateUsage::ClientAuth, trusts);
        folder
    }
}

fn files(folder: &TempDir) -> TlsFiles {
    let file = |name: &str| folder.path().join(name);
    TlsFiles {
        certificate_file: file("tls.crt"),
        key_file: file("tls.key"),
        authority_file: file("ca.crt"),
        revocation_file: Some(file("revoked.crl")).filter(|path| path.exists()),
    }
}

fn open(folder: &TempDir) -> TlsServer {
    TlsServer::new(files(folder), BTreeSet::from([DRIVER.to_owned()])).unwrap().of_own_organization()
}

fn chain(folder: &TempDir) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(folder.path().join("tls.crt")).unwrap().collect::<Result<_, _>>().unwrap()
}

/// A handshake, and a byte over the connection. Returns the server's result and the certificate that the server presented.
async fn talk(server: &TlsServer, client: &TlsClient) -> (Result<(), HandshakeError>, Option<CertificateDer<'static>>) {
    let (near, far) = duplex(1 << 14);
    let asking = async {
        let mut stream = client.connect(ServerName::try_from(SERVER).unwrap(), near).await.ok()?;
        stream.read_exact(&mut [0]).await.ok()?;
        Some(stream.get_ref().1.peer_certificates().unwrap()[0].clone())
    };
    let answering = async {
        let mut stream = server.accept(far).await?;
        stream.write_all(b"a").await.unwrap();
        Ok(())
    };
    let (answered, shown) = tokio::join!(answering, asking);
    (answered, shown)
}

#[tokio::test]
async fn only_allowed_clients_are_accepted() {
    let (mut own, mut other) = (Signer::new(1), Signer::new(2));
    let trusts = own.trusted();
    let server = own.server();
    let taken = |folder: TempDir| {
        let server = open(&server);
        async move { talk(&server, &TlsClient::new(files(&folder)).unwrap()).await.0 }
    };
    taken(own.client(DRIVER, "one", &trusts)).await.unwrap();
    let role = taken(own.client("keelway:agent", "one", &trusts)).await.unwrap_err();
    assert!(matches!(role, HandshakeError::Unwanted(UnauthorizedPeer::Role(_))), "{role:?}");
    let installation = taken(own.client(DRIVER, "two", &trusts)).await.unwrap_err();
    assert!(
        matches!(installation, HandshakeError::Unwanted(UnauthorizedPeer::Installation { .. })),
        "{installation:?}"
    );
    let authority = taken(other.client(DRIVER, "one", &trusts)).await.unwrap_err();
    assert!(matches!(authority, HandshakeError::Failed(_)), "{authority:?}");
    let of_a_server = tempfile::tempdir().unwrap();
    own.write(of_a_server.path(), (DRIVER, "one"), CertificateUsage::ServerAuth, &trusts);
    let usage = taken(of_a_server).await.unwrap_err();
    assert!(matches!(usage, HandshakeError::Failed(_)), "{usage:?}");
}

#[tokio::test]
async fn organizations_count_only_where_they_should() {
    let mut own = Signer::new(1);
    let (server, trusts) = (own.server(), own.trusted());
    let server = TlsServer::new(files(&server), BTreeSet::from([DRIVER.to_owned()])).unwrap();
    talk(&server, &TlsClient::new(files(&own.client(DRIVER, "two", &trusts))).unwrap()).await.0.unwrap();
}

#[tokio::test]
async fn a_certificate_holds_between_its_dates() {
    let mut own = Signer::new(1);
    let (folder, trusts) = (own.server(), own.trusted());
    let (server, shown) = (open(&folder), chain(&own.client(DRIVER, "one", &trusts)));
    let now = UnixTime::now().as_secs();
    let at = |second| server.verify_client(&shown, UnixTime::since_unix_epoch(Duration::from_secs(second)));
    at(now).unwrap();
    for second in [now - 3600, now + 25 * 3600] {
        assert!(matches!(at(second), Err(UnauthorizedPeer::Void(_))), "{second}");
    }
    assert!(matches!(server.verify_client(&[], UnixTime::now()), Err(UnauthorizedPeer::Nobody)));
}

#[tokio::test]
async fn files_are_read_again_and_kept_while_they_are_half_written() {
    let mut own = Signer::new(1);
    let (folder, trusts) = (own.server(), own.trusted());
    let (server, client) = (open(&folder), own.client(DRIVER, "one", &trusts));
    let client = TlsClient::new(files(&client)).unwrap();
    let before = talk(&server, &client).await.1.unwrap();
    assert_eq!(before, chain(&folder)[0]);
    fs::write(folder.path().join("tls.key"), "half").unwrap();
    assert_eq!(talk(&server, &client).await.1.unwrap(), before);
    own.write(folder.path(), (SERVER, "one"), CertificateUsage::ServerAuth, &trusts);
    let after = talk(&server, &client).await.1.unwrap();
    assert_eq!(after, chain(&folder)[0]);
    assert_ne!(after, before);
}

#[tokio::test]
async fn a_revoked_client_is_refused_also_on_an_open_connection() {
    let mut own = Signer::new(1);
    let (folder, trusts) = (own.server(), own.trusted());
    let server = open(&folder);
    let (ended, goes_on) = (own.client(DRIVER, "one", &trusts), own.client(DRIVER, "one", &trusts));
    for client in [&ended, &goes_on] {
        talk(&server, &TlsClient::new(files(client)).unwrap()).await.0.unwrap();
    }
    let shown = [chain(&ended), chain(&goes_on)];
    let mut refusals = shown.each_ref().map(|shown| Box::pin(server.refuses(shown)));
    for refusal in &mut refusals {
        assert!(timeout(Duration::from_millis(100), refusal).await.is_err(), "it was judged and goes on");
    }
    own.revoke(folder.path(), &[&ended]);
    let [revoked, other] = &mut refusals;
    let why = timeout(WITHIN, revoked).await.unwrap();
    assert!(matches!(why, UnauthorizedPeer::Void(_)), "{why:?}");
    assert!(timeout(Duration::from_millis(100), other).await.is_err());
    assert!(talk(&server, &TlsClient::new(files(&ended)).unwrap()).await.0.is_err());
    talk(&server, &TlsClient::new(files(&goes_on)).unwrap()).await.0.unwrap();
}

#[test]
fn a_list_of_revoked_ones_that_cannot_be_read_is_an_error() {
    let folder = Signer::new(1).server();
    fs::write(folder.path().join("revoked.crl"), "").unwrap();
    let error = TlsServer::new(files(&folder), BTreeSet::new()).unwrap_err();
    assert!(matches!(error, TlsError::Empty { .. }), "{error:?}");
}

/// The lists of all generations are in one file, in any order. A generation that was minted under the plain name works like the others.
#[tokio::test]
async fn each_generation_of_an_authority_has_its_list() {
    let mut generations = [Signer::new(1), Signer::generation(2), Signer::generation(3)];
    let bundle: String = generations.iter().map(Signer::trusted).collect();
    let folder = generations[0].server();
    fs::write(folder.path().join("ca.crt"), &bundle).unwrap();
    let clients = generations.each_mut().map(|of| [(); 2].map(|()| of.client(DRIVER, "one", &bundle)));
    let mut lists: Vec<_> = generations.iter().zip(&clients).map(|(of, [revoked, _])| of.list(&[revoked])).collect();
    for _ in 0..lists.len() {
        lists.rotate_left(1);
        fs::write(folder.path().join("revoked.crl"), lists.concat()).unwrap();
        let server = open(&folder);
        for [revoked, holds] in &clients {
            assert!(talk(&server, &TlsClient::new(files(revoked)).unwrap()).await.0.is_err());
            talk(&server, &TlsClient::new(files(holds)).unwrap()).await.0.unwrap();
        }
    }
    // Without a list of its authority, a certificate may be revoked, so it is refused.
    fs::write(folder.path().join("revoked.crl"), lists[1..].concat()).unwrap();
    let server = open(&folder);
    let mut taken = 0;
    for [_, holds] in &clients {
        taken += usize::from(talk(&server, &TlsClient::new(files(holds)).unwrap()).await.0.is_ok());
    }
    assert_eq!(taken, clients.len() - 1);
}

#[test]
fn authorities_of_one_name_have_no_lists() {
    let (mut own, other) = (Signer::new(1), Signer::new(2));
    let folder = own.server();
    let trust = |bundle: String| {
        fs::write(folder.path().join("ca.crt"), bundle).unwrap();
        TlsServer::new(files(&folder), BTreeSet::new())
    };
    trust(own.trusted().repeat(2)).unwrap();
    let error = trust(own.trusted() + &other.trusted()).unwrap_err();
    assert!(matches!(error, TlsError::Ambiguous { .. }), "{error:?}");
    fs::remove_file(folder.path().join("revoked.crl")).unwrap();
    trust(own.trusted() + &other.trusted()).unwrap();
}

#[test]
fn a_key_is_in_no_debug_text() {
    let mut own = Signer::new(1);
    let folder = own.server();
    let key = fs::read_to_string(folder.path().join("tls.key")).unwrap();
    let line = key.lines().nth(1).unwrap();
    assert!(!format!("{:?}", open(&folder)).contains(line));
}
