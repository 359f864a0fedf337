//! `keelway cluster rotate`.

use clap::{Args, ValueEnum};
use keelway_api::{
    Cluster, Documents, Time,
    jiff::Timestamp,
    rotation::{RotatedKey, RotationPhase, RotationRequest},
};

use super::print_documents;
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct RotateArguments {
    #[command(flatten)]
    cluster: ClusterName,
    #[command(flatten)]
    keys: KeyArguments,
    /// Remove the previous key. Everything that only the previous key verifies or decrypts is invalid from then on
    #[arg(long)]
    complete: bool,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
struct KeyArguments {
    /// The key that signs service account tokens
    #[arg(long)]
    service_account_key: bool,
    /// The key that encrypts Secrets in etcd
    #[arg(long)]
    encryption_key: bool,
    /// An authority. Can be repeated
    #[arg(long, value_enum)]
    authority: Vec<AuthorityArgument>,
}

/// The authorities that can be rotated.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AuthorityArgument {
    /// For etcd members and their clients
    Etcd,
    /// For requests that API servers pass on to aggregated API servers
    FrontProxy,
    /// For connections between Keelway's own components
    Infrastructure,
    /// For API servers, users and workers
    Kubernetes,
    /// All that the cluster can rotate
    All,
}

impl KeyArguments {
    fn names(&self, key: RotatedKey, is_fleet: bool) -> bool {
        let has = |authority| self.authority.contains(&authority);
        let is_named = match key {
            RotatedKey::ServiceAccount => return self.service_account_key,
            RotatedKey::Encryption => return self.encryption_key,
            RotatedKey::EtcdAuthority => has(AuthorityArgument::Etcd),
            RotatedKey::FrontProxyAuthority => has(AuthorityArgument::FrontProxy),
            RotatedKey::InfrastructureAuthority => has(AuthorityArgument::Infrastructure),
            RotatedKey::KubernetesAuthority => has(AuthorityArgument::Kubernetes),
        };
        let is_possible = key != RotatedKey::KubernetesAuthority || !is_fleet;
        is_named || (has(AuthorityArgument::All) && is_possible)
    }
}

pub(super) fn run(global: &GlobalArguments, arguments: &RotateArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let documents = requested(&input, arguments, Timestamp::now()).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&documents)?;
    Ok(Code::Done)
}

fn requested(input: &Input, arguments: &RotateArguments, now: Timestamp) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let Some(cluster) = documents.clusters.get_mut(&arguments.cluster.reference()) else {
        return Err(arguments.cluster.missing(&documents));
    };
    let is_fleet = cluster.spec.is_fleet();
    for key in RotatedKey::ALL.into_iter().filter(|key| arguments.keys.names(*key, is_fleet)) {
        let request = if arguments.complete { completed(cluster, key) } else { begun(cluster, key, now) }?;
        *cluster.spec.rotations.request_mut(key) = Some(request);
    }
    Ok(documents)
}

fn begun(cluster: &Cluster, key: RotatedKey, now: Timestamp) -> Result<RotationRequest, CommandFailure> {
    if !cluster.is_initialized() {
        return Err(CommandFailure::usage(
            "no API server of the cluster was ready yet",
            "create the cluster with `keelway reconcile`; it begins with new keys",
        ));
    }
    if let Some(rotation) = cluster.running_rotation(key) {
        let problem = format!("a rotation of the {key} runs already, and is {}", rotation.phase);
        return Err(CommandFailure::usage(problem, next_command(cluster, key, rotation.phase)));
    }
    if cluster.pending_rotation(key).is_some() {
        let problem = format!("a rotation of the {key} is requested already");
        return Err(CommandFailure::usage(problem, "`keelway reconcile` begins it"));
    }
    // Documents have whole seconds.
    let requested_at = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    Ok(RotationRequest { requested_at, complete: false })
}

fn completed(cluster: &Cluster, key: RotatedKey) -> Result<RotationRequest, CommandFailure> {
    match cluster.running_rotation(key) {
        Some(rotation) if rotation.phase >= RotationPhase::Prepared => {
            Ok(RotationRequest { requested_at: rotation.requested_at.clone(), complete: true })
        }
        Some(rotation) => Err(CommandFailure::usage(
            format!("the rotation of the {key} is {}, and can be completed once it is Prepared", rotation.phase),
            next_command(cluster, key, rotation.phase),
        )),
        None => Err(CommandFailure::usage(
            format!("no rotation of the {key} runs"),
            format!("begin one: `keelway cluster rotate --name {} {}`", cluster.reference().name, key.flag()),
        )),
    }
}

/// What continues a rotation in this phase.
fn next_command(cluster: &Cluster, key: RotatedKey, phase: RotationPhase) -> String {
    if phase == RotationPhase::Prepared {
        let name = cluster.reference().name;
        format!("complete it first: `keelway cluster rotate --name {name} {} --complete`", key.flag())
    } else {
        "run `keelway reconcile`; `keelway plan` shows what it waits for".to_owned()
    }
}
