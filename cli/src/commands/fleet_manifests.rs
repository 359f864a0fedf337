//! `keelway fleet manifests` and `keelway fleet kubeconfig`: a fleet's control plane in a Kubernetes cluster.

use clap::{Args, ValueEnum};
use keelway_api::{Documents, duration::Span, jiff::Timestamp, name::ClusterId};
use keelway_fleet_hosting::{
    ApiEndpoint, ApiService, FleetDocumentsError, FleetRecord, FleetRecordError, HostingOptions, ServiceType,
    fleet_documents, manifests, service_manifests,
};
use keelway_reconciler::{Minter, PkiMinter, mint_hosted_fleet};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::{
    cluster_kubeconfig::{self, KubeconfigArguments},
    fleet_api::read_or_stdin,
    print,
};
use crate::{
    args::ClusterName,
    exit::{Code, CommandFailure},
};

/// How to read the record of a fleet.
const GET_SECRETS: &str = "kubectl get secrets --namespace NAMESPACE -l fleet.keelway.dev/documents -o yaml";

#[derive(Args)]
pub(crate) struct FleetManifestsArguments {
    /// The namespace of the control plane
    #[arg(long, default_value = "keelway-fleet", value_name = "NAMESPACE")]
    pub(crate) namespace: String,
    /// Where people and fleet agents reach the API: a DNS name or an address, and a port if it is not 443
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "service_only")]
    pub(crate) endpoint: Option<ApiEndpoint>,
    /// The number of etcd members, of API servers and of controller managers: 1, 3, 5 or 7
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) replicas: u32,
    /// The Secrets of the fleet, if it exists, as kubectl get -o yaml prints them; - for stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) existing: Option<String>,
    /// The type of the Service of the API servers. A NodePort has the port of --endpoint
    #[arg(long, value_enum, default_value = "load-balancer", value_name = "TYPE")]
    pub(crate) service_type: ServiceTypeArgument,
    /// Print only the Namespace and the Service, to learn the address that the cluster assigns
    #[arg(long, conflicts_with = "existing")]
    pub(crate) service_only: bool,
    /// The Kubernetes release of the fleet [default: the newest, or that of the existing fleet]
    #[arg(long, value_name = "RELEASE")]
    pub(crate) version: Option<String>,
    /// A registry that holds all images, each under its original name and tag
    #[arg(long, value_name = "REGISTRY")]
    pub(crate) image_registry: Option<String>,
    /// The StorageClass of the etcd members [default: the default class of the cluster]
    #[arg(long, value_name = "NAME")]
    pub(crate) storage_class: Option<String>,
    /// The size of the volume of each etcd member
    #[arg(long, default_value = "8Gi", value_name = "QUANTITY")]
    pub(crate) storage_size: String,
}

/// The type of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceTypeArgument {
    /// The cluster provides an address or a host name
    #[value(alias = "LoadBalancer")]
    LoadBalancer,
    /// A port of every node
    #[value(alias = "NodePort")]
    NodePort,
    /// An address inside the cluster, behind a proxy of your own
    #[value(name = "cluster-ip", alias = "ClusterIP")]
    ClusterIp,
}

#[derive(Args)]
pub(crate) struct FleetKubeconfigArguments {
    /// The file of the Secrets of the fleet, as kubectl get -o yaml prints them, or - for stdin
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) existing: String,
    /// The user's name, as it appears in audit logs
    #[arg(long, default_value = "admin")]
    pub(crate) user: String,
    /// How long the certificate is valid [default: a day]
    #[arg(long, value_name = "DURATION")]
    pub(crate) ttl: Option<Span>,
    /// Use the group system:masters, which RBAC cannot restrict
    #[arg(long)]
    pub(crate) break_glass: bool,
}

impl From<ServiceTypeArgument> for ServiceType {
    fn from(argument: ServiceTypeArgument) -> Self {
        match argument {
            ServiceTypeArgument::LoadBalancer => Self::LoadBalancer,
            ServiceTypeArgument::NodePort => Self::NodePort,
            ServiceTypeArgument::ClusterIp => Self::ClusterIp,
        }
    }
}

pub(super) fn run(arguments: FleetManifestsArguments) -> Result<Code, CommandFailure> {
    let service_type = arguments.service_type.into();
    let endpoint = match arguments.endpoint {
        Some(endpoint) if !arguments.service_only => endpoint,
        endpoint => {
            let service = ApiService { service_type, endpoint_port: endpoint.map(|endpoint| endpoint.port()) };
            return print_all(&service_manifests(&arguments.namespace, service));
        }
    };
    let options = HostingOptions {
        namespace: arguments.namespace,
        endpoint,
        replicas: arguments.replicas,
        service_type,
        version: arguments.version,
        registry: arguments.image_registry,
        storage_class: arguments.storage_class,
        storage_size: arguments.storage_size,
    };
    let record = arguments.existing.as_deref().map(record).transpose()?;
    let mut minter = PkiMinter::new(StdRng::from_rng(&mut rand::rng()));
    let mut documents = fleet_documents(&options, record, || minter.id()).map_err(|error| unfit(&error))?;
    let fleet = mint_hosted_fleet(&mut documents, &options.hosting(), &mut minter, Timestamp::now());
    let fleet = fleet.map_err(CommandFailure::other)?;
    print_all(&manifests(&fleet, &documents, id(&documents)?, &options))
}

/// `keelway fleet kubeconfig`.
pub(super) fn kubeconfig(arguments: FleetKubeconfigArguments) -> Result<Code, CommandFailure> {
    let FleetRecord { namespace, documents } = record(&arguments.existing)?;
    let reference = documents.clusters.keys().next().cloned();
    let reference = reference.ok_or_else(|| unfit(&FleetDocumentsError::NoFleet))?;
    let arguments = KubeconfigArguments {
        cluster: ClusterName { name: reference.name, namespace: reference.namespace },
        user: arguments.user,
        ttl: arguments.ttl,
        break_glass: arguments.break_glass,
        context_name: Some(namespace),
    };
    cluster_kubeconfig::of_documents(&documents, &arguments)
}

fn record(path: &str) -> Result<FleetRecord, CommandFailure> {
    let text = read_or_stdin(path)?;
    FleetRecord::read(&text).map_err(|error| {
        let help = match &error {
            FleetRecordError::Several(_) => {
                "delete the Secret whose name does not end with the label fleet.keelway.dev/id of the StatefulSet's pods"
                    .to_owned()
            }
            FleetRecordError::Content(_) | FleetRecordError::Documents { .. } => {
                "restore the Secret from a backup: without its authorities, the fleet cannot be managed".to_owned()
            }
            FleetRecordError::Text(_) | FleetRecordError::Missing => format!("pass the output of: {GET_SECRETS}"),
        };
        CommandFailure::usage(keelway_base::error_chain::chain_text(&error), help)
    })
}

fn unfit(error: &FleetDocumentsError) -> CommandFailure {
    let help = match error {
        FleetDocumentsError::Namespace(_) => "use at most 63 lower-case letters, digits and -".to_owned(),
        FleetDocumentsError::OtherNamespace { recorded, .. } => format!("set --namespace {recorded}"),
        FleetDocumentsError::NoFleet => format!("pass the output of: {GET_SECRETS}"),
        FleetDocumentsError::Replicas { recorded, .. } => format!("set --replicas {recorded}, or create another fleet"),
        FleetDocumentsError::Version { recorded, .. } => {
            format!(
                "leave out --version to stay at {recorded}, or choose a release of the same minor or of the next one"
            )
        }
        FleetDocumentsError::Id(_) => "report this".to_owned(),
    };
    CommandFailure::usage(error.to_string(), help)
}

fn id(documents: &Documents) -> Result<&ClusterId, CommandFailure> {
    let id = documents.clusters.values().find_map(|cluster| cluster.id());
    id.ok_or_else(|| unfit(&FleetDocumentsError::NoFleet))
}

fn print_all(manifests: &[Value]) -> Result<Code, CommandFailure> {
    // The base64 of a key stays on one line.
    for manifest in manifests {
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        print("---\n")?;
        print(&serde_saphyr::to_string_with_options(manifest, options).map_err(CommandFailure::other)?)?;
    }
    Ok(Code::Done)
}
