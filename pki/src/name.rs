//! Distinguished names: an organization and a common name.

use std::collections::BTreeSet;

use rcgen::{DistinguishedName, DnType};
use x509_parser::{
    error::X509Error,
    x509::{AttributeTypeAndValue, X509Name},
};

/// The name that Kubernetes reads as a user (common name) and its group (organization). It is put
/// together from values, not from RFC 4514 text, so that no character in them has a meaning.
pub(crate) fn build(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

/// The first common name, if there is one.
pub(crate) fn common_name(name: &X509Name<'_>) -> Result<Option<String>, X509Error> {
    name.iter_common_name().next().map(text).transpose()
}

/// All organizations, in order.
pub(crate) fn organizations(name: &X509Name<'_>) -> Result<Vec<String>, X509Error> {
    name.iter_organization().map(text).collect()
}

fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String, X509Error> {
    attribute.as_str().map(ToOwned::to_owned)
}

/// Whether rcgen writes the name into the certificates below it as it is here: its
/// `DistinguishedName` is a map, which of an attribute that is there twice keeps one, and it has no
/// parts of two attributes.
pub(crate) fn is_kept(name: &X509Name<'_>) -> bool {
    let mut kinds = BTreeSet::new();
    name.iter_rdn().all(|part| part.iter().count() == 1)
        && name.iter_attributes().all(|attribute| kinds.insert(attribute.attr_type().as_bytes()))
}
