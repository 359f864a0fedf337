//! IPv6 forwarding, without the loss of a default route.
//!
//! When forwarding is enabled, the kernel removes the default routes that routers advertised, except on interfaces with `accept_ra=2`. A
//! machine that is reachable only over IPv6 would then be lost.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use keelway_base::error_chain::ErrorChain;
use keelway_vpn::netlink::{NetlinkError, default_route::DefaultRoute};

use crate::{changes::Changes, files::NodeFileError, settings::Layout, sysctl};

/// The setting for all interfaces.
pub(crate) const IPV6_FORWARDING: &str = "net/ipv6/conf/all/forwarding";

/// The value of `accept_ra` with which an interface accepts advertisements although it forwards.
pub(crate) const ACCEPT_RA: &str = "2";

/// IPv6 forwarding cannot be enabled.
#[derive(Debug, thiserror::Error)]
pub enum ForwardingError {
    /// A setting cannot be read or changed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The kernel does not list its routes.
    #[error(
        "cannot list the default routes of IPv6, which IPv6 forwarding could remove; IPv6 forwarding stays disabled"
    )]
    Routes(#[source] NetlinkError),
    /// The kernel removed default routes.
    #[error(
        "IPv6 forwarding removed the default route of {}, and was disabled again; configure that route statically, or set net.ipv6.conf.INTERFACE.accept_ra=2 there",
        .0.join(" and of ")
    )]
    RouteLost(Vec<String>),
}

/// Enables forwarding. It succeeds if the kernel has no IPv6.
pub(crate) fn enable_ipv6(layout: &Layout) -> Result<(), ForwardingError> {
    let Some(before) = sysctl::read(IPV6_FORWARDING) else { return Ok(()) };
    let routes = DefaultRoute::list().map_err(ForwardingError::Routes)?;
    accept_advertisements(layout, &routes)?;
    if before == "1" {
        return Ok(());
    }
    sysctl::change(layout, IPV6_FORWARDING, "1")?;
    let lost = DefaultRoute::list().map(|now| routes.difference(&now).cloned().collect::<Vec<_>>());
    if matches!(&lost, Ok(lost) if lost.is_empty()) {
        return Ok(());
    }
    sysctl::write(IPV6_FORWARDING, &before)?;
    let lost = lost.map_err(ForwardingError::Routes)?;
    for route in &lost {
        if let Err(error) = route.add() {
            tracing::error!(?route, "cannot restore a default route: {}", ErrorChain(&error));
        }
    }
    Err(ForwardingError::RouteLost(lost.iter().map(name).collect()))
}

/// Makes uplinks accept advertisements while the machine forwards: those with an advertised route now, and, after a reboot, those that had one.
fn accept_advertisements(layout: &Layout, routes: &BTreeSet<DefaultRoute>) -> Result<(), NodeFileError> {
    let now = routes.iter().filter(|route| route.is_advertised).filter_map(|route| route.interface().ok());
    let earlier = Changes::read(layout)?.sysctls.into_keys().filter(|name| is_accept_ra(name));
    let settings: BTreeSet<String> = now.map(|interface| accept_ra(&interface)).chain(earlier).collect();
    // 0 means that another program reads the advertisements.
    let own = settings.iter().filter(|name| sysctl::read(name).as_deref() == Some("1"));
    own.into_iter().try_for_each(|name| sysctl::change(layout, name, ACCEPT_RA))
}

fn accept_ra(interface: &str) -> String {
    format!("net/ipv6/conf/{interface}/accept_ra")
}

/// Whether a setting is `accept_ra` of an interface.
pub(crate) fn is_accept_ra(name: &str) -> bool {
    name.ends_with("/accept_ra")
}

fn name(route: &DefaultRoute) -> String {
    let interface = route.interface().unwrap_or_else(|_| "a removed interface".to_owned());
    route.gateway.map_or_else(|| interface.clone(), |gateway| format!("{interface} via {gateway}"))
}
