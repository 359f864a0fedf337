//! Client certificates that end sooner than those that a cluster signs, which live for ten minutes at least.

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

/// For how long it was held by now: a kubelet renews one that is past nine tenths of its life at once.
const HELD: SignedDuration = SignedDuration::from_hours(1);
/// Puts what comes by stdin in the place of the kubelet's own, as a kubelet does it.
const PUT: &str = "cd /var/lib/keelway-node/pki; umask 077; cat > kubelet-client-short.pem
ln -sfn \"$PWD/kubelet-client-short.pem\" next; mv -T next kubelet-client-current.pem";

/// Gives a worker one of its cluster's own authority that ends so soon, in the place of all that it had, and has the cluster know it as
/// it knows those that it signed. Returns when it ends. Its kubelet takes it when it starts.
pub(crate) fn give(setting: &WorkerFleet, cluster: &TestCluster, worker: &str, life: Duration) -> Timestamp {
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
    let issued = authority(setting, cluster).issue(&request, &mut ChaCha8Rng::from_rng(&mut rand::rng())).unwrap();
    let certificate = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).unwrap();
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
    // To the second, as it is written down in it.
    let until = Timestamp::from_second(parsed.validity().not_after.timestamp()).unwrap();
    let known = json!({ "key": sha256_hex(parsed.public_key().raw), "id": sha256_hex(&certificate), "until": until });
    let patch = json!({ "spec": { "certificates": [known] } }).to_string();
    let identity = format!("workeridentity/{worker}");
    let _ = cluster.kubectl.run(&["patch", &identity, "--type=merge", "-p", &patch]).succeeded();
    put(setting, worker, &issued.certificate_pem, &issued.key_pem);
    until
}

fn put(setting: &WorkerFleet, worker: &str, certificate: &str, key: &PrivateKeyPem) {
    let both = format!("{certificate}{}", key.expose());
    let _ = setting.worker(worker).run(&["bash", "-ec", PUT], both.as_bytes()).succeeded();
}

/// The one that signs for the cluster's kubelets.
fn authority(setting: &WorkerFleet, cluster: &TestCluster) -> Authority {
    let documents = setting.documents();
    let found = documents.clusters.values().find(|found| found.reference().name == cluster.name).unwrap();
    let mut secrets = documents.secrets_of(found.id().unwrap());
    let (_, secret) = secrets.find(|(name, _)| *name == "kubernetes-ca").unwrap();
    let data = secret.data.iter().flatten().map(|(name, bytes)| (name.clone(), bytes.0.clone())).collect();
    AuthorityKeyring::from_secret_data(&data).unwrap().active
}
