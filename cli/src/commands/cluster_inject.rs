//! `keelway cluster inject`.

use keelway_api::{
    Cluster, Documents, Newer, ObjectMeta, Time,
    cluster::{
        AddonsSpec, ApiServerSpec, CertificatesSpec, ClusterSpec, ControlPlaneSpec, EndpointSpec, EtcdSpec, ImagesSpec,
        IngressSpec, LocalSecretReference, NetworkSpec, VpnSpec,
    },
    fault::Faults,
    jiff::Timestamp,
    release,
    validated::ValidatedCluster,
};

use super::print_documents;
use crate::{
    args::{GlobalArguments, InjectArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

pub(super) fn run(global: &GlobalArguments, arguments: InjectArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some_of_file(&global.files)?;
    let documents = inject(&input, arguments).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&documents)?;
    Ok(Code::Done)
}

fn inject(input: &Input, arguments: InjectArguments) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let reference = arguments.cluster.reference();
    if documents.clusters.contains_key(&reference) {
        return Err(CommandFailure::usage(
            format!("cluster {reference} already exists"),
            "choose another --name, or edit its document",
        ));
    }
    let cluster = cluster(arguments);
    ValidatedCluster::parse(&cluster).map_err(|faults| CommandFailure::faults(Faults(faults), &Input::flags()))?;
    documents.clusters.insert(reference, cluster);
    Ok(documents)
}

fn cluster(arguments: InjectArguments) -> Cluster {
    let network = NetworkSpec::default();
    let given = |list: Vec<String>, default: Vec<String>| if list.is_empty() { default } else { list };
    let spec = ClusterSpec {
        class_name: arguments.class,
        version: arguments.version.unwrap_or_else(|| release::newest().kubernetes.to_owned()),
        etcd: EtcdSpec { replicas: arguments.etcd_replicas, ..EtcdSpec::default() },
        control_plane: ControlPlaneSpec {
            replicas: arguments.control_plane_replicas,
            kube_api_server: ApiServerSpec { extra_sans: arguments.extra_sans, ..ApiServerSpec::default() },
            ..ControlPlaneSpec::default()
        },
        ingress: IngressSpec { replicas: arguments.ingress_replicas },
        endpoint: EndpointSpec { host: arguments.endpoint_host },
        network: NetworkSpec {
            pod_cidrs: given(arguments.pod_cidrs, network.pod_cidrs),
            service_cidrs: given(arguments.service_cidrs, network.service_cidrs),
            dns_domain: arguments.dns_domain.unwrap_or(network.dns_domain),
        },
        vpn: VpnSpec { cidrs: given(arguments.vpn_cidrs, VpnSpec::default().cidrs), ..VpnSpec::default() },
        images: ImagesSpec {
            registry: arguments.image_registry,
            pull_secrets: arguments.image_pull_secrets.into_iter().map(|name| LocalSecretReference { name }).collect(),
        },
        certificates: CertificatesSpec::default(),
        addons: AddonsSpec::default(),
        paused: false,
        newer: Newer::default(),
    };
    let mut cluster = Cluster::new(&arguments.cluster.name, spec);
    cluster.metadata = ObjectMeta {
        name: Some(arguments.cluster.name),
        namespace: Some(arguments.cluster.namespace),
        creation_timestamp: Some(Time(Timestamp::now())),
        ..ObjectMeta::default()
    };
    cluster
}
