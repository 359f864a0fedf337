//! Add-ons that every cluster needs on its workers, each from a template.

mod template;

use ipnet::IpNet;
use keelway_api::{
    cluster::KubeProxySpec,
    image_override::overridden,
    release::{self, Release},
    worker::CNI_FILE,
};
use serde_json::{Value, json};

use super::{
    super::{ControllerConfiguration, configuration::API_PORT},
    ObjectError,
    information::{CNI, config_map},
};
use template::fill;

const CORE_DNS: &str = include_str!("addons/coredns.yaml");
const KUBE_PROXY: &str = include_str!("addons/kube-proxy.yaml");
const METRICS_SERVER: &str = include_str!("addons/metrics-server.yaml");

pub(super) fn objects(configuration: &ControllerConfiguration) -> Result<Vec<Value>, ObjectError> {
    let release =
        release::find(&configuration.version).ok_or_else(|| ObjectError::Release(configuration.version.clone()))?;
    let values = values(configuration, &release);
    let addons = &configuration.addons;
    let templates: [(bool, &'static str, &str); 3] = [
        (addons.core_dns.enabled, "CoreDNS", CORE_DNS),
        (addons.kube_proxy.enabled, "kube-proxy", KUBE_PROXY),
        (addons.metrics_server.enabled, "metrics-server", METRICS_SERVER),
    ];
    let mut objects = Vec::new();
    for (_, name, template) in templates.into_iter().filter(|(is_enabled, ..)| *is_enabled) {
        objects.extend(fill(name, template, &values)?);
    }
    annotate_kube_proxy(&mut objects, &addons.kube_proxy);
    if addons.cni.enabled {
        objects.push(cni(configuration.vpn_mtu));
    }
    Ok(objects)
}

fn values(configuration: &ControllerConfiguration, release: &Release) -> Vec<(&'static str, String)> {
    let registry = configuration.registry.as_deref();
    let image = |image: String| overridden(image, &configuration.image_overrides);
    let pods = configuration.pod_cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",");
    let api = configuration.api_addresses().first().map(|address| std::net::SocketAddr::new(*address, API_PORT));
    // With the default CNI configuration, a worker's pods have addresses of its own range. Another one may assign any addresses.
    let local = if configuration.addons.cni.enabled { "NodeCIDR" } else { "ClusterCIDR" };
    vec![
        ("api", api.map(|api| format!("https://{api}")).unwrap_or_default()),
        ("dnsAddress", configuration.dns_address().to_string()),
        ("dnsDomain", configuration.dns_domain.clone()),
        ("podCIDRs", pods),
        ("detectLocalMode", local.to_owned()),
        ("nodePortAddresses", json!(configuration.addons.kube_proxy.node_port_addresses).to_string()),
        ("coreDNSImage", image(release.coredns_image(registry))),
        ("kubeProxyImage", image(release.kubernetes_image("kube-proxy", registry))),
        ("metricsServerImage", image(release::metrics_server_image(registry))),
    ]
}

/// kube-proxy reads its configuration when it starts, so a change replaces its pods. With the default, they have no annotation.
fn annotate_kube_proxy(objects: &mut [Value], spec: &KubeProxySpec) {
    let addresses = &spec.node_port_addresses;
    if *addresses == KubeProxySpec::default().node_port_addresses {
        return;
    }
    for daemon_set in objects.iter_mut().filter(|object| object["kind"] == "DaemonSet") {
        daemon_set["spec"]["template"]["metadata"]["annotations"] =
            json!({ "keelway.dev/node-port-addresses": addresses.join(",") });
    }
}

/// Returns the CNI configuration with the standard plugins. Each worker writes its own pod ranges into it. Pods reach other workers through
/// routes into the tunnel, so no packet is masqueraded on the way.
fn cni(mtu: u16) -> Value {
    let list = json!({
        "cniVersion": "1.0.0",
        "name": "keelway",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isDefaultGateway": true,
                // A Service may select the pod that sends the request.
                "hairpinMode": true,
                "ipMasq": false,
                "mtu": mtu,
                "ipam": { "type": "host-local", "ranges": [] },
            },
            { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
        ],
    });
    config_map("kube-system", CNI, &json!({ CNI_FILE: list.to_string() }))
}
