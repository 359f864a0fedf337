//! Which fields of a Cluster may change after its etcd members were created. One table, from which the rules of `validate`, of the manager and of API
//! servers ([`crate::crd`]) are made.

use core::{
    net::{IpAddr, SocketAddr},
    slice,
};

pub use crate::cluster::{ClusterBirth, VpnBirth};

use crate::{
    Cluster, Documents,
    cluster::{ClusterSpec, VPN_MTU},
    component::ComponentSpec,
    document::DocumentName,
    fault::Fault,
    name::{ClusterId, ClusterRef, ComponentName, PodName},
    release::{Release, find},
};

/// How a field of a Cluster may change after its etcd members were created.
#[derive(Debug, Clone, Copy)]
pub enum FieldChange {
    /// It may change at any time.
    Free,
    /// It may name another release of the same minor version or of a later one. Components are upgraded one after the other, and skip no minor version.
    NoMinorDown,
    /// It is immutable once `status.ingressPort` records it: tokens, kubeconfigs and workers contain it.
    OnceReserved,
    /// It is immutable: keys, certificates, tokens or the data of the store depend on it.
    Never(ImmutableField),
    /// It stays present or absent: the store of a fleet holds objects that no cluster can run, and the store of a cluster those that no fleet needs.
    NeverAddedOrRemoved,
}

/// The two places of the value of an immutable field.
#[derive(Debug, Clone, Copy)]
pub struct ImmutableField {
    /// In a spec.
    pub in_spec: fn(&ClusterSpec) -> &[String],
    /// In `status.birth`.
    pub in_birth: fn(&ClusterBirth) -> &[String],
}

/// A field of a Cluster, or all below it.
#[derive(Debug, Clone, Copy)]
pub struct ChangeRow {
    /// Its path, as in `spec.network.podCIDRs`.
    pub path: &'static str,
    /// How it may change.
    pub change: FieldChange,
}

const fn row(path: &'static str, change: FieldChange) -> ChangeRow {
    ChangeRow { path, change }
}

const fn immutable_field(
    path: &'static str,
    asked: fn(&ClusterSpec) -> &[String],
    born: fn(&ClusterBirth) -> &[String],
) -> ChangeRow {
    row(path, FieldChange::Never(ImmutableField { in_spec: asked, in_birth: born }))
}

/// Every field of a Cluster's spec.
pub const CHANGES: [ChangeRow; 22] = [
    row("spec.className", FieldChange::Free),
    row("spec.version", FieldChange::NoMinorDown),
    row("spec.fleet", FieldChange::NeverAddedOrRemoved),
    row("spec.etcd", FieldChange::Free),
    row("spec.controlPlane", FieldChange::Free),
    row("spec.ingress.replicas", FieldChange::Free),
    row("spec.ingress.port", FieldChange::OnceReserved),
    row("spec.endpoint", FieldChange::Free),
    immutable_field("spec.network.podCIDRs", |spec| &spec.network.pod_cidrs, |birth| &birth.network.pod_cidrs),
    immutable_field(
        "spec.network.serviceCIDRs",
        |spec| &spec.network.service_cidrs,
        |birth| &birth.network.service_cidrs,
    ),
    immutable_field(
        "spec.network.dnsDomain",
        |spec| slice::from_ref(&spec.network.dns_domain),
        |birth| slice::from_ref(&birth.network.dns_domain),
    ),
    row("spec.vpn.enabled", FieldChange::Free),
    immutable_field("spec.vpn.cidrs", |spec| &spec.vpn.cidrs, |birth| &birth.vpn.cidrs),
    row("spec.vpn.mtu", FieldChange::Free),
    row("spec.images", FieldChange::Free),
    row("spec.certificates", FieldChange::Free),
    row("spec.rotations", FieldChange::Free),
    row("spec.upgrade", FieldChange::Free),
    row("spec.workers", FieldChange::Free),
    row("spec.addons", FieldChange::Free),
    row("spec.paused", FieldChange::Free),
    row("spec.asleep", FieldChange::Free),
];

impl ClusterBirth {
    /// Returns the birth of a cluster that is created with this spec.
    #[must_use]
    pub fn of(spec: &ClusterSpec) -> Self {
        Self {
            network: spec.network.clone(),
            vpn: VpnBirth { cidrs: spec.vpn.cidrs.clone(), mtu: Some(VPN_MTU) },
            // No address is in it, so that tokens outlive every change of ingresses.
            service_account_issuer: format!("https://kubernetes.default.svc.{}", spec.network.dns_domain),
            fleet: spec.is_fleet(),
        }
    }

    /// A cluster that v0.1.0 created with this spec.
    #[must_use]
    pub fn of_unrecorded(spec: &ClusterSpec) -> Self {
        let birth = Self::of(spec);
        Self { vpn: VpnBirth { mtu: None, ..birth.vpn }, ..birth }
    }

    /// Returns the spec with the values that are immutable since the cluster's creation.
    #[must_use]
    pub fn restored_spec(&self, spec: &ClusterSpec) -> ClusterSpec {
        let mut kept = spec.clone();
        kept.network.clone_from(&self.network);
        kept.vpn.cidrs.clone_from(&self.vpn.cidrs);
        kept.fleet = self.fleet.then(|| spec.fleet.unwrap_or_default());
        kept
    }
}

impl Cluster {
    /// Returns the immutable values, if they are recorded. A cluster of an older release of Keelway has no record yet.
    #[must_use]
    pub fn birth(&self) -> Option<&ClusterBirth> {
        self.status.as_ref()?.birth.as_ref()
    }

    /// Returns a fault for each field that differs from the immutable values.
    #[must_use]
    pub fn immutable_field_faults(&self) -> Vec<Fault> {
        let Some(birth) = self.birth() else { return Vec::new() };
        let fault = |row: &ChangeRow| {
            let ImmutableField { in_spec: asked, in_birth: born } = match row.change {
                FieldChange::Never(field) => field,
                FieldChange::NeverAddedOrRemoved => return other_kind_of_cluster(&self.spec, birth),
                FieldChange::Free | FieldChange::NoMinorDown | FieldChange::OnceReserved => return None,
            };
            let (asked, born) = (asked(&self.spec), born(birth));
            if asked == born {
                return None;
            }
            let (asked, born) = (asked.join(", "), born.join(", "));
            let problem = format!("is immutable: the cluster was created with {born}, which {asked} cannot replace");
            Some(Fault::of(row.path, problem, format!("restore {born}, or create a new cluster")))
        };
        CHANGES.iter().filter_map(fault).collect()
    }
}

/// The fault of a cluster that is to become a fleet, or of a fleet that is to become a cluster.
fn other_kind_of_cluster(spec: &ClusterSpec, birth: &ClusterBirth) -> Option<Fault> {
    let (problem, help) = match (birth.fleet, spec.is_fleet()) {
        (true, false) => {
            ("is immutable: the cluster was created as a fleet", "restore `fleet: {}`, or create a new cluster")
        }
        (false, true) => (
            "is immutable: the cluster was not created as a fleet",
            "remove the field, and create a fleet with another name",
        ),
        (true, true) | (false, false) => return None,
    };
    Some(Fault::of("spec.fleet", problem, help))
}

impl Cluster {
    /// Returns a fault if the spec names a port that the cluster's ingresses do not have.
    fn other_ingress_port(&self) -> Option<Fault> {
        let reserved = self.status.as_ref()?.ingress_port?;
        let wanted = self.spec.ingress.port.filter(|wanted| *wanted != reserved)?;
        let problem = format!("is immutable: the ingresses of the cluster have port {reserved}, not {wanted}");
        let help = format!("write {reserved}, remove the field, or create a new cluster");
        Some(Fault::of("spec.ingress.port", problem, help))
    }
}

impl Documents {
    /// Returns a fault for each change that its cluster or machine does not allow, in the selected documents.
    pub fn faults_of_changes(&self, is_asked: impl Fn(&DocumentName) -> bool) -> Vec<(DocumentName, Fault)> {
        let living = self.clusters.iter().filter(|(_, cluster)| !cluster.deleted());
        let living: Vec<(&ClusterRef, &Cluster)> = living.map(|(name, cluster)| (name, &**cluster)).collect();
        let mut found = Vec::new();
        for (name, cluster) in &living {
            let document = DocumentName::Cluster((*name).clone());
            if is_asked(&document) {
                found.extend(self.faults_of_change(cluster).into_iter().map(|fault| (document.clone(), fault)));
            }
        }
        let moved = living.iter().flat_map(|(name, cluster)| self.moved_members(name, cluster));
        found.extend(moved.filter(|(document, _)| is_asked(document)));
        found
    }

    /// Returns a fault for each change of a Cluster that its running components do not allow.
    #[must_use]
    pub fn faults_of_change(&self, cluster: &Cluster) -> Vec<Fault> {
        let mut found = cluster.immutable_field_faults();
        found.extend(cluster.other_ingress_port());
        found.extend(self.refused_version(cluster));
        found
    }

    /// Returns a fault if a component cannot change to the release in the spec of its cluster.
    fn refused_version(&self, cluster: &Cluster) -> Option<Fault> {
        let wanted = find(&cluster.spec.version)?;
        let running = self.components_of(cluster.id()?).filter_map(|(pod, component)| {
            let release = find(&component.spec.version)?;
            Some((release, &pod.component))
        });
        let (newest, runs_newest): (Release, &ComponentName) = running.max_by_key(|(release, _)| *release)?;
        (wanted.minor() < newest.minor()).then(|| {
            Fault::of(
                "spec.version",
                format!("must not be an older minor release than {runs_newest} runs: {wanted} is older than {newest}"),
                format!("restore {newest}: an older release cannot read what a newer one stored in etcd"),
            )
        })
    }

    /// Returns a fault for each machine without the address at which peers reach the member on it.
    fn moved_members(&self, name: &ClusterRef, cluster: &Cluster) -> Vec<(DocumentName, Fault)> {
        let members = self.addresses_of_members(cluster).into_iter();
        let moved = members.filter_map(|(member, spec, address)| {
            let machine = self.hypervisors.get(&spec.hypervisor)?;
            let now = machine.spec.addresses.private.first()?;
            if now.parse() == Ok(address) {
                return None;
            }
            let problem = format!("the peers of {name}/{member} reach it at {address}, which {now} cannot replace");
            let help = format!(
                "restore {address} as the first address; to change it, drain the machine, and wait until the member has moved"
            );
            let document = DocumentName::Hypervisor(spec.hypervisor.clone());
            Some((document, Fault::of("spec.addresses.private", problem, help)))
        });
        moved.collect()
    }

    /// Returns the members of a store with the addresses at which their peers reach them.
    fn addresses_of_members<'a>(&'a self, cluster: &'a Cluster) -> Vec<(&'a ComponentName, &'a ComponentSpec, IpAddr)> {
        let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
        let (Some(store), Some(id)) = (store, cluster.id()) else { return Vec::new() };
        let member = |name: &'a ComponentName| {
            let component = self.components.get(&pod(id, name))?;
            let urls = store.peer_urls(name)?;
            let address: SocketAddr = urls.first()?.strip_prefix("https://")?.parse().ok()?;
            Some((name, &component.spec, address.ip()))
        };
        let added = store.members.keys().filter(|name| !store.initial_cluster.contains_key(*name));
        store.initial_cluster.keys().chain(added).filter_map(member).collect()
    }
}

fn pod(cluster: &ClusterId, component: &ComponentName) -> PodName {
    PodName { cluster: cluster.clone(), component: component.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn leaves(path: &str, value: &Value, found: &mut Vec<String>) {
        match value.get("properties").and_then(Value::as_object) {
            Some(fields) => fields.iter().for_each(|(name, field)| leaves(&format!("{path}.{name}"), field, found)),
            None => found.push(path.to_owned()),
        }
    }

    #[test]
    fn every_field_of_a_spec_has_one_row() {
        let definition =
            crate::crd::crds().into_iter().find(|definition| definition.spec.names.kind == "Cluster").unwrap();
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        let mut fields = Vec::new();
        leaves("spec", &schema["openAPIV3Schema"]["properties"]["spec"], &mut fields);
        assert!(fields.len() > 20, "{fields:?}");
        for field in fields {
            let is_of = |row: &&ChangeRow| field == row.path || field.starts_with(&format!("{}.", row.path));
            assert_eq!(CHANGES.iter().filter(is_of).count(), 1, "{field} belongs to one row");
        }
    }

    #[test]
    fn a_fleet_stays_one_and_a_cluster_becomes_none() {
        let of = |value: Value| -> Cluster {
            let spec = serde_json::from_value::<ClusterSpec>(value).unwrap();
            Cluster::new("c1", spec)
        };
        let kinds = [json!({ "version": "1.37.0" }), json!({ "version": "1.37.0", "fleet": {} })];
        for (born, asked) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let birth = ClusterBirth::of(&of(kinds[born].clone()).spec);
            let mut cluster = of(kinds[asked].clone());
            cluster.status.get_or_insert_default().birth = Some(birth.clone());
            let fields: Vec<String> = cluster.immutable_field_faults().into_iter().map(|fault| fault.field).collect();
            assert_eq!(fields == ["spec.fleet"], born != asked, "{fields:?}");
            assert_eq!(birth.restored_spec(&cluster.spec).is_fleet(), born == 1);
        }
    }

    #[test]
    fn immutable_fields_are_restored_from_the_recorded_birth() {
        let spec = |value: Value| serde_json::from_value::<ClusterSpec>(value).unwrap();
        let born = spec(json!({ "version": "1.37.0" }));
        let other = spec(json!({
            "version": "1.36.3",
            "network": { "podCIDRs": ["10.1.0.0/16"], "serviceCIDRs": ["10.2.0.0/16"], "dnsDomain": "other.local" },
            "vpn": { "cidrs": ["10.3.0.0/16"] },
        }));
        let kept = ClusterBirth::of(&born).restored_spec(&other);
        assert_eq!(kept.version, other.version);
        for row in CHANGES {
            if let FieldChange::Never(field) = row.change {
                let value = field.in_spec;
                assert_ne!(value(&other), value(&born), "{}: the other spec of this test changes it", row.path);
                assert_eq!(value(&kept), value(&born), "{}", row.path);
                assert_eq!((field.in_birth)(&ClusterBirth::of(&born)), value(&born), "{}", row.path);
            }
        }
    }
}
