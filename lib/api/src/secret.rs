//! `v1/Secret` in as little memory as possible: an installation has a dozen for each of its clusters.

use core::fmt;

use k8s_openapi::{
    ByteString,
    api::core::v1,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::entries::CompactMap;

/// A Secret with the serialized form of Kubernetes' type.
#[derive(Clone, Default, PartialEq)]
pub struct Secret {
    /// The name, namespace and labels, and other metadata.
    pub metadata: Metadata,
    /// The values, by key.
    pub data: Option<CompactMap<ByteString>>,
    /// The type. `None` means `Opaque`.
    pub type_: Option<String>,
    /// Whether the values are immutable.
    pub immutable: Option<bool>,
}

/// Metadata of an object. Most objects have few fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    /// `name`.
    pub name: Option<String>,
    /// `namespace`.
    pub namespace: Option<String>,
    /// `labels`.
    pub labels: Option<CompactMap<String>>,
    /// All other fields.
    pub rest: Option<Box<ObjectMeta>>,
}

impl Metadata {
    /// `creationTimestamp`.
    #[must_use]
    pub fn creation_timestamp(&self) -> Option<&Time> {
        self.rest.as_ref()?.creation_timestamp.as_ref()
    }
}

impl From<ObjectMeta> for Metadata {
    fn from(mut all: ObjectMeta) -> Self {
        let (name, namespace) = (all.name.take(), all.namespace.take());
        let labels = all.labels.take().map(CompactMap::from_iter);
        let rest = (all != ObjectMeta::default()).then(|| all.into());
        Self { name, namespace, labels, rest }
    }
}

impl From<Metadata> for ObjectMeta {
    fn from(metadata: Metadata) -> Self {
        let Metadata { name, namespace, labels, rest } = metadata;
        let labels = labels.map(|labels| labels.into_iter().collect());
        Self { name, namespace, labels, ..rest.map(|rest| *rest).unwrap_or_default() }
    }
}

/// kube-apiserver also merges `stringData`, a field for people, into `data`.
impl From<v1::Secret> for Secret {
    fn from(secret: v1::Secret) -> Self {
        let v1::Secret { metadata, data, immutable, string_data, type_ } = secret;
        let mut data: Option<CompactMap<ByteString>> = data.map(CompactMap::from_iter);
        if let Some(texts) = string_data {
            let texts = texts.into_iter().map(|(key, text)| (key, ByteString(text.into_bytes())));
            data.get_or_insert_default().extend(texts);
        }
        Self { metadata: metadata.into(), data, type_, immutable }
    }
}

impl From<Secret> for v1::Secret {
    fn from(secret: Secret) -> Self {
        let Secret { metadata, data, type_, immutable } = secret;
        let data = data.map(|data| data.into_iter().collect());
        Self { metadata: metadata.into(), data, immutable, string_data: None, type_ }
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        v1::Secret::from(self.clone()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        v1::Secret::deserialize(deserializer).map(Self::from)
    }
}

/// Prints the keys, not the values.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Option<Vec<&String>> = self.data.as_ref().map(|data| data.keys().collect());
        f.debug_struct("Secret")
            .field("metadata", &self.metadata)
            .field("data", &keys)
            .field("type_", &self.type_)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_of_it_is_lost_and_no_value_shown() {
        let written = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": true, "data": { "a": "b25l", "b": "dHdv" },
            "metadata": {
                "name": "n", "namespace": "ns", "labels": { "l": "1", "k": "2" }, "annotations": { "a": "b" },
                "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u", "finalizers": ["f"],
            },
        });
        let secret: Secret = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&secret).unwrap(), written);
        assert!(secret.metadata.creation_timestamp().is_some());
        let shown = format!("{secret:?}");
        assert!(shown.contains(r#"["a", "b"]"#) && !shown.contains("111"), "{shown}");
    }

    #[test]
    fn metadata_with_only_a_name_allocates_nothing_else() {
        let secret: Secret = serde_json::from_value(json!({ "metadata": { "name": "n" }, "data": {} })).unwrap();
        assert_eq!(secret.metadata.rest, None);
        assert_eq!(secret.data, Some(CompactMap::default()));
    }

    #[test]
    fn texts_are_data() {
        let written = json!({ "metadata": {}, "data": { "a": "b25l" }, "stringData": { "a": "two", "b": "three" } });
        let data = serde_json::from_value::<Secret>(written).unwrap().data.unwrap();
        assert_eq!((&*data["a"].0, &*data["b"].0), (&b"two"[..], &b"three"[..]));
    }
}
