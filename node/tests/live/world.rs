//! A public machine with control plane, ingresses and gateways, and a worker's machine behind a NAT.

use std::{
    net::SocketAddr,
    process::{Child, Command},
    sync::Mutex,
};

use k8s_openapi::{
    api::core::v1::{Secret, ServiceAccount},
    jiff::{SignedDuration, Timestamp},
};
use keelway_pki::{AuthorityHash, BootstrapToken, JoinToken};
use keelway_vpn::PrivateKey;
use kube::{Api, Client, api::PostParams};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use serde_json::json;

use crate::{
    controller::{Controller, apply_role},
    ingress::Ingress,
    machine::Machine,
    plane::{Plane, free_port, path, start, write},
    program, wait,
};

/// The public machine twice. An ingress and the gateway beside it have the same port number.
pub(crate) const PUBLIC: [&str; 2] = ["203.0.113.1:20000", "203.0.113.1:20001"];
const GATEWAYS: [&str; 2] = ["100.80.0.2", "100.80.0.3"];

/// The network of a worker that no machine outside can reach, because it is behind a NAT.
const NETWORK: &str = "
for name in nat w1; do ip netns add $name; ip -n $name link set lo up; done
ip link add public type veth peer name outside netns nat
ip addr add 203.0.113.1/24 dev public
ip link set public up
ip -n nat addr add 203.0.113.2/24 dev outside
ip -n nat link set outside up
ip -n nat link add inside type veth peer name eth0 netns w1
ip -n nat addr add 192.168.0.1/24 dev inside
ip -n nat link set inside up
ip -n w1 addr add 192.168.0.2/24 dev eth0
ip -n w1 link set eth0 up
ip -n w1 route add default via 192.168.0.1
nsenter --net=/run/netns/nat sh -ec '
echo 1 > /proc/sys/net/ipv4/ip_forward
nft add table ip nat
nft add chain ip nat postrouting \"{ type nat hook postrouting priority 100; }\"
nft add rule ip nat postrouting oifname outside masquerade'";

pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) plane: Plane,
    pub(crate) admin: Client,
    /// In the order of [`PUBLIC`].
    pub(crate) ingresses: Vec<Ingress>,
    gateways: [Mutex<Child>; 2],
    _controller: Controller,
}

impl World {
    pub(crate) async fn start() -> Self {
        assert!(Command::new("sh").args(["-ec", NETWORK]).status().unwrap().success());
        let plane = Plane::start().await;
        let admin = plane.admin().await;
        apply_role(&admin).await;
        let keys = [7, 8].map(|byte| PrivateKey::from_bytes([byte; 32]));
        let endpoint = |at: usize| {
            let gateway = json!({ "publicKey": keys[at].public().to_string(), "addresses": [GATEWAYS[at]] });
            json!({ "address": PUBLIC[at], "gateway": gateway })
        };
        let controller = Controller::start(&plane, "controller", |configuration| {
            configuration["endpoints"] = json!([endpoint(0), endpoint(1)]);
            let off = json!({ "enabled": false });
            configuration["addons"] = json!({ "coreDNS": off, "kubeProxy": off, "metricsServer": off });
        });
        let api = SocketAddr::from(([127, 0, 0, 1], plane.port()));
        let mut ingresses = Vec::new();
        for address in PUBLIC {
            ingresses.push(Ingress::start(address.parse().unwrap(), api).await);
        }
        let machine = Machine::start().await;
        let gateways = [0, 1].map(|at| Mutex::new(start_gateway(&plane, &keys[at], at)));
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
        let account = serde_json::from_value(json!({ "metadata": { "name": "default" } })).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(admin.clone(), "kube-system");
        wait::until("the cluster tells its workers", async || maps.get("keelway-endpoints").await.is_ok()).await;
        Self { plane, admin, ingresses, gateways, machine, _controller: controller }
    }

    /// Returns a join token of this cluster whose bootstrap token expires after `lives`.
    pub(crate) async fn token(&self, lives: SignedDuration) -> JoinToken {
        let bootstrap = BootstrapToken::mint(&mut ChaCha8Rng::from_rng(&mut rand::rng()));
        let secret = json!({
            "metadata": { "name": format!("bootstrap-token-{}", bootstrap.id()) },
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": bootstrap.id(),
                "token-secret": bootstrap.secret(),
                "expiration": (Timestamp::now() + lives).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                "usage-bootstrap-authentication": "true",
                "auth-extra-groups": "system:bootstrappers:keelway:workers",
            },
        });
        let secrets: Api<Secret> = Api::namespaced(self.admin.clone(), "kube-system");
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        let authorities = vec![AuthorityHash::of_pem(self.plane.authority()).unwrap()];
        JoinToken { endpoints: vec![PUBLIC[0].parse().unwrap()], names: vec![], authorities, bootstrap }
    }

    /// Kills the process of a gateway.
    pub(crate) fn kill_gateway(&self, at: usize) {
        let mut gateway = self.gateways[at].lock().unwrap();
        gateway.kill().unwrap();
        gateway.wait().unwrap();
    }
}

fn start_gateway(plane: &Plane, key: &PrivateKey, at: usize) -> Child {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let identity = plane.server_identity("gateway.keelway");
    let name = |what: &str| format!("gateway-{at}{what}");
    let configuration = json!({
        "wireGuard": {
            "privateKeyFile": write(&name(".wireguard"), STANDARD.encode(key.as_bytes())),
            "listenPort": PUBLIC[at].parse::<SocketAddr>().unwrap().port(),
            "addresses": [GATEWAYS[at]],
            "addressCIDRs": ["100.80.0.0/16"],
            "podCIDRs": ["10.244.0.0/16"],
        },
        "peers": {
            "kubeconfig": plane.kubeconfig("keelway:gateway", &["system:masters"]),
            "file": path(&name(".peers")),
        },
        "connect": {
            "listen": [format!("127.0.0.1:{}", free_port())],
            "tls": {
                "certificateFile": write(&name(".crt"), &identity.certificate_pem),
                "keyFile": write(&name(".key"), identity.key_pem.expose()),
                "authorityFile": path("ca.crt"),
            },
            "clients": ["keelway:egress"],
        },
        "health": format!("127.0.0.1:{}", free_port()),
    });
    let file = write(&name(".json"), configuration.to_string());
    Command::new("chmod").args(["600", &path(&name(".wireguard")).display().to_string()]).status().unwrap();
    let program = program().display().to_string();
    start(&name(""), &program, &["gateway".to_owned(), "--config".to_owned(), file])
}
