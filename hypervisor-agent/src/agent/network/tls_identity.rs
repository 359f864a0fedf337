//! The identity of an agent on a network, from files that another program manages, or from its enrolment.

use std::{collections::BTreeSet, io, path::PathBuf, sync::Arc};

use jiff::Timestamp;
use keelway_agent_api::enrollment::{AGENT, DriverTrust, GrantedIdentity};
use keelway_api::{
    Time,
    hypervisor::ANY_AGENT,
    machine::{AgentIdentity, sha256_hex},
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_pki::{CertificateFacts, EnrollmentToken, PrivateKeyPem, client_signing_request};
use keelway_tls::{GreetedConnection, TlsClient, TlsError, TlsFiles, TlsServer};
use tokio::sync::{Mutex, watch};

use super::{AgentNetworkError, DRIVER, SPOKEN};
use crate::enrollment::{EnrolledIdentity, Enrolling, IdentityFolder, RefusedEnrollment, check_granted};

/// The agent's certificate, and the ways to get another.
#[derive(Debug)]
pub(crate) struct AgentTlsIdentity {
    /// `None` until the agent has a certificate.
    sides: watch::Sender<Option<TlsSides>>,
    /// The directory of the identity. `None` if another program manages the files.
    folder: Option<IdentityFolder>,
    enrolling: Option<Enrolling>,
    /// The key of the next certificate while the agent waits for it. The lock also serializes writes.
    asking: Mutex<Option<PrivateKeyPem>>,
}

/// The identity towards clients and towards servers. Both reload their files when these change.
#[derive(Debug, Clone)]
struct TlsSides {
    server: Arc<TlsServer>,
    client: Arc<TlsClient>,
}

impl TlsSides {
    fn of(files: TlsFiles) -> Result<Self, TlsError> {
        let client = Arc::new(TlsClient::new(files.clone())?);
        let server = TlsServer::new(files, BTreeSet::from([DRIVER.to_owned(), AGENT.to_owned()]))?;
        Ok(Self { server: Arc::new(server.of_own_organization().with_protocols(&SPOKEN)), client })
    }
}

impl AgentTlsIdentity {
    /// Returns the identity in files that another program manages.
    pub(super) fn of_files(files: TlsFiles) -> Result<Self, TlsError> {
        let sides = watch::Sender::new(Some(TlsSides::of(files)?));
        Ok(Self { sides, folder: None, enrolling: None, asking: Mutex::default() })
    }

    /// Returns the identity in the agent's own directory. With an unused token, the agent waits for enrolment.
    pub(super) fn of_folder(folder: IdentityFolder, token: Option<EnrollmentToken>) -> Result<Self, AgentNetworkError> {
        let kept = folder.read().map_err(|source| unreadable(&folder, source))?;
        if kept.is_none() && token.is_none() {
            return Err(AgentNetworkError::Nobody(folder.path().to_owned()));
        }
        let waits = token.as_ref().filter(|token| !kept.as_ref().is_some_and(|kept| kept.spent.holds(&token.id)));
        if let Some(EnrollmentToken { machine, id, expires, .. }) = waits {
            tracing::info!(machine, token = id, %expires, "waits for enrollment");
        }
        let sides = watch::Sender::new(kept.map(|_| TlsSides::of(folder.files())).transpose()?);
        // Also for a used token: a driver that uses it gets an error that states this.
        let enrolling = token.map(|token| Enrolling::new(token, Timestamp::now())).transpose()?;
        Ok(Self { sides, folder: Some(folder), enrolling, asking: Mutex::default() })
    }

    /// Returns the identity in the agent's own directory. Without one, the agent waits for a certificate that arrives at its socket.
    pub(super) fn awaited(folder: IdentityFolder) -> Result<Self, AgentNetworkError> {
        let kept = folder.read().map_err(|source| unreadable(&folder, source))?;
        let sides = watch::Sender::new(kept.map(|_| TlsSides::of(folder.files())).transpose()?);
        Ok(Self { sides, folder: Some(folder), enrolling: None, asking: Mutex::default() })
    }

    /// Returns the TLS server, which accepts connections. `None` until the agent has a certificate.
    pub(super) fn server(&self) -> Option<Arc<TlsServer>> {
        self.sides.borrow().as_ref().map(|sides| Arc::clone(&sides.server))
    }

    /// Waits until the agent has a certificate, and returns the TLS client.
    pub(super) async fn client(&self) -> Arc<TlsClient> {
        let mut sides = self.sides.subscribe();
        loop {
            if let Some(sides) = &*sides.borrow_and_update() {
                return Arc::clone(&sides.client);
            }
            if sides.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Enrols the agent over a connection of a driver.
    pub(super) async fn enroll(
        self: &Arc<Self>,
        greeted: GreetedConnection<MachineConnection>,
    ) -> Result<(), RefusedEnrollment> {
        let (Some(enrolling), Some(folder)) = (&self.enrolling, &self.folder) else {
            return Err(RefusedEnrollment::Nothing);
        };
        let kept = read(folder.clone()).await.map_err(RefusedEnrollment::Keep)?;
        let is_spent = kept.is_some_and(|kept| kept.spent.holds(&enrolling.token.id));
        let keep = |key, granted| {
            let standing = Arc::clone(self);
            // Runs in a separate task, so that a write is completed even if the connection or its slot is gone.
            let keeping = tokio::spawn(async move { standing.keep_enrolled(key, granted).await });
            async move { keeping.await.map_err(|_| RefusedEnrollment::Keep(io::ErrorKind::Interrupted.into()))? }
        };
        enrolling.answer(greeted, is_spent, Timestamp::now(), keep).await
    }

    async fn keep_enrolled(&self, key: PrivateKeyPem, granted: GrantedIdentity) -> Result<(), RefusedEnrollment> {
        let (Some(enrolling), Some(folder)) = (&self.enrolling, &self.folder) else {
            return Err(RefusedEnrollment::Nothing);
        };
        let _writing = self.asking.lock().await;
        let kept = read(folder.clone()).await.map_err(RefusedEnrollment::Keep)?;
        let spent = kept.map(|kept| kept.spent).unwrap_or_default();
        let EnrollmentToken { id, expires, machine, .. } = &enrolling.token;
        // Another driver enrolled the agent in the meantime.
        if spent.holds(id) {
            return Err(RefusedEnrollment::Spent);
        }
        let spent = spent.with(id, *expires, Timestamp::now());
        write(folder.clone(), EnrolledIdentity { key, granted, spent }).await.map_err(RefusedEnrollment::Keep)?;
        tracing::info!(machine, token = id, "enrolled");
        self.answer_from_now_on(folder)
    }

    fn answer_from_now_on(&self, folder: &IdentityFolder) -> Result<(), RefusedEnrollment> {
        // An existing identity reloads its files by itself.
        if self.sides.borrow().is_none() {
            self.sides.send_replace(Some(TlsSides::of(folder.files())?));
        }
        Ok(())
    }

    /// Returns the facts of the agent's identity for the driver. `None` if another program manages the identity.
    pub(crate) async fn identity(&self) -> Option<AgentIdentity> {
        let kept = read(self.folder.clone()?).await.ok()??;
        let facts = CertificateFacts::from_pem(&kept.granted.certificate).ok()?;
        let DriverTrust { authorities, revoked } = &kept.granted.trust;
        Some(AgentIdentity {
            serial: facts.serial,
            renew_at: Time(facts.validity.renew_at()),
            not_after: Time(facts.validity.not_after()),
            trusts: sha256_hex(&[authorities.as_bytes(), revoked.as_bytes()].concat()),
        })
    }

    /// Creates a new key, and returns a signing request for it.
    pub(crate) async fn ask(&self) -> Result<String, RefusedEnrollment> {
        if self.folder.is_none() {
            return Err(RefusedEnrollment::Nothing);
        }
        let key = PrivateKeyPem::mint(&mut rand::rng()).map_err(RefusedEnrollment::Key)?;
        let request = client_signing_request(&key, AGENT, "keelway")?;
        *self.asking.lock().await = Some(key);
        Ok(request)
    }

    /// Stores the trusted authorities, and the requested certificate if the driver sent one. The agent's first certificate can arrive only at its
    /// socket, because the agent does not serve the network before.
    pub(crate) async fn take(&self, certificate: Option<String>, trust: DriverTrust) -> Result<(), RefusedEnrollment> {
        let folder = self.folder.as_ref().ok_or(RefusedEnrollment::Nothing)?;
        let mut asking = self.asking.lock().await;
        let kept = read(folder.clone()).await.map_err(RefusedEnrollment::Keep)?;
        let current = kept.as_ref().map(|kept| kept.granted.certificate.as_str()).or(certificate.as_deref());
        let (installation, name) = owner_of(current.ok_or(RefusedEnrollment::NotYet)?)?;
        let (before, spent) = kept.map(|kept| ((kept.key, kept.granted.certificate), kept.spent)).unzip();
        let (key, certificate) = match certificate {
            Some(certificate) => {
                let key = asking.take().ok_or(RefusedEnrollment::Certificate("no certificate was requested"))?;
                (key, certificate)
            }
            None => before.ok_or(RefusedEnrollment::NotYet)?,
        };
        let granted = GrantedIdentity { certificate, trust };
        check_granted(&key, &granted, (&installation, &name), Timestamp::now())?;
        let identity = EnrolledIdentity { key, granted, spent: spent.unwrap_or_default() };
        write(folder.clone(), identity).await.map_err(RefusedEnrollment::Keep)?;
        tracing::info!("stored a certificate");
        self.answer_from_now_on(folder)
    }
}

/// Returns the installation and the name in a certificate of an agent.
fn owner_of(certificate: &str) -> Result<(String, String), RefusedEnrollment> {
    let facts = CertificateFacts::from_pem(certificate).ok();
    let owner = facts.and_then(|facts| {
        let name = facts.dns_names.iter().find(|name| *name != ANY_AGENT)?;
        Some((facts.organizations.first()?.clone(), name.clone()))
    });
    owner.ok_or(RefusedEnrollment::Certificate("the name in it cannot be read"))
}

fn unreadable(folder: &IdentityFolder, source: io::Error) -> AgentNetworkError {
    AgentNetworkError::Folder { path: PathBuf::from(folder.path()), source }
}

async fn read(folder: IdentityFolder) -> io::Result<Option<EnrolledIdentity>> {
    tokio::task::spawn_blocking(move || folder.read()).await.map_err(io::Error::other)?
}

async fn write(folder: IdentityFolder, identity: EnrolledIdentity) -> io::Result<()> {
    tokio::task::spawn_blocking(move || folder.write(&identity)).await.map_err(io::Error::other)?
}
