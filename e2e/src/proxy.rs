//! Proxies with mutual TLS in front of the runtimes of machines, as users may have them. They are haproxy processes that forward bytes.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{
    Documents, Hypervisor,
    hypervisor::{CriEndpoint, HypervisorEndpoint, RUNTIME_SOCKET, SecretReference},
    jiff::{SignedDuration, Timestamp},
    release,
};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
use rand::{SeedableRng, rngs::ChaCha8Rng};

use crate::{TestMachine, deadline};

const PORT: u16 = 7444;
/// The Secret with the credentials for these proxies.
const SECRET: &str = "proxies";

/// An authority of the user, and the proxies with certificates that it signed.
pub struct Proxies {
    folder: PathBuf,
    authority: Authority,
    random: ChaCha8Rng,
    /// The processes by machine.
    running: BTreeMap<String, Child>,
}

impl Proxies {
    /// Creates an authority in this directory. There are no proxies yet.
    pub fn new(folder: PathBuf) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(9);
        let authority = Authority::mint("a user's own", day(), &mut random).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("ca.crt"), authority.certificate().pem()).unwrap();
        Self { folder, authority, random, running: BTreeMap::new() }
    }

    /// Starts a proxy in front of a machine's runtime, in the network of the machine. Imports the images that the runtime would otherwise pull.
    pub fn before(&mut self, machine: &TestMachine) {
        for image in images() {
            machine.load(&image);
        }
        // The previous proxy may have ended with its machine.
        self.running.remove(machine.name()).iter_mut().for_each(end);
        let listen = listen(&machine.document);
        let [certificate, key] = self.issue(CertificateUsage::ServerAuth, Some(listen));
        let own = self.folder.join(machine.name());
        fs::write(own.with_extension("pem"), certificate + &key).unwrap();
        let config = own.with_extension("cfg");
        let folder = self.folder.display();
        let text = format!(
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n\
             frontend cri\n  bind {listen} ssl crt {folder}/{}.pem ca-file {folder}/ca.crt verify required alpn h2\n\
             \x20 default_backend containerd\nbackend containerd\n  server containerd unix@{}\n",
            machine.name(),
            machine.socket().display()
        );
        fs::write(&config, text).unwrap();
        let start = || Command::new("haproxy").arg("-f").arg(&config).spawn().unwrap();
        self.running.insert(machine.name().to_owned(), machine.within(start));
        deadline::until("a proxy", deadline::READ, || machine.connect(listen).is_ok());
    }

    /// Returns documents in which the endpoints of these machines are the proxies, with the Secret of the user.
    pub fn documents(&mut self, mut documents: Documents) -> Vec<u8> {
        for (_, machine) in
            documents.hypervisors.iter_mut().filter(|(name, _)| self.running.contains_key(name.as_str()))
        {
            machine.spec.endpoint = HypervisorEndpoint::Cri(CriEndpoint {
                address: listen(machine).to_string(),
                server_name: None,
                secret_ref: SecretReference { namespace: "default".to_owned(), name: SECRET.to_owned() },
                agent_address: None,
                runtime_socket: RUNTIME_SOCKET.to_owned(),
            });
        }
        let [certificate, key] = self.issue(CertificateUsage::ClientAuth, None);
        let [certificate, key, authority] =
            [certificate.as_str(), &key, self.authority.certificate().pem()].map(|text| STANDARD.encode(text));
        let secret = format!(
            "---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: {SECRET}\n  namespace: default\ndata:\n  tls.crt: {certificate}\n  tls.key: {key}\n  ca.crt: {authority}\n"
        );
        (documents.write() + &secret).into_bytes()
    }

    fn issue(&mut self, usage: CertificateUsage, listen: Option<SocketAddr>) -> [String; 2] {
        let request = LeafRequest {
            common_name: "a user's".to_owned(),
            organizations: Vec::new(),
            dns_names: Vec::new(),
            ip_addresses: listen.map(|listen| listen.ip()).into_iter().collect(),
            usages: vec![usage],
            validity: day(),
        };
        let issued = self.authority.issue(&request, &mut self.random).unwrap();
        [issued.certificate_pem.clone(), issued.key_pem.expose().to_owned()]
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.running.values_mut().for_each(end);
    }
}

fn end(proxy: &mut Child) {
    let _ = proxy.kill();
    let _ = proxy.wait();
}

/// Returns the images of components.
fn images() -> Vec<String> {
    let newest = release::newest();
    let kubernetes = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let own = [newest.pause_image(None), newest.etcd_image(None), release::haproxy_image(None)];
    let keelway = [release::cluster_controller_image(None, release::KEELWAY), release::hypervisor_agent_image(None)];
    let kubernetes = kubernetes.map(|name| newest.kubernetes_image(name, None));
    own.into_iter().chain(keelway).chain(kubernetes).collect()
}

fn listen(machine: &Hypervisor) -> SocketAddr {
    SocketAddr::new(machine.spec.addresses.private[0].parse().unwrap(), PORT)
}

fn day() -> Validity {
    let now = Timestamp::now();
    Validity::new(now - SignedDuration::from_hours(1), now + SignedDuration::from_hours(24)).unwrap()
}
