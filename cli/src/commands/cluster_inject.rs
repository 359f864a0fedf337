//! `keelway cluster inject`.

use clap::Args;
use keelway_api::{
    Cluster, Documents, Newer, ObjectMeta, Secret, Time,
    cluster::{
        AddonsSpec, ApiServerSpec, CertificatesSpec, ClusterSpec, ControlPlaneSpec, EndpointSpec, EtcdSpec, ImagesSpec,
        IngressSpec, LocalSecretReference, NetworkSpec, VpnSpec, WorkersSpec,
    },
    documents::SecretName,
    fault::Faults,
    jiff::Timestamp,
    name::ClusterRef,
    preflight::UpgradeSpec,
    release,
    rotation::RotationsSpec,
    validated::ValidatedCluster,
};

use super::{cluster_clone::SourceCluster, print_documents};
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct InjectArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterName,
    /// The Kubernetes release [default: the newest]
    #[arg(long, value_name = "RELEASE")]
    pub(crate) version: Option<String>,
    /// The number of etcd members
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) etcd_replicas: u32,
    /// The number of API servers, of controller managers and of schedulers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) control_plane_replicas: u32,
    /// The number of ingresses
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
    /// An address range for pods; one per IP family
    #[arg(long = "pod-cidr", value_name = "CIDR")]
    pub(crate) pod_cidrs: Vec<String>,
    /// An address range for Services; one per IP family
    #[arg(long = "service-cidr", value_name = "CIDR")]
    pub(crate) service_cidrs: Vec<String>,
    /// An address range for workers; one per IP family
    #[arg(long = "vpn-cidr", alias = "vpn-cidrs", value_name = "CIDR")]
    pub(crate) vpn_cidrs: Vec<String>,
    /// The largest packet inside the VPN, in bytes, from 1200 to 1420 [default: 1280]
    #[arg(long, value_name = "BYTES")]
    pub(crate) vpn_mtu: Option<u16>,
    /// The DNS domain of the cluster [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) dns_domain: Option<String>,
    /// The ClusterClass of the cluster [default: the default class, if there are classes]
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// A registry that holds all images, each under its original name and tag
    #[arg(long, value_name = "REGISTRY")]
    pub(crate) image_registry: Option<String>,
    /// A Secret of the type kubernetes.io/dockerconfigjson with the registry's credentials; can be repeated
    #[arg(long = "image-pull-secret", value_name = "NAME")]
    pub(crate) image_pull_secrets: Vec<String>,
    /// Begin with the objects of this snapshot of another cluster, as `snapshot list` prints its name. The Kubernetes release, the address
    /// ranges, the DNS domain and the place of snapshots are those of that cluster, unless they are set
    #[arg(long, value_name = "NAME")]
    pub(crate) from_snapshot: Option<String>,
    /// The cluster that the snapshot is of, as NAME or NAMESPACE/NAME [default: the only one with snapshots]
    #[arg(long, value_name = "CLUSTER", requires = "from_snapshot")]
    pub(crate) from_cluster: Option<String>,
}

pub(super) fn run(global: &GlobalArguments, mut arguments: InjectArguments) -> Result<Code, CommandFailure> {
    let (snapshot, from) = (arguments.from_snapshot.take(), arguments.from_cluster.take());
    let Some(snapshot) = snapshot else { return add(global, &cluster(arguments)) };
    let has_version = arguments.version.is_some();
    let mut cluster = cluster(arguments);
    let input = Input::read_some_of_file(&global.files)?;
    let from = from.map(|name| reference(&name, &cluster));
    let added = clone(&input, &mut cluster, from.as_ref(), (snapshot, has_version));
    print_documents(&added.map_err(|failure| failure.with_echo(&input))?)?;
    Ok(Code::Done)
}

/// Returns the cluster with this name, which is in the namespace of another one if it names none.
fn reference(name: &str, beside: &Cluster) -> ClusterRef {
    match name.split_once('/') {
        Some((namespace, name)) => ClusterRef { namespace: namespace.to_owned(), name: name.to_owned() },
        None => ClusterRef { namespace: beside.reference().namespace, name: name.to_owned() },
    }
}

fn clone(
    input: &Input,
    cluster: &mut Cluster,
    from: Option<&ClusterRef>,
    (snapshot, has_version): (String, bool),
) -> Result<Documents, CommandFailure> {
    let documents = input.documents()?;
    let source = SourceCluster::find(&documents, from)?;
    source.set(cluster, snapshot, has_version);
    let (name, keys) = source.keys(cluster)?;
    let mut documents = inject(input, cluster)?;
    add_keys(&mut documents, name, keys)?;
    Ok(documents)
}

/// Adds the Secret that the new cluster names. A cluster that was deleted may have left one with the same name.
fn add_keys(documents: &mut Documents, name: SecretName, keys: Secret) -> Result<(), CommandFailure> {
    match documents.user_secrets.get(&name) {
        None => {
            documents.add_user_secret(name, keys);
            Ok(())
        }
        Some(found) if found.data == keys.data => Ok(()),
        Some(_) => {
            let SecretName { namespace, name } = name;
            Err(CommandFailure::usage(
                format!("the Secret {namespace}/{name} has the keys of another snapshot"),
                "remove it if it is of a cluster that was deleted, or choose another --name",
            ))
        }
    }
}

/// Adds a Cluster to the documents of the input.
pub(super) fn add(global: &GlobalArguments, cluster: &Cluster) -> Result<Code, CommandFailure> {
    let input = Input::read_some_of_file(&global.files)?;
    let documents = inject(&input, cluster).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&documents)?;
    Ok(Code::Done)
}

fn inject(input: &Input, cluster: &Cluster) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let reference = cluster.reference();
    if documents.clusters.contains_key(&reference) {
        return Err(CommandFailure::usage(
            format!("cluster {reference} already exists"),
            "choose another --name, or edit its document",
        ));
    }
    ValidatedCluster::parse(cluster).map_err(|faults| CommandFailure::faults(Faults(faults), &Input::flags()))?;
    documents.clusters.insert(reference, cluster.clone());
    Ok(documents)
}

fn cluster(arguments: InjectArguments) -> Cluster {
    let network = NetworkSpec::default();
    let given = |list: Vec<String>, default: Vec<String>| if list.is_empty() { default } else { list };
    let spec = ClusterSpec {
        class_name: arguments.class,
        version: arguments.version.unwrap_or_else(|| release::newest_version().to_owned()),
        fleet: None,
        etcd: EtcdSpec { replicas: arguments.etcd_replicas, ..EtcdSpec::default() },
        control_plane: ControlPlaneSpec {
            replicas: arguments.control_plane_replicas,
            kube_api_server: ApiServerSpec { extra_sans: arguments.extra_sans, ..ApiServerSpec::default() },
            ..ControlPlaneSpec::default()
        },
        ingress: IngressSpec { replicas: arguments.ingress_replicas, port: arguments.ingress_port },
        endpoint: EndpointSpec { host: arguments.endpoint_host },
        network: NetworkSpec {
            pod_cidrs: given(arguments.pod_cidrs, network.pod_cidrs),
            service_cidrs: given(arguments.service_cidrs, network.service_cidrs),
            dns_domain: arguments.dns_domain.unwrap_or(network.dns_domain),
        },
        vpn: VpnSpec {
            cidrs: given(arguments.vpn_cidrs, VpnSpec::default().cidrs),
            mtu: arguments.vpn_mtu,
            ..VpnSpec::default()
        },
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
    named(arguments.cluster, spec)
}

/// Returns a new Cluster.
pub(super) fn named(name: ClusterName, spec: ClusterSpec) -> Cluster {
    let mut cluster = Cluster::new(&name.name, spec);
    cluster.metadata = ObjectMeta {
        name: Some(name.name),
        namespace: Some(name.namespace),
        creation_timestamp: Some(Time(Timestamp::now())),
        ..ObjectMeta::default()
    };
    cluster
}

#[cfg(test)]
mod tests {
    use keelway_api::ByteString;

    use super::*;

    #[test]
    fn keys_of_another_snapshot_are_not_replaced() {
        let name = SecretName { namespace: "default".to_owned(), name: "c2-source-keys".to_owned() };
        let keys = |value: &str| Secret {
            data: Some([("snapshot.agekey".to_owned(), ByteString(value.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        let mut documents = Documents::default();
        assert!(add_keys(&mut documents, name.clone(), keys("one")).is_ok());
        assert!(add_keys(&mut documents, name.clone(), keys("one")).is_ok());
        assert!(add_keys(&mut documents, name.clone(), keys("two")).is_err());
        assert_eq!(documents.user_secrets[&name].data, keys("one").data);
    }
}
