//! `keelway delete`.

use std::{collections::BTreeSet, io::Write, time::Duration};

use clap::Args;
use futures::TryStreamExt;
use keelway_api::{document::DocumentName, duration::Span};
use keelway_manager_client::{
    client::{DocumentSelection, ManagerClient, ManagerClientError},
    proto::{DocumentName as WireName, watch_event::Type},
};
use tokio::time::timeout;

use super::{client, failed, kubectl_name, names};
use crate::{
    args::NamedArguments,
    commands::{print, session::runtime},
    exit::{Code, CommandFailure},
};

#[derive(Args)]
pub(crate) struct DeleteArguments {
    #[command(flatten)]
    pub(crate) named: NamedArguments,
    /// Wait until no machine holds parts of the deleted documents
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) timeout: Span,
}

pub(in crate::commands) fn run(arguments: &DeleteArguments) -> Result<Code, CommandFailure> {
    let names = names(&arguments.named)?;
    let runtime = runtime()?;
    let mut client = client(&runtime, &arguments.named.server);
    runtime.block_on(async {
        let deleted = client.delete(&names).await.map_err(failed)?;
        for deleted in &deleted {
            print(&format!("{} deleted\n", kubectl_name(deleted.name.as_ref())))?;
        }
        if !arguments.wait || deleted.iter().all(|deleted| deleted.gone) {
            return Ok(Code::Done);
        }
        let patience = Duration::from_secs(arguments.timeout.seconds());
        if let Ok(gone) = timeout(patience, until_gone(&mut client, names)).await {
            return gone.map(|()| Code::Done).map_err(failed);
        }
        let mut stderr = std::io::stderr();
        let _ = writeln!(
            stderr,
            "not deleted before the timeout; the manager continues, and `keelway get` shows what it waits for"
        );
        Ok(Code::NotSettled)
    })
}

/// Waits until these documents are deleted. A document that the watch does not list at first is deleted already.
async fn until_gone(client: &mut ManagerClient, names: Vec<DocumentName>) -> Result<(), ManagerClientError> {
    let mut left = BTreeSet::new();
    let mut events = Box::pin(client.watch(&DocumentSelection { kinds: Vec::new(), names }).await?);
    while let Some(event) = events.try_next().await? {
        let name = event.document.as_ref().and_then(|document| document.name.clone()).map(key);
        match (event.r#type(), name) {
            (Type::Added, Some(name)) => drop(left.insert(name)),
            (Type::Deleted, Some(name)) => drop(left.remove(&name)),
            (Type::Bookmark, _) => {}
            (Type::Added | Type::Deleted | Type::Modified | Type::Unspecified, _) => continue,
        }
        if left.is_empty() && event.r#type() != Type::Added {
            return Ok(());
        }
    }
    Err(ManagerClientError::Failed("the watch ended".to_owned()))
}

fn key(name: WireName) -> (String, String, String) {
    (name.kind, name.namespace, name.name)
}
