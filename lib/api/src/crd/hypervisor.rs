//! The checks of a Hypervisor by an API server.

use serde_json::{Value as Json, json};

use crate::validated::{FEWEST_PORTS, FIRST_PORT, LONGEST_SOCKET};

use super::{
    cel::{CelRule, is, rule, write},
    forms::{BRACKETED, ID, PORT, subdomain},
    name,
    schema::extend,
};

const ADDRESSES: [&str; 3] = ["spec.addresses.private", "spec.addresses.public", "spec.addresses.bind"];
const LISTENERS: [(&str, &str); 3] = [
    ("spec.endpoint.agent.address", "agent"),
    ("spec.endpoint.cri.address", "proxy"),
    ("spec.endpoint.cri.agentAddress", "agent"),
];
const SOCKETS: [&str; 3] =
    ["spec.endpoint.unix.path", "spec.endpoint.agent.unix.path", "spec.endpoint.cri.runtimeSocket"];

/// Adds the checks to the schema.
pub(super) fn refine(root: &mut Json) {
    bounds(root);
    let mut rules = name::rules();
    rules.extend(endpoint());
    rules.extend(LISTENERS.into_iter().flat_map(|(path, who)| listener(path, who)));
    rules.extend(SOCKETS.into_iter().flat_map(socket));
    rules.extend(ports());
    rules.extend(ADDRESSES.into_iter().flat_map(addresses));
    rules.extend(networks());
    write(root, rules);
}

/// Sets the maximum lengths of lists and texts. An API server rejects a rule whose cost is not bounded.
fn bounds(root: &mut Json) {
    let mut text = |path: &str, most: u32| extend(root, path, json!({"maxLength": most}));
    for path in ADDRESSES {
        text(&format!("{path}[]"), 64);
    }
    for (path, _) in LISTENERS {
        text(path, 261);
    }
    for path in SOCKETS {
        text(path, 4096);
    }
    text("spec.endpoint.agent.via", 253);
    text("spec.endpoint.cri.serverName", 253);
    text("spec.endpoint.cri.secretRef.namespace", 253);
    text("spec.endpoint.cri.secretRef.name", 253);
    for path in ADDRESSES {
        extend(root, path, json!({"maxItems": 16}));
    }
    extend(root, "status.installation", json!({"pattern": ID, "maxLength": 16}));
}

fn endpoint() -> Vec<CelRule> {
    let one = |fields: &[&str]| {
        let count: Vec<String> = fields.iter().map(|field| format!("({field} ? 1 : 0)")).collect();
        format!("{} == 1", count.join(" + "))
    };
    let agent = "spec.endpoint.agent";
    let dials_out = "(has(self.dialsOut) && self.dialsOut)";
    let named = "self.address.matches('^([0-9.]+|\\\\[.*\\\\]):')";
    vec![
        rule(
            "spec.endpoint",
            one(&["has(self.unix)", "has(self.agent)", "has(self.cri)"]),
            "several fields or none are set, but exactly one is required; set exactly one of unix, agent, cri",
        ),
        rule(
            agent,
            one(&["has(self.unix)", "has(self.address)", dials_out]),
            "several fields or none are set, but exactly one is required; set exactly one of unix, address, dialsOut",
        ),
        rule(
            agent,
            format!("!{dials_out} || has(self.via)"),
            "via: is required if dialsOut is true; write the name of a public Hypervisor whose agent \
             listens on a network",
        ),
        rule(
            agent,
            "!has(self.unix) || !has(self.via)",
            "via: must not be set together with unix: the socket is on this machine; remove it",
        ),
        rule(
            agent,
            format!("!has(self.via) || !has(self.address) || {named}"),
            "address: the agent of {self.via} does not resolve DNS names, and \"{self.address}\" contains one; write an IP \
             address and a port, such as \
             10.0.0.11:7443",
        ),
        rule(
            "spec.endpoint.cri.serverName",
            format!("isIP(self) || {}", is("self", &subdomain())),
            "\"{self}\" is neither a DNS name nor an address; write the DNS name or address in the certificate of the proxy, such as \
             hv-1.example.com",
        ),
        secret("namespace"),
        secret("name"),
    ]
}

fn secret(field: &str) -> CelRule {
    rule(
        format!("spec.endpoint.cri.secretRef.{field}"),
        is("self", &subdomain()),
        format!(
            "\"{{self}}\" is not a valid {field} of a Secret; write the namespace and the name of the Secret with tls.crt, \
             tls.key and ca.crt"
        ),
    )
}

/// Returns the rules for `HOST:PORT`.
fn listener(path: &str, who: &str) -> [CelRule; 2] {
    let host = "self.substring(0, self.lastIndexOf(':')).replace('[', '').replace(']', '')";
    let form = is("self", &format!("({}|{BRACKETED}):{PORT}", subdomain()));
    // A host in brackets, or one that consists of digits and dots, can only be an address.
    let is_literal = "self.matches('^([0-9.]+:|\\\\[)')";
    let sound = format!("({form} && (!{is_literal} || isIP({host})))");
    [
        rule(
            path,
            sound.clone(),
            format!(
                "\"{{self}}\" is not HOST:PORT; write the address at which the {who} listens, such as 10.0.0.5:7443, [fd00::5]:7443 or \
                 hv-1.example.com:7443"
            ),
        ),
        rule(
            path,
            format!("!{sound} || !{is_literal} || ip({host}).isLoopback() || ip({host}).isGlobalUnicast()"),
            format!(
                "{{{host}}} is not an address of one machine; write the address at which this machine reaches the {who}"
            ),
        ),
    ]
}

fn socket(path: &str) -> [CelRule; 2] {
    [
        rule(
            path,
            "self.startsWith('/')",
            "\"{self}\" is not an absolute path; write the path of the socket, which starts with /, without unix://",
        ),
        rule(
            path,
            format!("size(bytes(self)) <= {LONGEST_SOCKET}"),
            format!(
                "must have at most {LONGEST_SOCKET} bytes; move the socket, or create a symbolic link to it: Linux does not \
                 support longer paths of sockets"
            ),
        ),
    ]
}

fn ports() -> Vec<CelRule> {
    let path = "spec.portRange";
    vec![
        rule(
            path,
            "self.from <= self.to",
            "from must not be greater than to; write the first port into from, and the last port into to",
        ),
        rule(
            path,
            format!("self.from > self.to || self.from >= {FIRST_PORT}"),
            format!(
                "from: must be at least {FIRST_PORT}; choose a higher port: lower ones are reserved for the system"
            ),
        ),
        rule(
            path,
            format!("self.from > self.to || self.to - self.from + 1 >= {FEWEST_PORTS}"),
            format!("must contain at least {FEWEST_PORTS} ports; choose a larger range"),
        ),
    ]
}

fn addresses(path: &str) -> [CelRule; 3] {
    let what = "ip(self).isUnspecified() ? 'the unspecified address' : ip(self).isLoopback() ? 'a loopback address' : \
                ip(self).isLinkLocalUnicast() || self == '255.255.255.255' ? 'a link-local, broadcast or IPv4-mapped address' : 'a multicast address'";
    let each = format!("{path}[]");
    [
        rule(
            each.clone(),
            "isIP(self)",
            "\"{self}\" is not an IP address; write an address such as 10.0.0.11 or fd00::11, without a port or a prefix length",
        ),
        rule(
            each,
            "!isIP(self) || ip(self).isGlobalUnicast()",
            format!("{{self}} is {{({what})}}; write an address that other machines can reach"),
        ),
        rule(
            path,
            "self.all(one, self.exists_one(other, one == other))",
            "an address is listed twice; remove one of them",
        ),
    ]
}

fn networks() -> Vec<CelRule> {
    let public = "self.addresses.public.size()";
    vec![
        rule(
            "spec",
            "self.addresses.private.size() > 0",
            "addresses.private: must have at least one address; write an address of this machine in the network of hypervisors",
        ),
        rule(
            "spec",
            format!("self.role != 'Public' || {public} > 0"),
            "addresses.public: must have at least one address if the role is Public; write an address that users of clusters \
             can reach, or change the role to Private",
        ),
        rule(
            "spec",
            format!("self.role != 'Private' || {public} == 0"),
            "addresses.public: must be empty if the role is Private; remove the addresses, or change the role to Public",
        ),
        rule(
            "spec",
            "self.role != 'Private' || !has(self.addresses.bind) || self.addresses.bind.size() == 0",
            "addresses.bind: must be empty if the role is Private; remove the addresses, or change the role to Public",
        ),
        rule(
            "spec.addresses",
            format!("!has(self.bind) || {}", families("bind", "public")),
            "bind: an address has a family that no public address has; remove it, or add a public address of this family",
        ),
        rule(
            "spec.addresses",
            format!("!has(self.bind) || self.bind.size() == 0 || {}", families("public", "bind")),
            "bind: has no address of a family that a public address has; add the address of this machine to which the network \
             translates it",
        ),
    ]
}

/// Returns a condition: each family of the one list is in the other one, unless that is empty or an address is ill-formed.
fn families(of: &str, within: &str) -> String {
    format!(
        "self.{within}.size() == 0 || !self.{of}.all(one, isIP(one)) || !self.{within}.all(one, isIP(one)) || \
         self.{of}.all(one, self.{within}.exists(other, ip(one).family() == ip(other).family()))"
    )
}
