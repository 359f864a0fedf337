//! `keelway cluster rotate`.

use clap::{Args, ValueEnum};
use keelway_api::{
    Cluster, Documents, Time,
    jiff::Timestamp,
    rotation::{RotatedKey, RotationPhase, RotationRequest},
};

use super::{note, print_documents};
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
    /// Remove the previous key as soon as possible, because it was stolen: begin and complete a rotation, or complete the one that runs. See docs/rotation.md
    #[arg(long, conflicts_with = "complete")]
    now: bool,
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
    /// For API servers, users, and workers or fleet agents
    Kubernetes,
    /// All that the cluster can rotate
    All,
}

impl KeyArguments {
    fn names(&self, key: RotatedKey) -> bool {
        let has = |authority| self.authority.contains(&authority);
        let is_named = match key {
            RotatedKey::ServiceAccount => return self.service_account_key,
            RotatedKey::Encryption => return self.encryption_key,
            RotatedKey::EtcdAuthority => has(AuthorityArgument::Etcd),
            RotatedKey::FrontProxyAuthority => has(AuthorityArgument::FrontProxy),
            RotatedKey::InfrastructureAuthority => has(AuthorityArgument::Infrastructure),
            RotatedKey::KubernetesAuthority => has(AuthorityArgument::Kubernetes),
        };
        is_named || has(AuthorityArgument::All)
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
    let mut notes: Vec<String> = later(cluster).into_iter().collect();
    for key in RotatedKey::ALL.into_iter().filter(|key| arguments.keys.names(*key)) {
        let request = if arguments.now {
            notes.extend(completed_now(cluster, key));
            notes.push(format!("{}: {}", key.flag(), cut_off(key, is_fleet)));
            immediate(cluster, key, now)?
        } else if arguments.complete {
            completed(cluster, key)?
        } else {
            begun(cluster, key, now)?
        };
        *cluster.spec.rotations.request_mut(key) = Some(request);
    }
    for text in &notes {
        note(text);
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
    Ok(RotationRequest { requested_at, complete: false, immediate: false })
}

/// What has to happen before any key of the cluster is rotated.
fn later(cluster: &Cluster) -> Option<String> {
    let name = cluster.reference().name;
    let sleeps = cluster.spec.asleep || cluster.is_sleeping();
    sleeps.then(|| {
        format!("{name} is asleep: no key changes until it is awake; `keelway cluster wake --name {name}` starts it")
    })
}

/// Of the rotation that runs or is requested, or else of a new one.
fn immediate(cluster: &Cluster, key: RotatedKey, now: Timestamp) -> Result<RotationRequest, CommandFailure> {
    let running = cluster.running_rotation(key).map(|rotation| &rotation.requested_at);
    let known = running.or_else(|| cluster.pending_rotation(key).map(|request| &request.requested_at)).cloned();
    let requested_at = match known {
        Some(requested_at) => requested_at,
        None => begun(cluster, key, now)?.requested_at,
    };
    Ok(RotationRequest { requested_at, complete: true, immediate: true })
}

/// A rotation that runs does not replace the key that it has put into use.
fn completed_now(cluster: &Cluster, key: RotatedKey) -> Option<String> {
    let rotation = cluster.running_rotation(key)?;
    Some(format!(
        "{}: this completes the rotation that was requested at {}. If the key was stolen since, or with a copy of the documents from since, run the same command \
         again once this rotation is Completed",
        key.flag(),
        rotation.requested_at.0
    ))
}

fn completed(cluster: &Cluster, key: RotatedKey) -> Result<RotationRequest, CommandFailure> {
    match cluster.running_rotation(key) {
        Some(rotation) if rotation.phase >= RotationPhase::Prepared => {
            Ok(RotationRequest { requested_at: rotation.requested_at.clone(), complete: true, immediate: false })
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

/// What is rejected from the end of an immediate rotation on.
fn cut_off(key: RotatedKey, is_fleet: bool) -> &'static str {
    match key {
        RotatedKey::ServiceAccount => {
            "the cluster will reject every token of a service account from before, also those of pods: restart pods that use the API"
        }
        RotatedKey::Encryption => "snapshots from before cannot be restored without the previous key",
        RotatedKey::EtcdAuthority => "etcd will reject copies of the driver's certificate from before",
        RotatedKey::FrontProxyAuthority => {
            "aggregated API servers will reject requests of users until they read the new authority: delete the ConfigMap \
             extension-apiserver-authentication in kube-system"
        }
        RotatedKey::InfrastructureAuthority => {
            "nothing outside of the cluster's components uses the previous authority"
        }
        RotatedKey::KubernetesAuthority if is_fleet => {
            "the fleet will reject kubeconfigs, client certificates and fleet tokens from before, and agents that do not follow within five minutes; each of \
             these needs another token"
        }
        RotatedKey::KubernetesAuthority => {
            "the cluster will reject kubeconfigs, client certificates and join tokens from before, and workers that do not follow within five \
             minutes; pods that trust the previous authority only have to be restarted"
        }
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
