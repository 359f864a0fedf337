//! Names and ids that the rest of Keelway is addressed by.

use core::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest name of a Cluster or Hypervisor, in characters.
///
/// Names derived from it (`NAME-kube-controller-manager-99`) stay within the 63 characters of an RFC 1123 label.
pub const LONGEST_NAME: usize = 32;

/// The text is not what a name or id of this kind may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not {expected}")]
pub struct NameError {
    pub(crate) value: String,
    pub(crate) expected: &'static str,
}

/// Whether `text` is an RFC 1123 label of at most `longest` characters.
#[must_use]
pub fn is_label(text: &str, longest: usize) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty()
        && text.len() <= longest
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether `text` is an RFC 1123 subdomain: labels joined by dots, at most 253 characters.
#[must_use]
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|label| is_label(label, 63))
}

/// A name is read from its text and shown as it.
macro_rules! is_text {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.as_str().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

macro_rules! text_newtype {
    ($(#[$meta:meta])* $name:ident, $expected:literal, $valid:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(with = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(NameError { value: text.to_owned(), expected: $expected })
                }
            }
        }

        is_text!($name);
    };
}

/// Hexadecimal digits in an id: 64 random bits.
pub const ID_DIGITS: usize = 16;

fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// Names that are looked up more than anything else hold their characters themselves, so that a comparison follows no
/// pointer. What is short ends in zeros, which keeps the order of texts.
macro_rules! short_newtype {
    ($(#[$meta:meta])* $name:ident, $longest:ident, $expected:literal, $valid:expr) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(with = "String")]
        pub struct $name([u8; $longest]);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                let end = self.0.iter().position(|byte| *byte == 0).unwrap_or($longest);
                // It was made of text.
                self.0.get(..end).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                let valid: fn(&str) -> bool = $valid;
                let mut bytes = [0; $longest];
                match bytes.get_mut(..text.len()).filter(|_| valid(text)) {
                    Some(place) => place.copy_from_slice(text.as_bytes()),
                    None => return Err(NameError { value: text.to_owned(), expected: $expected }),
                }
                Ok(Self(bytes))
            }
        }

        is_text!($name);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.as_str()).finish()
            }
        }
    };
}

short_newtype!(
    /// `Cluster.status.id`: random, minted once, never derived from a name. Paths, pod uids and labels on machines come from it.
    ClusterId,
    ID_DIGITS,
    "an id of 16 lowercase hexadecimal digits",
    is_id
);
short_newtype!(
    /// The one owner of a set of machines, `Hypervisor.status.installation`.
    InstallationId,
    ID_DIGITS,
    "an id of 16 lowercase hexadecimal digits",
    is_id
);
short_newtype!(
    /// `Hypervisor.metadata.name`.
    HypervisorName,
    LONGEST_NAME,
    "an RFC 1123 label of at most 32 characters",
    |text| is_label(text, LONGEST_NAME)
);
text_newtype!(
    /// The name of a component within its cluster: `etcd-0`.
    ComponentName,
    "a role and a number, such as etcd-0",
    |text| is_label(text, 63)
);

/// What a cluster's namespace is called before its id.
pub const NAMESPACE_PREFIX: &str = "keelway-";

impl ClusterId {
    /// The namespace that holds this cluster's Components and Secrets: `keelway-ID`.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("{NAMESPACE_PREFIX}{self}")
    }

    /// The cluster that a namespace is of.
    #[must_use]
    pub fn of_namespace(namespace: &str) -> Option<Self> {
        namespace.strip_prefix(NAMESPACE_PREFIX)?.parse().ok()
    }
}

/// What an installation's namespace is called before its id.
pub(crate) const INSTALLATION_NAMESPACE_PREFIX: &str = "keelway-installation-";

impl InstallationId {
    /// The namespace that holds this installation's Secrets: `keelway-installation-ID`.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("{INSTALLATION_NAMESPACE_PREFIX}{self}")
    }
}

/// Whether a namespace is one that Keelway makes: a cluster's or an installation's.
#[must_use]
pub fn is_own_namespace(namespace: &str) -> bool {
    ClusterId::of_namespace(namespace).is_some() || namespace.starts_with(INSTALLATION_NAMESPACE_PREFIX)
}

/// The longest name of a namespace, in characters.
pub(crate) const LONGEST_NAMESPACE: usize = 63;

/// A namespace, where the text can be the name of one.
pub(crate) fn namespace(text: &str) -> Result<String, NameError> {
    let expected = "a namespace: an RFC 1123 label of at most 63 characters";
    let read = is_label(text, LONGEST_NAMESPACE).then(|| text.to_owned());
    read.ok_or_else(|| NameError { value: text.to_owned(), expected })
}

impl ClusterRef {
    /// Reads the namespace and the name of a Cluster.
    ///
    /// # Errors
    /// One of them can be none of a Cluster.
    pub fn parse(namespace: &str, name: &str) -> Result<Self, NameError> {
        let expected = "an RFC 1123 label of at most 32 characters";
        if !is_label(name, LONGEST_NAME) {
            return Err(NameError { value: name.to_owned(), expected });
        }
        Ok(Self { namespace: self::namespace(namespace)?, name: name.to_owned() })
    }
}

/// A Cluster document as people name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterRef {
    /// `metadata.namespace` of the Cluster.
    pub namespace: String,
    /// `metadata.name` of the Cluster.
    pub name: String,
}

impl fmt::Display for ClusterRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "default" => f.pad(&self.name),
            namespace => f.pad(&format!("{namespace}/{}", self.name)),
        }
    }
}

/// A component on a machine: which cluster, and which of its components.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct PodName {
    /// The cluster's id.
    pub cluster: ClusterId,
    /// The component within it.
    pub component: ComponentName,
}

impl PodName {
    /// What stands before every component of this cluster in the order of names, and is none itself.
    pub(crate) fn before_all_of(cluster: &ClusterId) -> Self {
        Self { cluster: cluster.clone(), component: ComponentName(String::new()) }
    }
}

impl FromStr for PodName {
    type Err = NameError;
    /// Reads what [`PodName`] is displayed as.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let (cluster, component) = text.split_once('/').ok_or_else(|| NameError {
            value: text.to_owned(),
            expected: "a cluster's id and a component, such as 0123456789abcdef/etcd-0",
        })?;
        Ok(Self { cluster: cluster.parse()?, component: component.parse()? })
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.component)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_follow_rfc_1123() {
        for good in ["a", "c1", "a-b", "0"] {
            assert!(is_label(good, 63), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a.b", "a_b", "ü"] {
            assert!(!is_label(bad, 63), "{bad}");
        }
        assert!(!is_label(&"a".repeat(33), LONGEST_NAME));
    }

    #[test]
    fn short_names_keep_their_text_and_its_order() {
        let texts = ["a", "a-1", "a1", "a10", "a2", &"b".repeat(LONGEST_NAME), "c"];
        let names = texts.map(|text| text.parse::<HypervisorName>().unwrap());
        assert_eq!(names.each_ref().map(HypervisorName::as_str), texts);
        assert!(names.is_sorted());
        assert!("b".repeat(LONGEST_NAME + 1).parse::<HypervisorName>().is_err());
    }

    #[test]
    fn ids_are_sixteen_hexadecimal_digits() {
        assert!("0123456789abcdef".parse::<ClusterId>().is_ok());
        assert!("0123456789ABCDEF".parse::<ClusterId>().is_err());
        assert!("0123".parse::<ClusterId>().is_err());
    }
}
