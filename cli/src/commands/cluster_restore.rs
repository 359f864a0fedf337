//! `keelway cluster restore`.

use clap::Args;
use keelway_api::{Documents, Time, fault::Faults, jiff::Timestamp, restore::RestoreSpec, validated::ValidatedCluster};

use super::print_documents;
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct RestoreArguments {
    #[command(flatten)]
    cluster: ClusterName,
    /// The snapshot, as `snapshot list` prints its name
    #[arg(long, value_name = "NAME")]
    snapshot: String,
}

pub(super) fn run(global: &GlobalArguments, arguments: RestoreArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    print_documents(&restore(&input, arguments).map_err(|failure| failure.with_echo(&input))?)?;
    Ok(Code::Done)
}

fn restore(input: &Input, arguments: RestoreArguments) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let RestoreArguments { cluster: name, snapshot } = arguments;
    let Some(cluster) = documents.clusters.get_mut(&name.reference()) else {
        return Err(name.missing(&documents));
    };
    if cluster.spec.etcd.snapshots.is_none() {
        return Err(CommandFailure::usage(
            format!("cluster {} has no place for snapshots: spec.etcd.snapshots is not set", name.reference()),
            "set spec.etcd.snapshots.sink to the place of the snapshot; docs/backup.md has examples",
        ));
    }
    cluster.spec.etcd.restore = Some(request(snapshot));
    ValidatedCluster::parse(cluster).map_err(|faults| CommandFailure::faults(Faults(faults), &Input::flags()))?;
    Ok(documents)
}

/// Returns a request that is made now. Documents have whole seconds.
pub(super) fn request(snapshot: String) -> RestoreSpec {
    let now = Timestamp::now();
    let requested_at = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    RestoreSpec { snapshot, requested_at, cluster: None }
}
