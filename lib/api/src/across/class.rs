//! Compares Clusters with the limits of their classes.
//!
//! Running clusters continue: changing or deleting a class takes nothing from a Cluster that was accepted before. These faults therefore apply only
//! to Clusters with a pending change.

use std::collections::{BTreeMap, BTreeSet};

use super::DocumentFaults;
use crate::{
    Cluster, Documents,
    class::{ClusterClass, LimitsSpec},
    document::DocumentName,
    duration::Span,
    fault::Fault,
    kind::DocumentKind,
    name::ClusterRef,
    origin::OriginIndex,
    registry::{PULL_SECRET, is_pull_secret},
    resources::asked_limits,
    role::Role,
    shared::Shared,
    tree::{field, item},
};

/// Checks that at most one class is the default.
pub(super) fn defaults(documents: &Documents, _: &OriginIndex<'_>) -> DocumentFaults {
    let mut all = documents.classes.iter().filter(|(_, class)| class.is_default());
    let Some((first, _)) = all.next() else { return Vec::new() };
    let fault = |(name, _): (&String, _)| {
        let field = field("metadata.annotations", crate::class::DEFAULT_CLASS);
        let problem = format!("ClusterClass {first} is already the default");
        (
            DocumentName::ClusterClass(name.clone()),
            Fault::of(field, problem, "remove the annotation from one of the two"),
        )
    };
    all.map(fault).collect()
}

/// Checks that the pull Secrets of each class exist.
pub(super) fn pull_secrets(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::Secret) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (name, class) in &documents.classes {
        for (index, secret) in class.spec.images.secrets().enumerate() {
            if documents.secrets.get(&secret).is_some_and(|secret| is_pull_secret(secret)) {
                continue;
            }
            let problem = format!("Secret {}/{} of type {PULL_SECRET} does not exist", secret.namespace, secret.name);
            let help = "add it: kubectl create secret docker-registry NAME --dry-run=client -o yaml ..";
            let fault = Fault::of(field(&item("spec.images.pullSecrets", index), "name"), problem, help);
            found.push((DocumentName::ClusterClass(name.clone()), fault));
        }
    }
    found
}

/// Checks that every Cluster is within the limits of its class.
pub(super) fn clusters(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::ClusterClass) {
        Vec::new()
    } else {
        documents.faults_of_classes(|_, _| true)
    }
}

impl Documents {
    /// Returns the violations of classes by the Clusters that `is_asked` selects, which are those with a pending change. If a namespace has room for
    /// only some of its Clusters, the others come before the selected ones.
    pub fn faults_of_classes(
        &self,
        is_asked: impl Fn(&ClusterRef, &Shared<Cluster>) -> bool,
    ) -> Vec<(DocumentName, Fault)> {
        let asked = self.clusters.iter().filter(|(name, cluster)| !cluster.deleted() && is_asked(name, cluster));
        let asked: BTreeMap<&ClusterRef, &Shared<Cluster>> = asked.collect();
        if asked.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        let mut refused = BTreeSet::new();
        for (name, cluster) in &asked {
            let faults = self.faults_of_class(cluster);
            if !faults.is_empty() && cluster.id().is_none() {
                refused.insert(*name);
            }
            found.extend(faults.into_iter().map(|fault| (DocumentName::Cluster((*name).clone()), fault)));
        }
        found.extend(self.too_many(&asked, &refused));
        found
    }

    /// Returns the violations of its class by a Cluster.
    #[must_use]
    pub fn faults_of_class(&self, cluster: &Cluster) -> Vec<Fault> {
        match self.allowed_class(cluster) {
            Ok(Some(class)) => class_violations(class, cluster),
            Ok(None) => Vec::new(),
            Err(fault) => vec![fault],
        }
    }

    /// Returns the class of a Cluster, or a fault if the Cluster may not use it.
    fn allowed_class(&self, cluster: &Cluster) -> Result<Option<&ClusterClass>, Fault> {
        let namespace = cluster.reference().namespace;
        let fault = |problem: String| {
            let names =
                self.classes.iter().filter(|(_, class)| class.is_for(&namespace)).map(|(name, _)| name.as_str());
            let names: Vec<&str> = names.collect();
            let help = match names[..] {
                [] => format!("ask the operator of Keelway for a ClusterClass for namespace {namespace}"),
                _ => format!("use one of: {}", names.join(", ")),
            };
            Fault::of("spec.className", problem, help)
        };
        match (self.class_name(cluster), self.class_of(cluster)) {
            (_, Some(class)) if class.is_for(&namespace) => Ok(Some(class)),
            (Some(name), Some(_)) => Err(fault(format!("ClusterClass {name} is not allowed in namespace {namespace}"))),
            (Some(name), None) => Err(fault(format!("ClusterClass {name} does not exist"))),
            (None, _) if self.classes.is_empty() => Ok(None),
            (None, _) => {
                let which = if self.default_class().is_some() {
                    "the default is not allowed in its namespace"
                } else {
                    "there is no default"
                };
                Err(fault(format!("is required, because {which}")))
            }
        }
    }

    /// Returns the Clusters that exceed the limit of their namespace. Refused Clusters that never ran do not count.
    fn too_many(
        &self,
        asked: &BTreeMap<&ClusterRef, &Shared<Cluster>>,
        refused: &BTreeSet<&ClusterRef>,
    ) -> DocumentFaults {
        let mut places: BTreeMap<(&str, &str), Vec<(&ClusterRef, &Cluster)>> = BTreeMap::new();
        for (name, cluster) in self.clusters.iter().filter(|(name, _)| !refused.contains(name)) {
            let Some(class) = self.class_name(cluster) else { continue };
            places.entry((class, name.namespace.as_str())).or_default().push((name, cluster));
        }
        let mut found = Vec::new();
        for ((class, namespace), mut clusters) in places {
            let limit = self.classes.get(class).and_then(|class| class.spec.limits.clusters_per_namespace);
            let Some(limit) = limit else { continue };
            clusters.sort_by_key(|(name, cluster)| {
                let made = cluster.metadata.creation_timestamp.as_ref().map(|made| made.0);
                (asked.contains_key(name), cluster.id().is_none(), made, *name)
            });
            let beyond = clusters.into_iter().skip(limit as usize).map(|(name, _)| name);
            for name in beyond.filter(|name| asked.contains_key(name)) {
                let problem =
                    format!("namespace {namespace} already has {limit} Clusters of ClusterClass {class}, the maximum");
                let help = "delete another one, or ask the operator of Keelway for a higher limit";
                found.push((DocumentName::Cluster(name.clone()), Fault::of("spec.className", problem, help)));
            }
        }
        found
    }
}

/// Returns the fields of a Cluster that violate its class.
fn class_violations(class: &ClusterClass, cluster: &Cluster) -> Vec<Fault> {
    let mut found = replicas(class.spec.limits, cluster);
    found.extend(amounts(class.spec.limits, cluster));
    found.extend(lives(class.spec.limits, cluster));
    found.extend(images(class, cluster));
    found.extend(arguments(class, cluster));
    found.extend(snapshot_sink(class, cluster));
    let versions = &class.spec.versions;
    if !versions.is_empty() && !versions.contains(&cluster.spec.version) {
        let problem = format!("{} is not allowed by its ClusterClass", cluster.spec.version);
        found.push(Fault::of("spec.version", problem, format!("write one of {}", versions.join(", "))));
    }
    found
}

fn replicas(limits: LimitsSpec, cluster: &Cluster) -> Vec<Fault> {
    let spec = &cluster.spec;
    let plane = &spec.control_plane;
    let of_plane = |own: Option<u32>, field: &'static str| match own {
        Some(replicas) => (field, replicas, limits.control_plane_replicas),
        None => ("spec.controlPlane.replicas", plane.replicas, limits.control_plane_replicas),
    };
    let asked = BTreeSet::from([
        ("spec.etcd.replicas", spec.etcd.replicas, limits.etcd_replicas),
        of_plane(plane.kube_api_server.replicas, "spec.controlPlane.kubeAPIServer.replicas"),
        of_plane(plane.kube_controller_manager.replicas, "spec.controlPlane.kubeControllerManager.replicas"),
        of_plane(plane.kube_scheduler.replicas, "spec.controlPlane.kubeScheduler.replicas"),
        // If this field is not set, its value is that of the API servers.
        of_plane(plane.cluster_controller.replicas, "spec.controlPlane.clusterController.replicas"),
        ("spec.ingress.replicas", spec.ingress.replicas, limits.ingress_replicas),
    ]);
    let beyond = asked.into_iter().filter_map(|(field, asked, limit)| {
        let limit = limit.filter(|limit| asked > *limit)?;
        let problem = format!("{asked} is more than its ClusterClass allows");
        Some(Fault::of(field, problem, format!("write {limit} or less")))
    });
    beyond.collect()
}

/// Checks only amounts that the Cluster sets itself. For all others, the defaults of Keelway apply.
fn amounts(limits: LimitsSpec, cluster: &Cluster) -> Vec<Fault> {
    let mut found = Vec::new();
    let mut judge = |field: String, asked: String, limit: Option<String>| {
        if let Some(limit) = limit {
            let problem = format!("{asked} is more than its ClusterClass allows");
            found.push(Fault::of(field, problem, format!("write {limit} or less")));
        }
    };
    for (_, field, asked) in asked_limits(&cluster.spec) {
        if let Some(cpu) = asked.cpu {
            let limit = limits.cpu.filter(|limit| cpu > *limit);
            judge(format!("{field}.limits.cpu"), cpu.to_string(), limit.map(|limit| limit.to_string()));
        }
        if let Some(memory) = asked.memory {
            let limit = limits.memory.filter(|limit| memory > *limit);
            judge(format!("{field}.limits.memory"), memory.to_string(), limit.map(|limit| limit.to_string()));
        }
    }
    if let Some(quota) = cluster.spec.etcd.quota {
        let limit = limits.etcd_quota.filter(|limit| quota > *limit);
        judge("spec.etcd.quota".to_owned(), quota.to_string(), limit.map(|limit| limit.to_string()));
    }
    found
}

fn lives(limits: LimitsSpec, cluster: &Cluster) -> Vec<Fault> {
    let own = &cluster.spec.certificates;
    let (least, most) = (limits.min_ttl.unwrap_or_default(), limits.max_ttl.unwrap_or_default());
    let each = [
        ("componentTTL", own.component_ttl, least.component_ttl, most.component_ttl),
        ("workerTTL", own.worker_ttl, least.worker_ttl, most.worker_ttl),
        ("adminTTL", own.admin_ttl, least.admin_ttl, most.admin_ttl),
        ("authorityTTL", own.authority_ttl, least.authority_ttl, most.authority_ttl),
        ("workerGrace", own.worker_grace, least.worker_grace, most.worker_grace),
    ];
    let fault = |(field, own, least, most): (&str, Span, Option<Span>, Option<Span>)| {
        let (how, bound) = match (least.filter(|least| own < *least), most.filter(|most| own > *most)) {
            (Some(least), _) => ("shorter", format!("write {least} or more")),
            (None, Some(most)) => ("longer", format!("write {most} or less")),
            (None, None) => return None,
        };
        let problem = format!("{own} is {how} than its ClusterClass allows");
        Some(Fault::of(format!("spec.certificates.{field}"), problem, bound))
    };
    // A fleet has no workers, and cannot set this field.
    let is_of_use =
        |(field, ..): &(&str, Span, Option<Span>, Option<Span>)| *field != "workerGrace" || !cluster.spec.is_fleet();
    each.into_iter().filter(is_of_use).filter_map(fault).collect()
}

fn images(class: &ClusterClass, cluster: &Cluster) -> Vec<Fault> {
    let own = &cluster.spec.images;
    if class.spec.images.is_empty() {
        return Vec::new();
    }
    let given = [
        ("registry", own.registry.is_some()),
        ("overrides", !own.overrides.is_empty()),
        ("pullSecrets", !own.pull_secrets.is_empty()),
    ];
    let fault = |field: &str| {
        Fault::of(
            format!("spec.images.{field}"),
            "must not be set: its ClusterClass sets the source of images",
            "remove it",
        )
    };
    given.into_iter().filter(|(_, is_given)| *is_given).map(|(field, _)| fault(field)).collect()
}

fn arguments(class: &ClusterClass, cluster: &Cluster) -> Vec<Fault> {
    let plane = &cluster.spec.control_plane;
    let given = [
        (Role::KubeApiserver, "kubeAPIServer", &plane.kube_api_server.extra_args),
        (Role::KubeControllerManager, "kubeControllerManager", &plane.kube_controller_manager.extra_args),
        (Role::KubeScheduler, "kubeScheduler", &plane.kube_scheduler.extra_args),
    ];
    let of_role = |(role, name, given): (Role, &str, &BTreeMap<String, String>)| {
        let Some(allowed) = class.spec.allowed_arguments.of(role) else { return Vec::new() };
        let map = format!("spec.controlPlane.{name}.extraArgs");
        let help = match allowed {
            [] => "remove it: the ClusterClass allows no arguments here".to_owned(),
            _ => format!("remove it; allowed arguments: {}", allowed.join(", ")),
        };
        let refused = given.keys().filter(|argument| !allowed.contains(argument));
        refused
            .map(|argument| {
                Fault::of_entry(&map, argument, format!("{argument} is not allowed by its ClusterClass"), help.clone())
            })
            .collect()
    };
    given.into_iter().flat_map(of_role).collect()
}

/// Checks where the manager stores snapshots for the Cluster.
fn snapshot_sink(class: &ClusterClass, cluster: &Cluster) -> Option<Fault> {
    let sink = &cluster.spec.etcd.snapshots.as_ref()?.sink;
    let allowed = &class.spec.snapshot_sinks;
    if allowed.iter().any(|place| place.allows(sink)) {
        return None;
    }
    let places = allowed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let help = if places.is_empty() {
        "remove spec.etcd.snapshots, or ask the operator of Keelway to add the place to snapshotSinks of the class"
            .to_owned()
    } else {
        format!("use one of these, or a place below: {places}")
    };
    let field = if sink.directory.is_some() { "directory.path" } else { "s3" };
    let problem = "is not a place for snapshots that its ClusterClass allows";
    Some(Fault::of(format!("spec.etcd.snapshots.sink.{field}"), problem, help))
}
