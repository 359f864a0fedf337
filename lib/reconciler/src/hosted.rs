//! Mints what a fleet in a Kubernetes cluster lacks, and builds its control plane.

use keelway_api::{Documents, jiff::Timestamp};
use keelway_planner::{HostedFleet, HostingError, HostingNamespace, hosted_fleet, hosted_requests, record_minted};

use crate::{MintError, Minter, certificates};

/// A control plane could not be built.
#[derive(Debug, thiserror::Error)]
pub enum HostedFleetError {
    /// The documents do not allow it.
    #[error(transparent)]
    Hosting(HostingError),
    /// A key or certificate could not be minted.
    #[error("cannot create the keys of the fleet")]
    Mint(#[source] MintError),
}

/// Mints what is missing and what is due into the documents, and returns the control plane.
///
/// # Errors
/// The documents do not contain one valid fleet, or an authority or key of it was lost.
pub fn mint_hosted_fleet(
    documents: &mut Documents,
    hosting: &HostingNamespace,
    minter: &mut impl Minter,
    now: Timestamp,
) -> Result<HostedFleet, HostedFleetError> {
    let certificates = certificates::read(documents);
    let requests = hosted_requests(documents, hosting, certificates, now).map_err(HostedFleetError::Hosting)?;
    minter.mint(documents, &requests, now).map_err(HostedFleetError::Mint)?;
    record_minted(documents);
    hosted_fleet(documents, hosting).map_err(HostedFleetError::Hosting)
}
