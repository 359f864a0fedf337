//! Add-ons that every cluster needs on its workers, each from a template.

mod template;

use ipnet::IpNet;
use keelway_api::{
    cluster::AddonSpec,
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
    let templates: [(AddonSpec, &'static str, &str); 3] = [
        (addons.core_dns, "CoreDNS", CORE_DNS),
        (addons.kube_proxy, "kube-proxy", KUBE_PROXY),
        (addons.metrics_server, "metrics-server", METRICS_SERVER),
    ];
    let mut objects = Vec::new();
    for (_, name, template) in templates.into_iter().filter(|(addon, ..)| addon.enabled) {
        objects.extend(fill(name, template, &values)?);
    }
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
        ("coreDNSImage", image(release.coredns_image(registry))),
        ("kubeProxyImage", image(release.kubernetes_image("kube-proxy", registry))),
        ("metricsServerImage", image(release::metrics_server_image(registry))),
    ]
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
