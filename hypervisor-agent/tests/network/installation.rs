//! The authority of an installation, and the certificates that it issues.

use std::{fs, path::Path};

use jiff::{SignedDuration, Timestamp};
use keelway_agent_api::enrollment::{DriverTrust, GrantedIdentity};
use keelway_api::hypervisor::{ANY_AGENT, agent_name};
use keelway_hypervisor_agent::agent::DRIVER;
use keelway_pki::{Authority, AuthorityHash, CertificateUsage, EnrollmentToken, LeafRequest, Validity};
use keelway_tls::TlsFiles;
use rand::{SeedableRng, rngs::ChaCha8Rng};
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use tempfile::TempDir;

pub(crate) const ID: &str = "00000000000000ff";
pub(crate) const MACHINE: &str = "hv-1";
pub(crate) const AGENT: &str = "hv-1.hypervisor.keelway";

/// Returns a validity between two offsets from now, in hours.
pub(crate) fn hours(from: i64, to: i64) -> Validity {
    let now = Timestamp::now();
    Validity::new(now + SignedDuration::from_hours(from), now + SignedDuration::from_hours(to)).unwrap()
}

pub(crate) struct Installation {
    authority: Authority,
    random: ChaCha8Rng,
    request: LeafRequest,
}

impl Installation {
    /// Creates an installation. The seed determines its keys.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let authority = Authority::mint("infrastructure", hours(-48, 48), &mut random).unwrap();
        let request = LeafRequest {
            common_name: DRIVER.to_owned(),
            organizations: vec![ID.to_owned()],
            dns_names: Vec::new(),
            ip_addresses: Vec::new(),
            usages: vec![CertificateUsage::ClientAuth],
            validity: hours(-1, 24),
        };
        Self { authority, random, request }
    }

    /// Returns the authorities that its members trust.
    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.certificate().pem().as_bytes()).unwrap()).unwrap();
        roots
    }

    /// Writes the files of a driver. `differs` can change the certificate.
    pub(crate) fn driver(&mut self, differs: impl FnOnce(&mut LeafRequest)) -> TempDir {
        let mut request = self.request.clone();
        differs(&mut request);
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path(), &request);
        folder
    }

    /// Creates an enrollment token for a machine, which expires after this many hours.
    pub(crate) fn token(&mut self, machine: &str, expires: i64) -> EnrollmentToken {
        let authorities = AuthorityHash::of_bundle(self.authority.certificate().pem()).unwrap();
        let expires = Timestamp::now() + SignedDuration::from_hours(expires);
        EnrollmentToken::mint(ID, machine, authorities, expires, &mut self.random)
    }

    /// Grants the certificate request of the agent of [`MACHINE`]. `differs` can change the certificate.
    pub(crate) fn grant(
        &mut self,
        request: &str,
        serial: &str,
        differs: impl FnOnce(&mut LeafRequest),
    ) -> GrantedIdentity {
        self.grant_of(MACHINE, request, serial, differs)
    }

    /// Grants the certificate request of the agent of any machine.
    pub(crate) fn grant_of(
        &mut self,
        machine: &str,
        request: &str,
        serial: &str,
        differs: impl FnOnce(&mut LeafRequest),
    ) -> GrantedIdentity {
        let mut wanted = self.of_agent(machine);
        differs(&mut wanted);
        let certificate = self.authority.certify(request, &wanted, &serial.parse().unwrap(), &mut self.random).unwrap();
        GrantedIdentity { certificate, trust: self.trust(&[]) }
    }

    /// Returns the authorities that members trust, with the certificates of these files revoked.
    pub(crate) fn trust(&self, revoked: &[&TempDir]) -> DriverTrust {
        DriverTrust { authorities: self.authority.certificate().pem().to_owned(), revoked: self.list(revoked) }
    }

    /// Returns a revocation list with this serial number.
    pub(crate) fn revoke_serial(&self, serial: &str) -> String {
        self.authority.revoke_serials(&[serial.parse().unwrap()], 2, hours(-1, 24)).unwrap()
    }

    fn of_agent(&self, machine: &str) -> LeafRequest {
        LeafRequest {
            common_name: "keelway:agent".to_owned(),
            dns_names: vec![agent_name(&machine.parse().unwrap()), ANY_AGENT.to_owned()],
            usages: vec![CertificateUsage::ServerAuth, CertificateUsage::ClientAuth],
            ..self.request.clone()
        }
    }

    fn list(&self, revoked: &[&TempDir]) -> String {
        let revoked: Vec<_> = revoked.iter().map(|of| fs::read_to_string(of.path().join("tls.crt")).unwrap()).collect();
        let revoked: Vec<_> = revoked.iter().map(String::as_str).collect();
        self.authority.revoke(&revoked, 1, hours(-1, 24)).unwrap()
    }

    /// Writes the files of the agent of [`MACHINE`] over existing ones, with an empty revocation list.
    pub(crate) fn write_agent(&mut self, folder: &Path) {
        self.write_agent_of(MACHINE, folder);
    }

    /// Writes the files of the agent of any machine.
    pub(crate) fn write_agent_of(&mut self, machine: &str, folder: &Path) {
        let request = self.of_agent(machine);
        self.write(folder, &request);
        self.revoke(folder, &[]);
    }

    /// Writes the files of the agent of a machine into a new directory.
    pub(crate) fn agent(&mut self, machine: &str) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        self.write_agent_of(machine, folder.path());
        folder
    }

    pub(crate) fn revoke(&self, folder: &Path, revoked: &[&TempDir]) {
        replace(&folder.join("revoked.crl"), &self.list(revoked));
    }

    /// Makes the agent of another installation trust this authority instead of its own.
    pub(crate) fn be_trusted(&self, folder: &Path) {
        self.revoke(folder, &[]);
        replace(&folder.join("ca.crt"), self.authority.certificate().pem());
    }

    fn write(&mut self, folder: &Path, request: &LeafRequest) {
        let issued = self.authority.issue(request, &mut self.random).unwrap();
        replace(&folder.join("ca.crt"), self.authority.certificate().pem());
        replace(&folder.join("tls.key"), issued.key_pem.expose());
        replace(&folder.join("tls.crt"), &issued.certificate_pem);
    }
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("new");
    fs::write(&next, text).unwrap();
    fs::rename(next, path).unwrap();
}

pub(crate) fn files(folder: &Path) -> TlsFiles {
    TlsFiles {
        certificate_file: folder.join("tls.crt"),
        key_file: folder.join("tls.key"),
        authority_file: folder.join("ca.crt"),
        revocation_file: Some(folder.join("revoked.crl")).filter(|path| path.exists()),
    }
}
