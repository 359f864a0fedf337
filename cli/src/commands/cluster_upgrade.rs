//! `keelway cluster upgrade`.

use clap::Args;
use keelway_api::{Documents, fault::Faults, release, validated::ValidatedCluster};

use super::print_documents;
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct ClusterUpgradeArguments {
    #[command(flatten)]
    cluster: ClusterName,
    /// The Kubernetes release, such as 1.37.1 [default: the newest tested patch release of the cluster's minor version]
    #[arg(long, value_name = "VERSION")]
    to: Option<String>,
}

pub(super) fn run(global: &GlobalArguments, arguments: &ClusterUpgradeArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    print_documents(&upgrade(&input, arguments).map_err(|failure| failure.with_echo(&input))?)?;
    Ok(Code::Done)
}

fn upgrade(input: &Input, arguments: &ClusterUpgradeArguments) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let name = arguments.cluster.reference();
    let Some(cluster) = documents.clusters.get_mut(&name) else {
        return Err(arguments.cluster.missing(&documents));
    };
    cluster.spec.version = target(&cluster.spec.version, arguments.to.as_deref());
    let mut faults = ValidatedCluster::parse(cluster).err().unwrap_or_default();
    if let Some(cluster) = documents.clusters.get(&name).filter(|_| faults.is_empty()) {
        faults = documents.faults_of_change(cluster);
        faults.extend(documents.faults_of_class(cluster));
    }
    if !faults.is_empty() {
        return Err(CommandFailure::faults(Faults(faults), &Input::flags()));
    }
    Ok(documents)
}

/// The version to write. Without a wanted one, a cluster with a newer patch release than the tested one keeps it.
fn target(current: &str, wanted: Option<&str>) -> String {
    match wanted {
        // As kubeadm writes versions.
        Some(wanted) => wanted.strip_prefix('v').unwrap_or(wanted).to_owned(),
        None => {
            release::find(current).map_or(current.to_owned(), |runs| runs.max(runs.row.newest_tested()).to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_version_the_newest_tested_patch_release_is_chosen() {
        assert_eq!(target("1.36.1", None), "1.36.3");
        assert_eq!(target("1.36.9", None), "1.36.9");
        assert_eq!(target("1.36.1", Some("v1.37.0")), "1.37.0");
    }
}
