//! `keelway cluster recover-quorum`.

use clap::Args;
use keelway_api::{
    Documents, Time,
    cluster::EtcdStatus,
    jiff::Timestamp,
    name::{ComponentName, NameError},
    store_rebuild::QuorumRecovery,
};

use super::print_documents;
use crate::{
    args::{ClusterName, GlobalArguments},
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct RecoverQuorumArguments {
    #[command(flatten)]
    cluster: ClusterName,
    /// The members that are gone for good, such as etcd-1,etcd-2: their machines are off for good, or their data was removed. Writes that only
    /// they stored are lost
    #[arg(long, value_name = "MEMBERS", value_delimiter = ',', required = true, value_parser = component)]
    lost: Vec<ComponentName>,
}

fn component(text: &str) -> Result<ComponentName, NameError> {
    text.parse()
}

pub(super) fn run(global: &GlobalArguments, arguments: &RecoverQuorumArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let documents = requested(&input, arguments, Timestamp::now()).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&documents)?;
    Ok(Code::Done)
}

fn requested(input: &Input, arguments: &RecoverQuorumArguments, now: Timestamp) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let Some(cluster) = documents.clusters.get_mut(&arguments.cluster.reference()) else {
        return Err(arguments.cluster.missing(&documents));
    };
    let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
    check(store, &arguments.lost)?;
    let lost = arguments.lost.clone();
    cluster.spec.etcd.recover_quorum = Some(QuorumRecovery { requested_at: Time(now), lost });
    Ok(documents)
}

/// Refuses what cannot be right by the documents alone. The pass that executes the request observes the members once more.
fn check(store: Option<&EtcdStatus>, lost: &[ComponentName]) -> Result<(), CommandFailure> {
    let Some(store) = store else {
        return Err(CommandFailure::usage("the cluster has no etcd yet", "create it with `keelway reconcile`"));
    };
    if store.rebuild.is_some() {
        return Err(CommandFailure::usage("its etcd is being rebuilt", "`keelway plan` shows what it waits for"));
    }
    if store.quorum_lost_since.is_none() {
        let help =
            "run `keelway reconcile`, which observes the members and records a loss in status.etcd.quorumLostSince";
        return Err(CommandFailure::usage("no pass has recorded that its etcd lost its quorum", help));
    }
    let members: Vec<&ComponentName> = store.staying_members().map(|(name, _)| name).collect();
    if let Some(other) = lost.iter().find(|name| !members.contains(name)) {
        return Err(CommandFailure::usage(
            format!("{other} is no etcd member"),
            format!("name some of {}", text(&members)),
        ));
    }
    let remaining: Vec<&ComponentName> = members.iter().copied().filter(|name| !lost.contains(name)).collect();
    if remaining.is_empty() {
        return Err(CommandFailure::usage(
            "no member remains from which its etcd could continue",
            "name only those that are gone for good",
        ));
    }
    if remaining.len() * 2 > members.len() {
        let problem = format!("{} would remain, which are a majority of its members", text(&remaining));
        let help = "bring the others back, or name all that are gone for good: a majority continues by itself, and lost members are replaced";
        return Err(CommandFailure::usage(problem, help));
    }
    Ok(())
}

fn text(names: &[&ComponentName]) -> String {
    names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}
