//! Validates a Hypervisor.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeSet;

use super::{FaultCollector, ValidatedHypervisor, ZONE_LABEL, check_name, labels::check_metadata};
use crate::{
    Hypervisor,
    fault::Fault,
    hypervisor::{AgentEndpoint, CriEndpoint, HypervisorEndpoint, HypervisorRole, PortRange},
    name::is_subdomain,
    tree::item,
};

/// The first port that an unprivileged process may listen on.
pub(crate) const FIRST_PORT: u16 = 1024;
/// The minimum number of ports of a machine. The components of one cluster need up to eight.
pub(crate) const FEWEST_PORTS: u32 = 8;
/// The maximum length of the path of a Unix socket in bytes, without the terminating NUL (`sockaddr_un.sun_path`).
pub(crate) const LONGEST_SOCKET: usize = 107;

impl ValidatedHypervisor {
    /// Validates a Hypervisor.
    ///
    /// # Errors
    /// Every fault, by field.
    pub fn parse(document: &Hypervisor) -> Result<Self, Vec<Fault>> {
        let mut faults = FaultCollector::default();
        let metadata = &document.metadata;
        let spec = &document.spec;
        check_name(metadata.name.as_deref(), &mut faults);
        check_metadata(metadata, &mut faults);
        if metadata.namespace.is_some() {
            faults.add("metadata.namespace", "must not be set: a Hypervisor has no namespace", "remove it");
        }
        check_endpoint(&spec.endpoint, &mut faults);
        check_ports(spec.port_range, &mut faults);
        let private = addresses("spec.addresses.private", &spec.addresses.private, &mut faults);
        let public = addresses("spec.addresses.public", &spec.addresses.public, &mut faults);
        let bind = addresses("spec.addresses.bind", &spec.addresses.bind, &mut faults);
        check_networks(document, &mut faults);
        check_bind(document, &public, &bind, &mut faults);
        let zone = metadata.labels.as_ref().and_then(|labels| labels.get(ZONE_LABEL));
        let built = metadata.name.clone().unwrap_or_default().parse().ok();
        faults.or(built.map(|name| Self {
            name,
            role: spec.role,
            endpoint: spec.endpoint.clone(),
            private,
            bind: if bind.is_empty() { public.clone() } else { bind },
            public,
            ports: spec.port_range,
            schedulable: !spec.unschedulable && !spec.drain && !document.deleted() && !document.is_lost(),
            drained: spec.drain,
            labels: metadata.labels.clone().unwrap_or_default(),
            zone: zone.cloned().unwrap_or_default(),
        }))
    }
}

fn check_endpoint(endpoint: &HypervisorEndpoint, faults: &mut FaultCollector) {
    match endpoint {
        HypervisorEndpoint::Unix { path } => check_socket("spec.endpoint.unix.path", path, faults),
        HypervisorEndpoint::Agent(agent) => check_agent(agent, faults),
        HypervisorEndpoint::Cri(cri) => check_cri(cri, faults),
    }
}

fn check_cri(cri: &CriEndpoint, faults: &mut FaultCollector) {
    check_listener("spec.endpoint.cri.address", &cri.address, "proxy", faults);
    if let Some(name) = cri.server_name.as_deref().filter(|name| !is_subdomain(name) && name.parse::<IpAddr>().is_err())
    {
        let help = "write the DNS name or address in the certificate of the proxy, such as hv-1.example.com";
        faults.add("spec.endpoint.cri.serverName", format!("{name:?} is neither a DNS name nor an address"), help);
    }
    if let Some(address) = &cri.agent_address {
        check_listener("spec.endpoint.cri.agentAddress", address, "agent", faults);
    }
    check_socket("spec.endpoint.cri.runtimeSocket", &cri.runtime_socket, faults);
    for (field, text) in [("namespace", &cri.secret_ref.namespace), ("name", &cri.secret_ref.name)] {
        if !is_subdomain(text) {
            let help = "write the namespace and the name of the Secret with tls.crt, tls.key and ca.crt";
            let problem = format!("{text:?} is not a valid {field} of a Secret");
            faults.add(&format!("spec.endpoint.cri.secretRef.{field}"), problem, help);
        }
    }
}

fn check_agent(agent: &AgentEndpoint, faults: &mut FaultCollector) {
    let ways = [agent.unix.is_some(), agent.address.is_some(), agent.dials_out];
    let given = ways.into_iter().filter(|given| *given).count();
    if given != 1 {
        let count = if given > 1 { "several fields are" } else { "no field is" };
        let problem = format!("{count} set, but exactly one is required");
        faults.add("spec.endpoint.agent", problem, "set exactly one of unix, address, dialsOut");
    }
    check_via(agent, faults);
    if let Some(unix) = &agent.unix {
        check_socket("spec.endpoint.agent.unix.path", &unix.path, faults);
    }
    if let Some(address) = &agent.address {
        check_listener("spec.endpoint.agent.address", address, "agent", faults);
    }
}

fn check_via(agent: &AgentEndpoint, faults: &mut FaultCollector) {
    const FIELD: &str = "spec.endpoint.agent.via";
    match &agent.via {
        None if agent.dials_out => {
            let problem = "is required if dialsOut is true";
            faults.add(FIELD, problem, "write the name of a public Hypervisor whose agent listens on a network");
        }
        Some(_) if agent.unix.is_some() => {
            faults.add(FIELD, "must not be set together with unix: the socket is on this machine", "remove it");
        }
        Some(via) => {
            let named = agent.address.as_ref().filter(|address| address.parse::<SocketAddr>().is_err());
            if let Some(address) = named {
                let problem = format!("the agent of {via} does not resolve DNS names, and {address:?} contains one");
                faults.add(
                    "spec.endpoint.agent.address",
                    problem,
                    "write an IP address and a port, such as 10.0.0.11:7443",
                );
            }
        }
        None => {}
    }
}

/// Checks `HOST:PORT`. The host is an address, in brackets if it contains colons, or a DNS name.
fn check_listener(field: &str, text: &str, who: &str, faults: &mut FaultCollector) {
    let usable = match (text.parse::<SocketAddr>(), text.rsplit_once(':')) {
        (Ok(address), _) => {
            let ip = address.ip();
            if let Some(what) = unusable(ip).filter(|_| !ip.is_loopback()) {
                faults.add(
                    field,
                    format!("{ip} is {what}"),
                    format!("write the address at which this machine reaches the {who}"),
                );
            }
            address.port() > 0
        }
        (Err(_), Some((host, port))) => {
            let is_address = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            is_subdomain(host) && !is_address && port.parse().is_ok_and(|port: u16| port > 0)
        }
        (Err(_), None) => false,
    };
    if !usable {
        let help = format!(
            "write the address at which the {who} listens, such as 10.0.0.5:7443, [fd00::5]:7443 or hv-1.example.com:7443"
        );
        faults.add(field, format!("{text:?} is not HOST:PORT"), help);
    }
}

fn check_socket(field: &str, path: &str, faults: &mut FaultCollector) {
    if !path.starts_with('/') {
        faults.add(
            field,
            format!("{path:?} is not an absolute path"),
            "write the path of the socket, which starts with /, without unix://",
        );
    } else if path.len() > LONGEST_SOCKET {
        faults.add(
            field,
            format!("must have at most {LONGEST_SOCKET} bytes, but has {}", path.len()),
            "move the socket, or create a symbolic link to it: Linux does not support longer paths of sockets",
        );
    }
}

fn check_ports(range: PortRange, faults: &mut FaultCollector) {
    let PortRange { from, to } = range;
    if from > to {
        faults.add(
            "spec.portRange",
            format!("from must not be greater than to: {from} is greater than {to}"),
            format!("write from: {to} and to: {from}"),
        );
        return;
    }
    if from < FIRST_PORT {
        faults.add(
            "spec.portRange.from",
            format!("must be at least {FIRST_PORT}, not {from}"),
            "choose a higher port: lower ones are reserved for the system",
        );
    }
    let ports = u32::from(to - from) + 1;
    if ports < FEWEST_PORTS {
        faults.add(
            "spec.portRange",
            format!("must contain at least {FEWEST_PORTS} ports, but contains {ports}"),
            "choose a larger range",
        );
    }
}

fn addresses(field: &str, texts: &[String], faults: &mut FaultCollector) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    for (index, text) in texts.iter().enumerate() {
        let field = item(field, index);
        let Some(address) = faults.take(address(&field, text)) else {
            continue;
        };
        if !known.insert(address) {
            faults.add(&field, format!("{address} is listed twice"), "remove one of them");
        }
        found.push(address);
    }
    found
}

fn address(field: &str, text: &str) -> Result<IpAddr, Fault> {
    let Ok(address) = text.parse::<IpAddr>() else {
        return Err(Fault::of(
            field,
            format!("{text:?} is not an IP address"),
            "write an address such as 10.0.0.11 or fd00::11, without a port or a prefix length",
        ));
    };
    match unusable(address) {
        Some(what) => {
            Err(Fault::of(field, format!("{address} is {what}"), "write an address that other machines can reach"))
        }
        None => Ok(address),
    }
}

fn unusable(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    match () {
        () if address.is_unspecified() => Some("the unspecified address"),
        () if address.is_loopback() => Some("a loopback address"),
        () if address.is_multicast() => Some("a multicast address"),
        () if link_local => Some("a link-local, broadcast or IPv4-mapped address"),
        () => None,
    }
}

fn check_networks(document: &Hypervisor, faults: &mut FaultCollector) {
    let addresses = &document.spec.addresses;
    if addresses.private.is_empty() {
        faults.add(
            "spec.addresses.private",
            "must have at least one address",
            "write an address of this machine in the network of hypervisors",
        );
    }
    match document.spec.role {
        HypervisorRole::Public if addresses.public.is_empty() => faults.add(
            "spec.addresses.public",
            "must have at least one address if the role is Public",
            "write an address that users of clusters can reach, or change the role to Private",
        ),
        HypervisorRole::Private if !addresses.public.is_empty() => faults.add(
            "spec.addresses.public",
            "must be empty if the role is Private",
            "remove the addresses, or change the role to Public",
        ),
        HypervisorRole::Public | HypervisorRole::Private => {}
    }
}

/// Checks that the addresses on which ingresses listen have the families of the public addresses. Addresses that are ill-formed have faults of their own.
fn check_bind(document: &Hypervisor, public: &[IpAddr], bind: &[IpAddr], faults: &mut FaultCollector) {
    const FIELD: &str = "spec.addresses.bind";
    let addresses = &document.spec.addresses;
    if document.spec.role == HypervisorRole::Private {
        if !addresses.bind.is_empty() {
            let help = "remove the addresses, or change the role to Public";
            faults.add(FIELD, "must be empty if the role is Private", help);
        }
        return;
    }
    if bind.is_empty() || public.len() != addresses.public.len() || bind.len() != addresses.bind.len() {
        return;
    }
    let family = |address: &IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
    for (index, address) in bind.iter().enumerate() {
        if !public.is_empty() && !public.iter().any(|public| family(public) == family(address)) {
            let problem = format!("{address} is an {} address, and spec.addresses.public has none", family(address));
            faults.add(&item(FIELD, index), problem, "remove it, or add a public address of this family");
        }
    }
    for wanted in ["IPv4", "IPv6"] {
        let Some(missed) = public.iter().find(|public| family(public) == wanted) else { continue };
        if !bind.iter().any(|address| family(address) == wanted) {
            let problem = format!("has no {wanted} address, and spec.addresses.public has {missed}");
            faults.add(FIELD, problem, "add the address of this machine to which the network translates it");
        }
    }
}
