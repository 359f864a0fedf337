//! Distinguished names: organizations and a common name.

use x509_cert::{
    attr::AttributeTypeAndValue,
    der::{
        self, Decode, Encode,
        asn1::{Any, ObjectIdentifier, Utf8StringRef},
    },
    ext::pkix::name::DirectoryString,
    name::{Name, RdnSequence, RelativeDistinguishedName},
};

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");

/// The name that Kubernetes reads as a user (common name) and its groups (organizations). It is put
/// together from values, not from RFC 4514 text, so that no character in them has a meaning.
pub(crate) fn build(common_name: &str, organizations: &[String]) -> der::Result<Name> {
    let mut names = RdnSequence::default();
    for organization in organizations {
        names.push(attribute(ORGANIZATION, organization)?);
    }
    names.push(attribute(COMMON_NAME, common_name)?);
    Name::from_der(&names.to_der()?)
}

fn attribute(oid: ObjectIdentifier, value: &str) -> der::Result<RelativeDistinguishedName> {
    let value = Any::encode_from(&Utf8StringRef::new(value)?)?;
    RelativeDistinguishedName::try_from(vec![AttributeTypeAndValue { oid, value }])
}

/// The first common name, if there is one.
pub(crate) fn common_name(name: &Name) -> der::Result<Option<String>> {
    values(name, COMMON_NAME).next().transpose()
}

/// All organizations, in order.
pub(crate) fn organizations(name: &Name) -> der::Result<Vec<String>> {
    values(name, ORGANIZATION).collect()
}

fn values(name: &Name, oid: ObjectIdentifier) -> impl Iterator<Item = der::Result<String>> {
    name.iter()
        .filter(move |attribute| attribute.oid == oid)
        .map(|attribute| DirectoryString::try_from(&attribute.value).map(String::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_survives(
            common_name in ".{1,80}",
            organizations in prop::collection::vec(".{1,40}", 0..4),
        ) {
            let name = build(&common_name, &organizations).unwrap();
            prop_assert_eq!(super::common_name(&name).unwrap(), Some(common_name));
            prop_assert_eq!(super::organizations(&name).unwrap(), organizations);
        }
    }
}
