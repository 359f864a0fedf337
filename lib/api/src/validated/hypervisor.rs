//! Validates a Hypervisor.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeSet;

use crate::{
    Hypervisor,
    fault::Fault,
    hypervisor::{AgentEndpoint, CriEndpoint, HypervisorEndpoint, HypervisorRole, PortRange},
    name::is_subdomain,
    tree::item,
};

use super::{FaultCollector, ValidatedHypervisor, ZONE_LABEL, check_name, labels::check_metadata};

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
            faults.add("metadata.namespace", "a Hypervisor is in no namespace", "take it away");
        }
        check_endpoint(&spec.endpoint, &mut faults);
        check_ports(spec.port_range, &mut faults);
        let private = addresses("spec.addresses.private", &spec.addresses.private, &mut faults);
        let public = addresses("spec.addresses.public", &spec.addresses.public, &mut faults);
        check_networks(document, &mut faults);
        let zone = metadata.labels.as_ref().and_then(|labels| labels.get(ZONE_LABEL));
        let built = metadata.name.clone().unwrap_or_default().parse().ok();
        faults.or(built.map(|name| Self {
            name,
            role: spec.role,
            endpoint: spec.endpoint.clone(),
            private,
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
        let help = "write the DNS name or address that the proxy's certificate is for, such as hv-1.example.com";
        faults.add("spec.endpoint.cri.serverName", format!("{name:?} is no name of a certificate"), help);
    }
    for (field, text) in [("namespace", &cri.secret_ref.namespace), ("name", &cri.secret_ref.name)] {
        if !is_subdomain(text) {
            let help = "write namespace and name of the Secret with tls.crt, tls.key and ca.crt";
            let problem = format!("{text:?} is no {field} of a Secret");
            faults.add(&format!("spec.endpoint.cri.secretRef.{field}"), problem, help);
        }
    }
}

fn check_agent(agent: &AgentEndpoint, faults: &mut FaultCollector) {
    let ways = [agent.unix.is_some(), agent.address.is_some(), agent.dials_out];
    let given = ways.into_iter().filter(|given| *given).count();
    if given != 1 {
        let count = if given > 1 { "several fields are" } else { "no field is" };
        let problem = format!("{count} given where one is wanted");
        faults.add("spec.endpoint.agent", problem, "give exactly one of unix, address, dialsOut");
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
            let problem = "it is not said where an agent that dials out waits to be called";
            faults.add(FIELD, problem, "write the name of a public Hypervisor whose agent listens on a network");
        }
        Some(_) if agent.unix.is_some() => {
            faults.add(FIELD, "no other machine is on the way to a socket of this one", "take it away");
        }
        Some(via) => {
            let named = agent.address.as_ref().filter(|address| address.parse::<SocketAddr>().is_err());
            if let Some(address) = named {
                let problem = format!("the agent of {via} looks up no names, and {address:?} has one");
                faults.add(
                    "spec.endpoint.agent.address",
                    problem,
                    "write an address and a port, such as 10.0.0.11:7443",
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
                faults.add(field, format!("{ip} is {what}"), format!("write where this machine reaches the {who}"));
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
        let help =
            format!("write where the {who} listens, such as 10.0.0.5:7443, [fd00::5]:7443 or hv-1.example.com:7443");
        faults.add(field, format!("{text:?} is not HOST:PORT"), help);
    }
}

fn check_socket(field: &str, path: &str, faults: &mut FaultCollector) {
    if !path.starts_with('/') {
        faults.add(
            field,
            format!("{path:?} is no absolute path"),
            "write the path of the socket from / on, without unix://",
        );
    } else if path.len() > LONGEST_SOCKET {
        faults.add(
            field,
            format!("the path has {} bytes", path.len()),
            format!("Linux takes at most {LONGEST_SOCKET} for a socket; move it, or link to it"),
        );
    }
}

fn check_ports(range: PortRange, faults: &mut FaultCollector) {
    let PortRange { from, to } = range;
    if from > to {
        faults.add(
            "spec.portRange",
            format!("the range is reversed: {from} is after {to}"),
            format!("write from: {to} and to: {from}"),
        );
        return;
    }
    if from < FIRST_PORT {
        faults.add(
            "spec.portRange.from",
            format!("{from} is a port of the system"),
            format!("begin at {FIRST_PORT} or above"),
        );
    }
    let ports = u32::from(to - from) + 1;
    if ports < FEWEST_PORTS {
        faults.add("spec.portRange", format!("the range has {ports} ports"), format!("give at least {FEWEST_PORTS}"));
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
            faults.add(&field, format!("{address} is given twice"), "keep one of them");
        }
        found.push(address);
    }
    found
}

fn address(field: &str, text: &str) -> Result<IpAddr, Fault> {
    let Ok(address) = text.parse::<IpAddr>() else {
        return Err(Fault::of(
            field,
            format!("{text:?} is no IP address"),
            "write an address such as 10.0.0.11 or fd00::11, without a port or a prefix length",
        ));
    };
    match unusable(address) {
        Some(what) => {
            Err(Fault::of(field, format!("{address} is {what}"), "write an address that other machines reach"))
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
        () if link_local => Some("an address of one link or of no network"),
        () => None,
    }
}

fn check_networks(document: &Hypervisor, faults: &mut FaultCollector) {
    let addresses = &document.spec.addresses;
    if addresses.private.is_empty() {
        faults.add(
            "spec.addresses.private",
            "the machine has no address in the network of hypervisors",
            "give at least one",
        );
    }
    match document.spec.role {
        HypervisorRole::Public if addresses.public.is_empty() => faults.add(
            "spec.addresses.public",
            "a public machine has no address that users of clusters reach",
            "give at least one, or make it Private",
        ),
        HypervisorRole::Private if !addresses.public.is_empty() => faults.add(
            "spec.addresses.public",
            "a private machine has a public address",
            "take it away, or make the machine Public",
        ),
        HypervisorRole::Public | HypervisorRole::Private => {}
    }
}
