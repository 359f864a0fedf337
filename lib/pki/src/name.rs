//! Distinguished names that consist of an organization and a common name.

use std::collections::BTreeSet;

use rcgen::{DistinguishedName, DnType};
use x509_parser::{
    error::X509Error,
    x509::{AttributeTypeAndValue, X509Name},
};

/// Builds the name that Kubernetes reads as a user (common name) and its group (organization). The name is built from values and not from RFC
/// 4514 text, so no character in them needs escaping.
pub(crate) fn build(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

/// Returns the first common name, if there is one.
pub(crate) fn common_name(name: &X509Name<'_>) -> Result<Option<String>, X509Error> {
    name.iter_common_name().next().map(text).transpose()
}

/// Returns all organizations, in order.
pub(crate) fn organizations(name: &X509Name<'_>) -> Result<Vec<String>, X509Error> {
    name.iter_organization().map(text).collect()
}

fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String, X509Error> {
    attribute.as_str().map(ToOwned::to_owned)
}

/// Returns whether rcgen can copy the name unchanged into the certificates that it issues. Its `DistinguishedName` is a map: it keeps one
/// value of an attribute that occurs twice, and it cannot represent an RDN with two attributes.
pub(crate) fn is_kept(name: &X509Name<'_>) -> bool {
    let mut kinds = BTreeSet::new();
    name.iter_rdn().all(|part| part.iter().count() == 1)
        && name.iter_attributes().all(|attribute| kinds.insert(attribute.attr_type().as_bytes()))
}
