//! The checks of a Hypervisor by an API server.

use serde_json::{Value as Json, json};

use crate::validated::{FEWEST_PORTS, FIRST_PORT, LONGEST_SOCKET};

use super::{
    cel::{CelRule, is, rule, write},
    forms::{BRACKETED, ID, PORT, subdomain},
    name,
    schema::extend,
};

const ADDRESSES: [&str; 2] = ["spec.addresses.private", "spec.addresses.public"];
const LISTENERS: [(&str, &str); 2] = [("spec.endpoint.agent.address", "agent"), ("spec.endpoint.cri.address", "proxy")];
const SOCKETS: [&str; 2] = ["spec.endpoint.unix.path", "spec.endpoint.agent.unix.path"];

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
            "several fields or none are given where one is wanted; give exactly one of unix, agent, cri",
        ),
        rule(
            agent,
            one(&["has(self.unix)", "has(self.address)", dials_out]),
            "several fields or none are given where one is wanted; give exactly one of unix, address, dialsOut",
        ),
        rule(
            agent,
            format!("!{dials_out} || has(self.via)"),
            "via: it is not said where an agent that dials out waits to be called; write the name of a public Hypervisor whose agent \
             listens on a network",
        ),
        rule(
            agent,
            "!has(self.unix) || !has(self.via)",
            "via: no other machine is on the way to a socket of this one; take it away",
        ),
        rule(
            agent,
            format!("!has(self.via) || !has(self.address) || {named}"),
            "address: the agent of {self.via} looks up no names, and \"{self.address}\" has one; write an address and a port, such as \
             10.0.0.11:7443",
        ),
        rule(
            "spec.endpoint.cri.serverName",
            format!("isIP(self) || {}", is("self", &subdomain())),
            "\"{self}\" is no name of a certificate; write the DNS name or address that the proxy's certificate is for, such as \
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
            "\"{{self}}\" is no {field} of a Secret; write namespace and name of the Secret with tls.crt, tls.key and ca.crt"
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
                "\"{{self}}\" is not HOST:PORT; write where the {who} listens, such as 10.0.0.5:7443, [fd00::5]:7443 or \
                 hv-1.example.com:7443"
            ),
        ),
        rule(
            path,
            format!("!{sound} || !{is_literal} || ip({host}).isLoopback() || ip({host}).isGlobalUnicast()"),
            format!("{{{host}}} is no address of one machine; write where this machine reaches the {who}"),
        ),
    ]
}

fn socket(path: &str) -> [CelRule; 2] {
    [
        rule(
            path,
            "self.startsWith('/')",
            "\"{self}\" is no absolute path; write the path of the socket from / on, without unix://",
        ),
        rule(
            path,
            format!("size(bytes(self)) <= {LONGEST_SOCKET}"),
            format!(
                "the path is too long; Linux takes at most {LONGEST_SOCKET} bytes for a socket; move it, or link to it"
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
            "the range is reversed; write the first port into from, and the last into to",
        ),
        rule(
            path,
            format!("self.from > self.to || self.from >= {FIRST_PORT}"),
            format!("from: it is a port of the system; begin at {FIRST_PORT} or above"),
        ),
        rule(
            path,
            format!("self.from > self.to || self.to - self.from + 1 >= {FEWEST_PORTS}"),
            format!("the range has too few ports; give at least {FEWEST_PORTS}"),
        ),
    ]
}

fn addresses(path: &str) -> [CelRule; 3] {
    let what = "ip(self).isUnspecified() ? 'the unspecified address' : ip(self).isLoopback() ? 'a loopback address' : \
                ip(self).isLinkLocalUnicast() || self == '255.255.255.255' ? 'an address of one link or of no network' : 'a multicast address'";
    let each = format!("{path}[]");
    [
        rule(
            each.clone(),
            "isIP(self)",
            "\"{self}\" is no IP address; write an address such as 10.0.0.11 or fd00::11, without a port or a prefix length",
        ),
        rule(
            each,
            "!isIP(self) || ip(self).isGlobalUnicast()",
            format!("{{self}} is {{({what})}}; write an address that other machines reach"),
        ),
        rule(
            path,
            "self.all(one, self.exists_one(other, one == other))",
            "an address is given twice; keep one of them",
        ),
    ]
}

fn networks() -> Vec<CelRule> {
    let public = "self.addresses.public.size()";
    vec![
        rule(
            "spec",
            "self.addresses.private.size() > 0",
            "addresses.private: the machine has no address in the network of hypervisors; give at least one",
        ),
        rule(
            "spec",
            format!("self.role != 'Public' || {public} > 0"),
            "addresses.public: a public machine has no address that users of clusters reach; give at least one, or make it Private",
        ),
        rule(
            "spec",
            format!("self.role != 'Private' || {public} == 0"),
            "addresses.public: a private machine has a public address; take it away, or make the machine Public",
        ),
    ]
}
