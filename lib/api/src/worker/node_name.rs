//! The names that workers may have.

use crate::name::is_subdomain;

/// The maximum length of a Node's name, which is that of the label `kubernetes.io/hostname`.
pub const LONGEST_NODE_NAME: usize = 63;
/// The names of the API in every cluster.
const API_NAMES: [&str; 3] = ["kubernetes", "kubernetes.default", "localhost"];
/// The domains that no machine may be in: Services, loopback, and names in Keelway's own certificates.
const API_DOMAINS: [&str; 3] = ["svc", "localhost", "keelway"];

/// The reason that a worker may not have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NodeNameFault {
    /// The text is not a valid name of a Node.
    #[error(
        "it is not a valid name of a Node: it must consist of lowercase letters, digits, - and . (RFC 1123), at most \
         {LONGEST_NODE_NAME} characters"
    )]
    Form,
    /// Some programs interpret the name as an address.
    #[error("it must not end with a number, as an address does")]
    Address,
    /// A certificate for the name would be valid for the API.
    #[error("it is reserved for the API, for Services or for Keelway")]
    Reserved,
}

/// Checks whether a worker may have this name. Its serving certificate contains the name and is signed by the authority of the API's certificate.
/// `dns_domain` is that of the cluster. `api_names` are additional names of the API.
///
/// # Errors
///
/// The reason that the name is not allowed.
pub fn check_node_name<'a>(
    name: &str,
    dns_domain: &str,
    api_names: impl IntoIterator<Item = &'a str>,
) -> Result<(), NodeNameFault> {
    if name.len() > LONGEST_NODE_NAME || !is_subdomain(name) {
        return Err(NodeNameFault::Form);
    }
    if name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(NodeNameFault::Address);
    }
    let is_below = |domain: &str| name == domain || name.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    let of_services = Some(dns_domain).filter(|domain| !domain.is_empty()).and_then(|domain| name.strip_suffix(domain));
    let of_services = of_services.and_then(|rest| rest.strip_suffix('.'));
    let is_reserved = API_NAMES.contains(&name)
        || API_DOMAINS.into_iter().any(is_below)
        || name == dns_domain
        || of_services.is_some_and(|rest| rest.rsplit('.').next() == Some("svc"))
        || api_names.into_iter().any(|taken| covers(taken, name));
    if is_reserved { Err(NodeNameFault::Reserved) } else { Ok(()) }
}

/// Returns whether a certificate with this name is valid for another one. `*` stands for the first label.
fn covers(pattern: &str, name: &str) -> bool {
    let of_one_label = pattern.strip_prefix("*.").zip(name.split_once('.'));
    pattern.eq_ignore_ascii_case(name)
        || of_one_label.is_some_and(|(domain, (_, rest))| domain.eq_ignore_ascii_case(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str) -> Result<(), NodeNameFault> {
        check_node_name(name, "cluster.local", ["API.example.com", "*.wild.example.com"])
    }

    #[test]
    fn machines_have_their_names() {
        let longest = "a".repeat(LONGEST_NODE_NAME);
        for name in [
            "w1",
            "1w",
            "ip-10-0-0-1.ec2.internal",
            "kubernetes1",
            "my-svc",
            "w1.cluster.local",
            "w.example.com",
            &longest,
        ] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn no_worker_has_a_name_of_the_api() {
        let names = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "metrics-server.kube-system.svc",
            "svc",
            "svc.cluster.local",
            "cluster.local",
            "localhost",
            "a.localhost",
            "gateway.keelway",
            "keelway",
            "api.example.com",
            "a.wild.example.com",
        ];
        for name in names {
            assert_eq!(check(name), Err(NodeNameFault::Reserved), "{name}");
        }
    }

    #[test]
    fn no_worker_has_the_name_of_an_address() {
        for name in ["100.80.0.1", "1", "w.1", "127.1"] {
            assert_eq!(check(name), Err(NodeNameFault::Address), "{name}");
        }
    }

    #[test]
    fn other_text_is_no_name() {
        let long = "a".repeat(LONGEST_NODE_NAME + 1);
        for name in ["", "W1", "w 1", "w1.", "*.w1", "../w1", "w_1", "kubernetes\n", long.as_str()] {
            assert_eq!(check(name), Err(NodeNameFault::Form), "{name}");
        }
    }
}
