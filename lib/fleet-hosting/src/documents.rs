//! The documents of a fleet, new or as recorded.

use keelway_api::{
    Cluster, Documents, Newer,
    change::ClusterBirth,
    cluster::{
        AddonsSpec, ApiServerSpec, CertificatesSpec, ClusterSpec, ControlPlaneSpec, EndpointSpec, EtcdSpec, FleetSpec,
        ImagesSpec, IngressSpec, KeelwayStatus, NetworkSpec, VpnSpec, WorkersSpec,
    },
    name::{ClusterRef, NameError, is_label},
    preflight::UpgradeSpec,
    release::{self, KEELWAY, Release},
    rotation::RotationsSpec,
};
use keelway_planner::identify_clusters;

use crate::{FleetRecord, HostingOptions};

/// The name of the Cluster in the documents.
const CLUSTER: &str = "fleet";
/// The namespace of the Cluster in the documents.
const CLUSTER_NAMESPACE: &str = "default";
/// The longest name of a namespace.
const LONGEST_NAMESPACE: usize = 63;

/// The recorded documents do not fit the options.
#[derive(Debug, thiserror::Error)]
pub enum FleetDocumentsError {
    /// The text is not the name of a namespace.
    #[error("{0:?} is not the name of a namespace")]
    Namespace(String),
    /// The record is of another namespace.
    #[error("the fleet runs in the namespace {recorded}, not in {asked}")]
    OtherNamespace {
        /// The namespace of the record.
        recorded: String,
        /// The namespace in the options.
        asked: String,
    },
    /// The record contains no fleet.
    #[error("the documents of the Secret contain no fleet")]
    NoFleet,
    /// The number of etcd members is fixed.
    #[error("the fleet has {recorded} etcd members, and this number is immutable: it cannot become {asked}")]
    Replicas {
        /// The recorded number.
        recorded: u32,
        /// The number in the options.
        asked: u32,
    },
    /// The release cannot follow the recorded one.
    #[error("a fleet of the release {recorded} cannot be changed to {asked}")]
    Version {
        /// The recorded release.
        recorded: String,
        /// The release in the options.
        asked: String,
    },
    /// The id of the new fleet is not valid.
    #[error("cannot create an id")]
    Id(#[source] NameError),
}

/// Returns the documents of a fleet with these options: those of the record, or those of a new fleet. `random` returns 16 random hexadecimal digits.
///
/// # Errors
/// The options do not fit the record.
pub fn fleet_documents(
    options: &HostingOptions,
    record: Option<FleetRecord>,
    random: impl FnMut() -> String,
) -> Result<Documents, FleetDocumentsError> {
    if !is_label(&options.namespace, LONGEST_NAMESPACE) {
        return Err(FleetDocumentsError::Namespace(options.namespace.clone()));
    }
    match record {
        Some(record) => changed(options, record),
        None => new(options, random),
    }
}

fn new(options: &HostingOptions, random: impl FnMut() -> String) -> Result<Documents, FleetDocumentsError> {
    let version = options.version.as_deref().unwrap_or(release::newest_version());
    let mut cluster = Cluster::new(CLUSTER, spec(options, version));
    cluster.metadata.namespace = Some(CLUSTER_NAMESPACE.to_owned());
    let birth = ClusterBirth::of(&cluster.spec);
    let status = cluster.status.get_or_insert_default();
    status.birth = Some(birth);
    status.endpoints = vec![format!("https://{}", options.endpoint)];
    let mut documents = Documents::default();
    documents.clusters.insert(reference(), cluster);
    identify_clusters(&mut documents, random).map_err(FleetDocumentsError::Id)?;
    Ok(documents)
}

fn changed(options: &HostingOptions, record: FleetRecord) -> Result<Documents, FleetDocumentsError> {
    let FleetRecord { namespace, mut documents } = record;
    if namespace != options.namespace {
        let asked = options.namespace.clone();
        return Err(FleetDocumentsError::OtherNamespace { recorded: namespace, asked });
    }
    let cluster = documents.clusters.get_mut(&reference()).ok_or(FleetDocumentsError::NoFleet)?;
    let (recorded, asked) = (cluster.spec.etcd.replicas, options.replicas);
    if recorded != asked {
        return Err(FleetDocumentsError::Replicas { recorded, asked });
    }
    let version = version(&cluster.spec.version, options.version.as_deref())?.to_owned();
    cluster.spec = spec(options, &version);
    let status = cluster.status.get_or_insert_default();
    status.endpoints = vec![format!("https://{}", options.endpoint)];
    status.keelway = Some(KeelwayStatus { version: KEELWAY.into(), previous_version: None });
    Ok(documents)
}

/// The release to run: of the recorded minor version, or of the next one.
fn version<'a>(recorded: &'a str, asked: Option<&'a str>) -> Result<&'a str, FleetDocumentsError> {
    let Some(asked) = asked.filter(|asked| *asked != recorded) else { return Ok(recorded) };
    let releases: Option<(Release, Release)> = release::find(recorded).zip(release::find(asked));
    match releases {
        Some((from, to)) if from.may_become(&to) => Ok(asked),
        Some(_) | None => Err(FleetDocumentsError::Version { recorded: recorded.to_owned(), asked: asked.to_owned() }),
    }
}

fn spec(options: &HostingOptions, version: &str) -> ClusterSpec {
    let service = [options.hosting().api_host()];
    let address = options.endpoint.address().map(|address| address.to_string());
    ClusterSpec {
        class_name: None,
        version: version.to_owned(),
        fleet: Some(FleetSpec::default()),
        etcd: EtcdSpec { replicas: options.replicas, ..EtcdSpec::default() },
        control_plane: ControlPlaneSpec {
            replicas: options.replicas,
            kube_api_server: ApiServerSpec {
                extra_sans: service.into_iter().chain(address).collect(),
                ..ApiServerSpec::default()
            },
            ..ControlPlaneSpec::default()
        },
        // The Service of the API servers replaces the ingresses.
        ingress: IngressSpec { replicas: 0, port: None },
        endpoint: EndpointSpec { host: options.endpoint.name().map(ToOwned::to_owned) },
        network: NetworkSpec::default(),
        vpn: VpnSpec::default(),
        images: ImagesSpec { registry: options.registry.clone(), ..ImagesSpec::default() },
        certificates: CertificatesSpec::default(),
        rotations: RotationsSpec::default(),
        upgrade: UpgradeSpec::default(),
        workers: WorkersSpec::default(),
        addons: AddonsSpec::default(),
        paused: false,
        asleep: false,
        newer: Newer::default(),
    }
}

fn reference() -> ClusterRef {
    ClusterRef { namespace: CLUSTER_NAMESPACE.to_owned(), name: CLUSTER.to_owned() }
}
