//! `keelway cluster upgrade`.

use clap::{Args, ValueEnum};
use keelway_api::{Documents, fault::Faults, preflight::PreflightCheck, release, validated::ValidatedCluster};

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
    /// Upgrade the kubelets of all workers to the same release, some at a time (spec.workers)
    #[arg(long)]
    workers: bool,
    /// Checks before an upgrade to the next minor version whose findings do not stop it
    #[arg(long, value_name = "CHECK", value_delimiter = ',', ignore_case = true, value_enum)]
    ignore_preflight_errors: Vec<CheckArgument>,
}

/// The checks, by their names in documents.
#[derive(Clone, Copy, ValueEnum)]
enum CheckArgument {
    /// Clients request APIs that the next minor version does not serve
    #[value(name = "DeprecatedAPIs")]
    DeprecatedApis,
    /// Kubelets would be more than three minor versions older than API servers
    #[value(name = "KubeletVersions")]
    KubeletVersions,
    /// Admission webhooks without a ready endpoint refuse what API servers write when they start
    #[value(name = "Webhooks")]
    Webhooks,
}

impl From<CheckArgument> for PreflightCheck {
    fn from(argument: CheckArgument) -> Self {
        match argument {
            CheckArgument::DeprecatedApis => Self::DeprecatedApis,
            CheckArgument::KubeletVersions => Self::KubeletVersions,
            CheckArgument::Webhooks => Self::Webhooks,
        }
    }
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
    if arguments.workers {
        cluster.spec.workers.version = Some(cluster.spec.version.clone());
    }
    // What is ignored is of this upgrade, and not of the next one.
    cluster.spec.upgrade.ignore_preflight_errors =
        arguments.ignore_preflight_errors.iter().copied().map(PreflightCheck::from).collect();
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
