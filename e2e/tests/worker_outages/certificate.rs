//! Client certificates with a shorter life than a cluster signs, which is at least ten minutes.

use std::time::Duration;

use keelway_api::{
    jiff::{SignedDuration, Timestamp},
    machine::sha256_hex,
};
use keelway_e2e::worker_fleet::{TestCluster, WorkerFleet};
use keelway_pki::{Authority, AuthorityKeyring, CertificateUsage, LeafRequest, PrivateKeyPem, Validity};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;

/// How long before now the certificate became valid. A kubelet immediately renews a certificate that is past nine tenths of its life.
const HELD: SignedDuration = SignedDuration::from_hours(1);
/// Replaces the current client certificate of the kubelet with the one on stdin, as a kubelet does.
const PUT: &str = "cd /var/lib/keelway-node/pki; umask 077; cat > kubelet-client-short.pem
ln -sfn \"$PWD/kubelet-client-short.pem\" next; mv -T next kubelet-client-current.pem";

/// Replaces the client certificate of a worker by one that the cluster's authority issues for this life. Records it in the cluster like the
/// certificates that the cluster signed, in place of all earlier ones. Returns when it expires. The kubelet uses it after its next start.
pub(crate) fn replace(worker_fleet: &WorkerFleet, cluster: &TestCluster, worker: &str, life: Duration) -> Timestamp {
    let now = Timestamp::now();
    let until = now + SignedDuration::try_from(life).unwrap();
    let request = LeafRequest {
        common_name: format!("system:node:{worker}"),
        organizations: vec!["system:nodes".to_owned()],
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
        usages: vec![CertificateUsage::ClientAuth],
        validity: Validity::new(now - HELD, until).unwrap(),
    };
    let issued = authority(worker_fleet, cluster).issue(&request, &mut ChaCha8Rng::from_rng(&mut rand::rng())).unwrap();
    let certificate = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).unwrap();
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
    // The certificate stores times in whole seconds.
    let until = Timestamp::from_second(parsed.validity().not_after.timestamp()).unwrap();
    let known = json!({ "key": sha256_hex(parsed.public_key().raw), "id": sha256_hex(&certificate), "until": until });
    let patch = json!({ "spec": { "certificates": [known] } }).to_string();
    let identity = format!("workeridentity/{worker}");
    let _ = cluster.kubectl.run(&["patch", &identity, "--type=merge", "-p", &patch]).succeeded();
    put(worker_fleet, worker, &issued.certificate_pem, &issued.key_pem);
    until
}

fn put(worker_fleet: &WorkerFleet, worker: &str, certificate: &str, key: &PrivateKeyPem) {
    let both = format!("{certificate}{}", key.expose());
    let _ = worker_fleet.worker(worker).run(&["bash", "-ec", PUT], both.as_bytes()).succeeded();
}

/// Returns the authority that signs the certificates of the cluster's kubelets.
fn authority(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> Authority {
    let documents = worker_fleet.documents();
    let found = cluster.document(&documents);
    let mut secrets = documents.secrets_of(found.id().unwrap());
    let (_, secret) = secrets.find(|(name, _)| *name == "kubernetes-ca").unwrap();
    let data = secret.data.iter().flatten().map(|(name, bytes)| (name.clone(), bytes.0.clone())).collect();
    AuthorityKeyring::from_secret_data(&data).unwrap().active
}
