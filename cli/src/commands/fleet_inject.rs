//! `keelway fleet inject`.

use clap::Args;
use keelway_api::{
    Cluster, Newer,
    cluster::{
        AddonsSpec, ApiServerSpec, CertificatesSpec, ClusterSpec, ControlPlaneSpec, EndpointSpec, EtcdSpec, FleetSpec,
        ImagesSpec, IngressSpec, LocalSecretReference, NetworkSpec, VpnSpec, WorkersSpec,
    },
    preflight::UpgradeSpec,
    release,
    rotation::RotationsSpec,
};

use super::cluster_inject::{add, named};
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
};

#[derive(Args)]
pub(crate) struct FleetInjectArguments {
    #[command(flatten)]
    pub(crate) fleet: ClusterName,
    /// The Kubernetes release of the fleet; workload clusters may run others [default: the newest]
    #[arg(long, value_name = "RELEASE")]
    pub(crate) version: Option<String>,
    /// The number of etcd members, of API servers and of controller managers: 1, 3, 5 or 7
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) replicas: u32,
    /// The number of ingresses, through which people and fleet agents reach the API
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) ingress_replicas: u32,
    /// The port of the ingresses, such as 443 [default: one from spec.portRange of the public hypervisors]
    #[arg(long, value_name = "PORT")]
    pub(crate) ingress_port: Option<u16>,
    /// A DNS name that resolves to all ingresses
    #[arg(long, value_name = "NAME")]
    pub(crate) endpoint_host: Option<String>,
    /// An additional name or address in the API servers' certificates; can be repeated
    #[arg(long = "extra-san", value_name = "NAME")]
    pub(crate) extra_sans: Vec<String>,
    /// The ClusterClass of the fleet [default: the default class, if there are classes]
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// A registry that holds all images, each under its original name and tag
    #[arg(long, value_name = "REGISTRY")]
    pub(crate) image_registry: Option<String>,
    /// A Secret of the type kubernetes.io/dockerconfigjson with the registry's credentials; can be repeated
    #[arg(long = "image-pull-secret", value_name = "NAME")]
    pub(crate) image_pull_secrets: Vec<String>,
}

pub(super) fn run(global: &GlobalArguments, arguments: FleetInjectArguments) -> Result<Code, CommandFailure> {
    add(global, &fleet(arguments))
}

fn fleet(arguments: FleetInjectArguments) -> Cluster {
    let spec = ClusterSpec {
        class_name: arguments.class,
        version: arguments.version.unwrap_or_else(|| release::newest_version().to_owned()),
        fleet: Some(FleetSpec::default()),
        etcd: EtcdSpec { replicas: arguments.replicas, ..EtcdSpec::default() },
        control_plane: ControlPlaneSpec {
            replicas: arguments.replicas,
            kube_api_server: ApiServerSpec { extra_sans: arguments.extra_sans, ..ApiServerSpec::default() },
            ..ControlPlaneSpec::default()
        },
        ingress: IngressSpec { replicas: arguments.ingress_replicas, port: arguments.ingress_port },
        endpoint: EndpointSpec { host: arguments.endpoint_host },
        network: NetworkSpec::default(),
        vpn: VpnSpec::default(),
        images: ImagesSpec {
            registry: arguments.image_registry,
            overrides: Vec::new(),
            pull_secrets: arguments.image_pull_secrets.into_iter().map(|name| LocalSecretReference { name }).collect(),
        },
        certificates: CertificatesSpec::default(),
        rotations: RotationsSpec::default(),
        upgrade: UpgradeSpec::default(),
        workers: WorkersSpec::default(),
        addons: AddonsSpec::default(),
        paused: false,
        asleep: false,
        newer: Newer::default(),
    };
    named(arguments.fleet, spec)
}
