//! `keelway cluster scale`.

use clap::Args;
use keelway_api::{Documents, cluster::ClusterSpec, fault::Faults, validated::ValidatedCluster};

use super::print_documents;
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct ScaleArguments {
    #[command(flatten)]
    cluster: ClusterName,
    #[command(flatten)]
    replicas: ScaledReplicas,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
#[expect(clippy::struct_field_names, reason = "the fields are the flags")]
struct ScaledReplicas {
    /// The number of etcd members: 1, 3, 5 or 7. Members are added and removed one after the other
    #[arg(long, value_name = "N")]
    etcd_replicas: Option<u32>,
    /// The number of API servers, controller managers and schedulers
    #[arg(long, value_name = "N")]
    control_plane_replicas: Option<u32>,
    /// The number of ingresses
    #[arg(long, value_name = "N")]
    ingress_replicas: Option<u32>,
}

pub(super) fn run(global: &GlobalArguments, arguments: &ScaleArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    print_documents(&scale(&input, arguments).map_err(|failure| failure.with_echo(&input))?)?;
    Ok(Code::Done)
}

fn scale(input: &Input, arguments: &ScaleArguments) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let Some(cluster) = documents.clusters.get_mut(&arguments.cluster.reference()) else {
        return Err(arguments.cluster.missing(&documents));
    };
    arguments.replicas.set(&mut cluster.spec);
    ValidatedCluster::parse(cluster).map_err(|faults| CommandFailure::faults(Faults(faults), &Input::flags()))?;
    Ok(documents)
}

impl ScaledReplicas {
    fn set(&self, spec: &mut ClusterSpec) {
        spec.etcd.replicas = self.etcd_replicas.unwrap_or(spec.etcd.replicas);
        spec.control_plane.replicas = self.control_plane_replicas.unwrap_or(spec.control_plane.replicas);
        spec.ingress.replicas = self.ingress_replicas.unwrap_or(spec.ingress.replicas);
    }
}
