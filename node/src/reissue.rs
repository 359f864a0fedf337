//! Follows a rotation of the authority that signs the certificates of API servers and workers, with the kubelet.
//!
//! The kubelet reads the authorities of its kubeconfig only when it starts, and keeps its certificates until they are about to expire. So the daemon
//! restarts it after the authorities changed, and replaces certificates of an authority that issues none any more. Pods continue to run.

use std::time::Duration;

use jiff::Timestamp;
use keelway_base::error_chain::ErrorChain;
use kube::Client;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use tokio::{sync::watch, time::Instant};

use crate::{
    api::ApiError,
    certificate::{self, CLIENT, KubeletCertificate, KubeletCertificateError, KubeletPurpose, SERVING},
    files::{self, NodeFileError},
    information::TrustedInformation,
    kubelet::{self, KubeletStatus, KubeletTrust},
    process::ProcessId,
    settings::Layout,
};

/// The first pause before another request. After an activation, kube-controller-manager signs with the previous authority for up to a minute.
const REQUEST_PAUSE: Duration = Duration::from_secs(10);
/// The first pause before the serving certificate is replaced again, which restarts the kubelet.
const SERVING_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause. Pauses double until then. A cluster counts the certificates of each name, and a month of attempts must not use them up.
const LONGEST_PAUSE: Duration = Duration::from_secs(3 * 3600);

/// The kubelet does not follow the authorities yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReissueError {
    #[error(transparent)]
    File(#[from] NodeFileError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Certificate(#[from] KubeletCertificateError),
    #[error(
        "the cluster signed the certificate with the previous authority; the worker requests another one soon, because kube-controller-manager reads the next authority within a minute"
    )]
    PreviousAuthority,
}

/// What the kubelet trusts and uses.
#[derive(Debug, Clone, Default)]
struct KubeletState {
    /// The running kubelet.
    process: Option<ProcessId>,
    record: Option<KubeletTrust>,
    /// The authority key identifiers of its certificates.
    client: Option<String>,
    serving: Option<String>,
}

impl KubeletState {
    fn read(layout: &Layout, process: Option<ProcessId>) -> Result<Self, NodeFileError> {
        let record = process.map(|process| KubeletTrust::load(layout, process)).transpose()?.flatten();
        let (client, serving) = (certificate::issuer(layout, CLIENT), certificate::issuer(layout, SERVING));
        Ok(Self { process, record, client, serving })
    }
}

/// The next step of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReissueStep {
    Keep,
    /// Record that the kubelet was started with the current authorities.
    Record,
    Restart,
    ReplaceClient,
    ReplaceServing,
}

/// A pause that grows with each use.
#[derive(Debug, Default)]
struct GrowingPause {
    uses: u32,
    until: Option<Instant>,
}

impl GrowingPause {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    fn begin(&mut self, first: Duration, now: Instant) {
        let length = first.saturating_mul(1 << self.uses.min(16)).min(LONGEST_PAUSE);
        self.uses = self.uses.saturating_add(1);
        self.until = Some(now + length);
    }
}

/// The pauses between attempts to replace a certificate.
#[derive(Debug, Default)]
pub(crate) struct ReissuePauses {
    client: GrowingPause,
    serving: GrowingPause,
}

impl ReissuePauses {
    /// Forgets attempts for certificates that need no further one.
    fn forget(&mut self, kubelet: &KubeletState, issuer: Option<&String>) {
        if issuer.is_none() || kubelet.client.as_ref() == issuer {
            self.client = GrowingPause::default();
        }
        if issuer.is_none() || kubelet.serving.as_ref() == issuer {
            self.serving = GrowingPause::default();
        }
    }
}

/// Decides on the next step. The client certificate comes first: the restart that puts it into use also replaces the serving certificate.
fn decide(kubelet: &KubeletState, known: &TrustedInformation, pauses: &ReissuePauses, now: Instant) -> ReissueStep {
    let issuer = known.cluster.issuer.as_ref();
    let is_former = |own: &Option<String>| issuer.is_some() && own.is_some() && own.as_ref() != issuer;
    if is_former(&kubelet.client) {
        if pauses.client.is_over(now) {
            return ReissueStep::ReplaceClient;
        }
    } else if is_former(&kubelet.serving) && pauses.serving.is_over(now) {
        return ReissueStep::ReplaceServing;
    }
    match &kubelet.record {
        _ if kubelet.process.is_none() => ReissueStep::Keep,
        Some(record) if record.is_of(&known.authorities) => ReissueStep::Keep,
        // An earlier release started the kubelet, and the authorities never changed before this release.
        None if is_one(&known.authorities) => ReissueStep::Record,
        Some(_) | None => ReissueStep::Restart,
    }
}

/// Whether a PEM bundle has exactly one certificate.
fn is_one(authorities: &str) -> bool {
    CertificateDer::pem_slice_iter(authorities.as_bytes()).count() == 1
}

/// A worker whose kubelet follows the authorities.
pub(crate) struct ReissuingWorker<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) name: &'a str,
    pub(crate) known: &'a watch::Sender<TrustedInformation>,
    pub(crate) kubelet: &'a watch::Sender<KubeletStatus>,
}

impl ReissuingWorker<'_> {
    /// Performs the next step, if there is one. `client` returns a client of the API as the node.
    pub(crate) async fn step(
        &self,
        pauses: &mut ReissuePauses,
        client: impl FnOnce() -> Result<Client, ApiError>,
    ) -> Result<(), ReissueError> {
        if self.layout.leaving().exists() {
            return Ok(());
        }
        let known = self.known.borrow().clone();
        let kubelet = KubeletState::read(self.layout, self.process())?;
        pauses.forget(&kubelet, known.cluster.issuer.as_ref());
        match decide(&kubelet, &known, pauses, Instant::now()) {
            ReissueStep::Keep => Ok(()),
            ReissueStep::Record => {
                let record = kubelet.process.map(|process| KubeletTrust::started_with(process, &known.authorities));
                Ok(record.map_or(Ok(()), |record| record.store(self.layout))?)
            }
            ReissueStep::Restart => {
                tracing::info!("the authorities of the cluster changed; restarting the kubelet");
                self.restart().await
            }
            ReissueStep::ReplaceClient => {
                let replaced = self.replace_client(client, known.cluster.issuer.as_ref(), pauses).await;
                if replaced.is_err() {
                    pauses.client.begin(REQUEST_PAUSE, Instant::now());
                }
                replaced
            }
            ReissueStep::ReplaceServing => {
                tracing::info!(
                    "the serving certificate is of an authority that is being removed; restarting the kubelet"
                );
                let serving = match self.reissued_serving(client()?, known.cluster.issuer.as_ref()).await {
                    Ok(serving) => serving,
                    Err(error) => {
                        pauses.serving.begin(REQUEST_PAUSE, Instant::now());
                        return Err(error);
                    }
                };
                self.require_restart()?;
                self.replace_serving(serving.as_ref(), pauses)?;
                self.restart().await
            }
        }
    }

    fn process(&self) -> Option<ProcessId> {
        self.kubelet.borrow().pid.and_then(ProcessId::of)
    }

    /// Requests another client certificate, and restarts the kubelet with it.
    async fn replace_client(
        &self,
        client: impl FnOnce() -> Result<Client, ApiError>,
        issuer: Option<&String>,
        pauses: &mut ReissuePauses,
    ) -> Result<(), ReissueError> {
        let client = client()?;
        // First, because the cluster accepts requests with the previous client certificate only until it has approved the next one.
        let has_former = certificate::issuer(self.layout, SERVING).as_ref() != issuer;
        let serving = if has_former { self.reissued_serving(client.clone(), issuer).await? } else { None };
        let replacement = certificate::reissue(client, self.name).await?;
        if certificate::issuer_of(&replacement.certificate).as_ref() != issuer {
            return Err(ReissueError::PreviousAuthority);
        }
        tracing::info!("replaced the client certificate, whose authority is being removed; restarting the kubelet");
        self.require_restart()?;
        certificate::store(self.layout, KubeletPurpose::Client, &replacement, Timestamp::now())?;
        if has_former {
            self.replace_serving(serving.as_ref(), pauses)?;
        }
        self.restart().await
    }

    /// Requests another serving certificate, so that the kubelet has one when it starts: until then, it serves no `exec` and no `logs`. Returns `None` if
    /// that fails, because the kubelet can request one itself.
    async fn reissued_serving(
        &self,
        client: Client,
        issuer: Option<&String>,
    ) -> Result<Option<KubeletCertificate>, ReissueError> {
        match certificate::reissue_serving(self.layout, client, self.name).await {
            Ok(Some(serving)) if certificate::issuer_of(&serving.certificate).as_ref() != issuer => {
                Err(ReissueError::PreviousAuthority)
            }
            Ok(serving) => Ok(serving),
            Err(error) => {
                tracing::info!("the kubelet requests its next serving certificate itself: {}", ErrorChain(&error));
                Ok(None)
            }
        }
    }

    /// Replaces the serving certificate, or removes it. Without one, the kubelet requests another one when it starts.
    fn replace_serving(
        &self,
        replacement: Option<&KubeletCertificate>,
        pauses: &mut ReissuePauses,
    ) -> Result<(), NodeFileError> {
        let now = Timestamp::now();
        if let Some(replacement) = replacement {
            return certificate::store(self.layout, KubeletPurpose::Serving, replacement, now);
        }
        pauses.serving.begin(SERVING_PAUSE, Instant::now());
        certificate::remove_serving(self.layout)
    }

    /// Records that the kubelet does not use its files any more. Also a later daemon then restarts it, and reports nothing until then.
    fn require_restart(&self) -> Result<(), NodeFileError> {
        self.process().map_or(Ok(()), |process| KubeletTrust::outdated(process).store(self.layout))
    }

    /// Ends the kubelet, which the daemon then starts again with the authorities in their file.
    async fn restart(&self) -> Result<(), ReissueError> {
        let authorities = self.known.borrow().authorities.clone();
        files::update(&self.layout.authorities(), authorities, 0o644)?;
        Ok(kubelet::stop(self.layout).await?)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, fs};

    use base64::{Engine, engine::general_purpose::STANDARD};
    use http::{Request, Response};
    use jiff::SignedDuration;
    use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
    use kube::client::Body;
    use rand::{SeedableRng, rngs::ChaCha8Rng};
    use serde_json::{Value, json};

    use super::*;
    use crate::samples;

    const PROCESS: ProcessId = ProcessId { pid: 7, started: 1 };

    fn hour() -> Validity {
        Validity::starting(Timestamp::now(), SignedDuration::from_hours(1)).unwrap()
    }

    fn minted(seed: u64) -> Authority {
        Authority::mint("kubernetes", hour(), &mut ChaCha8Rng::seed_from_u64(seed)).unwrap()
    }

    fn authority(seed: u64) -> String {
        minted(seed).certificate().pem().to_owned()
    }

    fn known(authorities: String, issuer: Option<&str>) -> TrustedInformation {
        let mut cluster = samples::cluster();
        cluster.issuer = issuer.map(str::to_owned);
        TrustedInformation { cluster, authorities }
    }

    fn kubelet(record: Option<&str>, client: &str, serving: Option<&str>) -> KubeletState {
        KubeletState {
            process: Some(PROCESS),
            record: record.map(|authorities| KubeletTrust::started_with(PROCESS, authorities)),
            client: Some(client.to_owned()),
            serving: serving.map(str::to_owned),
        }
    }

    fn first_step(kubelet: &KubeletState, known: &TrustedInformation) -> ReissueStep {
        decide(kubelet, known, &ReissuePauses::default(), Instant::now())
    }

    #[test]
    fn the_kubelet_restarts_when_the_authorities_change() {
        let (one, both) = (authority(1), authority(1) + &authority(2));
        let started = kubelet(Some(&one), "a", Some("a"));
        assert_eq!(first_step(&started, &known(one.clone(), None)), ReissueStep::Keep);
        assert_eq!(first_step(&started, &known(both.clone(), None)), ReissueStep::Restart);
        assert_eq!(first_step(&KubeletState { process: None, ..started }, &known(both, None)), ReissueStep::Keep);
        let outdated = KubeletState { record: Some(KubeletTrust::outdated(PROCESS)), ..kubelet(None, "a", Some("a")) };
        assert_eq!(first_step(&outdated, &known(one, None)), ReissueStep::Restart);
    }

    #[test]
    fn a_kubelet_of_an_earlier_release_restarts_only_if_there_are_several_authorities() {
        let adopted = kubelet(None, "a", Some("a"));
        assert_eq!(first_step(&adopted, &known(authority(1), None)), ReissueStep::Record);
        assert_eq!(first_step(&adopted, &known(authority(1) + &authority(2), None)), ReissueStep::Restart);
    }

    #[test]
    fn certificates_of_a_former_authority_are_replaced_the_client_certificate_first() {
        let both = authority(1) + &authority(2);
        let during = known(both.clone(), Some("b"));
        let step = |client, serving| first_step(&kubelet(Some(&both), client, serving), &during);
        assert_eq!(step("a", Some("a")), ReissueStep::ReplaceClient);
        assert_eq!(step("a", Some("b")), ReissueStep::ReplaceClient);
        assert_eq!(step("b", Some("a")), ReissueStep::ReplaceServing);
        assert_eq!(step("b", Some("b")), ReissueStep::Keep);
        assert_eq!(step("b", None), ReissueStep::Keep, "the kubelet requests it itself");
        // No authority is being replaced.
        let keeps = first_step(&kubelet(Some(&both), "a", Some("a")), &known(both.clone(), None));
        assert_eq!(keeps, ReissueStep::Keep);
    }

    #[test]
    fn an_attempt_that_failed_does_not_delay_other_steps() {
        let (one, both, now) = (authority(1), authority(1) + &authority(2), Instant::now());
        let mut pauses = ReissuePauses::default();
        pauses.client.begin(REQUEST_PAUSE, now);
        pauses.serving.begin(SERVING_PAUSE, now);
        let during = known(both.clone(), Some("b"));
        let step = |record: &str, client, after| {
            let kubelet = kubelet(Some(record), client, Some("a"));
            decide(&kubelet, &during, &pauses, now + Duration::from_secs(after))
        };
        assert_eq!(step(&one, "a", 9), ReissueStep::Restart);
        assert_eq!(step(&both, "a", 9), ReissueStep::Keep);
        assert_eq!(step(&both, "a", 10), ReissueStep::ReplaceClient);
        assert_eq!(step(&both, "b", 59), ReissueStep::Keep);
        assert_eq!(step(&both, "b", 60), ReissueStep::ReplaceServing);
    }

    #[test]
    fn pauses_grow_until_the_certificate_is_replaced() {
        let now = Instant::now();
        let mut pauses = ReissuePauses::default();
        let mut lengths = Vec::new();
        for _ in 0..13 {
            pauses.client.begin(REQUEST_PAUSE, now);
            lengths.push(pauses.client.until.unwrap().duration_since(now).as_secs());
        }
        assert_eq!(lengths[..4], [10, 20, 40, 80]);
        assert_eq!(lengths[10..], [10240, 10800, 10800]);
        pauses.serving.begin(SERVING_PAUSE, now);
        let issuer = "b".to_owned();
        // The serving certificate is not there yet.
        pauses.forget(&kubelet(None, "b", None), Some(&issuer));
        assert!(pauses.client.is_over(now) && !pauses.serving.is_over(now));
        pauses.forget(&kubelet(None, "b", Some("b")), Some(&issuer));
        assert!(pauses.serving.is_over(now));
    }

    /// Returns a certificate and its key, both PEM.
    fn signed(by: &Authority) -> (String, String) {
        let request = LeafRequest {
            common_name: "system:node:w1".to_owned(),
            organizations: vec!["system:nodes".to_owned()],
            dns_names: vec![],
            ip_addresses: vec![],
            usages: vec![CertificateUsage::ClientAuth],
            validity: hour(),
        };
        let issued = by.issue(&request, &mut ChaCha8Rng::seed_from_u64(9)).unwrap();
        (issued.certificate_pem, issued.key_pem.expose().to_owned())
    }

    /// A cluster that signs each request with this authority, if it is for this signer or any.
    fn cluster(authority: &Authority, signer: Option<&'static str>) -> Client {
        let certificate = STANDARD.encode(signed(authority).0);
        let service = tower::service_fn(move |request: Request<Body>| {
            let certificate = certificate.clone();
            async move {
                let mut object: Value =
                    serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap()).unwrap();
                assert!(object["metadata"]["name"].as_str().unwrap().starts_with("keelway-reissue-"));
                let is_signed = signer.is_none_or(|signer| object["spec"]["signerName"] == signer);
                let denied = json!({ "type": "Denied", "status": "True", "reason": "Test", "message": "no" });
                object["status"] =
                    if is_signed { json!({ "certificate": certificate }) } else { json!({ "conditions": [denied] }) };
                let body = Body::from(serde_json::to_vec(&object).unwrap());
                Ok::<_, Infallible>(Response::builder().status(201).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn one_restart_replaces_both_certificates() {
        let (previous, active) = (minted(1), minted(2));
        let issuers = [&previous, &active].map(|authority| certificate::issuer_of(&signed(authority).0).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        files::make_dir(&layout.pki(), 0o700).unwrap();
        let (pem, key) = signed(&previous);
        for file in [CLIENT, SERVING] {
            fs::write(layout.pki().join(file), format!("{pem}{key}")).unwrap();
        }
        // This process is in the place of the kubelet: no process is ended, because it is not in the kubelet's file.
        let own = ProcessId::of(std::process::id()).unwrap();
        let known = known(authority(1) + &authority(2), Some(&issuers[1]));
        KubeletTrust::started_with(own, &known.authorities).store(&layout).unwrap();
        let kubelet = watch::Sender::new(KubeletStatus { pid: Some(own.pid), ..KubeletStatus::default() });
        let worker =
            ReissuingWorker { layout: &layout, name: "w1", known: &watch::Sender::new(known), kubelet: &kubelet };
        let issuer = |file| certificate::issuer(&layout, file);

        // kube-controller-manager has not read the next authority yet.
        let mut pauses = ReissuePauses::default();
        let early = worker.step(&mut pauses, || Ok(cluster(&previous, None))).await.unwrap_err();
        assert!(matches!(early, ReissueError::PreviousAuthority), "{early}");
        assert_eq!([CLIENT, SERVING].map(issuer), [Some(issuers[0].clone()), Some(issuers[0].clone())]);
        worker.step(&mut pauses, || panic!("a request in the pause")).await.unwrap();

        let mut pauses = ReissuePauses::default();
        worker.step(&mut pauses, || Ok(cluster(&active, None))).await.unwrap();
        assert_eq!([CLIENT, SERVING].map(issuer), [Some(issuers[1].clone()), Some(issuers[1].clone())]);
        // A daemon that is stopped before the kubelet ends restarts it later.
        let record = KubeletTrust::load(&layout, own).unwrap();
        assert_eq!(record, Some(KubeletTrust::outdated(own)));

        // The cluster does not sign the serving certificate: the kubelet requests it when it starts.
        for file in [CLIENT, SERVING] {
            fs::write(layout.pki().join(file), format!("{pem}{key}")).unwrap();
        }
        let client_only = "kubernetes.io/kube-apiserver-client-kubelet";
        worker.step(&mut pauses, || Ok(cluster(&active, Some(client_only)))).await.unwrap();
        assert_eq!([CLIENT, SERVING].map(issuer), [Some(issuers[1].clone()), None]);
        assert!(!pauses.serving.is_over(Instant::now()));
    }

    #[tokio::test]
    async fn a_worker_that_leaves_follows_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        fs::write(layout.leaving(), "").unwrap();
        let known = watch::Sender::new(known(authority(1) + &authority(2), None));
        let own = watch::Sender::new(KubeletStatus { pid: Some(std::process::id()), ..KubeletStatus::default() });
        let worker = ReissuingWorker { layout: &layout, name: "w1", known: &known, kubelet: &own };
        worker.step(&mut ReissuePauses::default(), || panic!("a request")).await.unwrap();
        assert!(!layout.authorities().exists());
    }
}
