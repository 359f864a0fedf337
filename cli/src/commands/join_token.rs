//! `keelway join-token`.

use std::{io::Write, net::SocketAddr};

use clap::{Args, Subcommand};
use keelway_api::{Cluster, duration::Span, jiff::Timestamp};
use keelway_pki::{BootstrapToken, JoinToken};
use keelway_reconciler::{JoinInformation, WorkersError};
use rand::{SeedableRng, rngs::StdRng};

use super::{
    node_evict::evict,
    print,
    workers::{after, cluster, connect, failure, list_tokens},
};
use crate::{
    args::{ClusterArgument, GlobalArguments, OutputFormat},
    exit::{Code, CommandFailure},
    input::Input,
    view::{TokenView, list, table},
};

/// `keelway join-token`.
#[derive(Subcommand)]
pub(crate) enum JoinTokenCommand {
    /// Create and print a join token, which admits machines to the cluster until it expires
    #[command(
        after_help = "Example:\n  keelway join-token create --cluster c1 < c1.yaml\n  keelway join-token create --cluster c1 --ttl 1h -f c1.yaml > token"
    )]
    Create(CreateTokenArguments),
    /// List the join tokens of a cluster, without their secrets
    #[command(
        after_help = "Example:\n  keelway join-token list --cluster c1 < c1.yaml\n  keelway join-token list --cluster c1 -o json -f c1.yaml"
    )]
    List(ListTokensArguments),
    /// Revoke a join token; workers that joined with it stay unless --evict is set
    #[command(
        after_help = "Example:\n  keelway join-token revoke abcdef --cluster c1 < c1.yaml\n  keelway join-token revoke abcdef --evict --cluster c1 < c1.yaml"
    )]
    Revoke(RevokeTokenArguments),
}

#[derive(Args)]
pub(crate) struct CreateTokenArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
    /// How long the token is valid
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    pub(crate) ttl: Span,
}

#[derive(Args)]
pub(crate) struct ListTokensArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
}

#[derive(Args)]
pub(crate) struct RevokeTokenArguments {
    /// The ID of the token, as `join-token list` shows it
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgument,
    /// Also evict the workers that joined with the token
    #[arg(long)]
    pub(crate) evict: bool,
}

pub(super) fn run(global: &GlobalArguments, command: &JoinTokenCommand) -> Result<Code, CommandFailure> {
    match command {
        JoinTokenCommand::Create(arguments) => create(global, arguments),
        JoinTokenCommand::List(arguments) => show(global, arguments),
        JoinTokenCommand::Revoke(arguments) => revoke(global, arguments),
    }
}

fn create(global: &GlobalArguments, arguments: &CreateTokenArguments) -> Result<Code, CommandFailure> {
    let documents = Input::read(&global.files)?.documents()?;
    let cluster = cluster(&documents, &arguments.cluster)?;
    if arguments.ttl.seconds() == 0 {
        return Err(CommandFailure::usage("--ttl must be greater than 0", "set --ttl to 1m or more"));
    }
    let failed = |error| failure(error, &arguments.cluster);
    let JoinInformation { endpoints, names, authorities } = JoinInformation::of(&documents, cluster).map_err(failed)?;
    let (runtime, workers) = connect(&documents, cluster, &arguments.cluster)?;
    let bootstrap = BootstrapToken::mint(&mut StdRng::from_rng(&mut rand::rng()));
    let token = runtime.block_on(async {
        let endpoints = with_addresses_of_host(endpoints, cluster, global).await;
        workers.create_token(&bootstrap, after(Timestamp::now(), arguments.ttl)).await.map_err(failed)?;
        Ok::<_, CommandFailure>(JoinToken { endpoints, names, authorities, bootstrap })
    })?;
    print(&token.encode())?;
    print("\n")?;
    Ok(Code::Done)
}

/// Adds the current addresses of the cluster's host name to those of the ingresses. They can be another route to the ingresses.
async fn with_addresses_of_host(
    mut endpoints: Vec<SocketAddr>,
    cluster: &Cluster,
    global: &GlobalArguments,
) -> Vec<SocketAddr> {
    let (Some(host), Some(port)) = (&cluster.spec.endpoint.host, endpoints.first().map(SocketAddr::port)) else {
        return endpoints;
    };
    match tokio::net::lookup_host((host.as_str(), port)).await {
        Ok(found) => {
            for address in found.filter(|address| !address.ip().is_unspecified()) {
                if !endpoints.contains(&address) {
                    endpoints.push(address);
                }
            }
        }
        Err(error) if !global.quiet => {
            let _ = writeln!(
                std::io::stderr(),
                "warning: the token contains {host}, but no address of it, because this machine cannot resolve it: {error}"
            );
        }
        Err(_) => {}
    }
    endpoints
}

fn show(global: &GlobalArguments, arguments: &ListTokensArguments) -> Result<Code, CommandFailure> {
    let documents = Input::read(&global.files)?.documents()?;
    let cluster = cluster(&documents, &arguments.cluster)?;
    let (runtime, workers) = connect(&documents, cluster, &arguments.cluster)?;
    let records = runtime.block_on(workers.tokens()).map_err(|error| failure(error, &arguments.cluster))?;
    let (title, now) = (cluster.reference().to_string(), Timestamp::now());
    let views: Vec<TokenView> =
        records.into_iter().map(|record| TokenView { cluster: title.clone(), record, now }).collect();
    let list = || list(&views.iter().map(TokenView::json).collect::<Vec<_>>());
    let text = match arguments.output {
        OutputFormat::Table | OutputFormat::Wide if views.is_empty() => {
            let _ = writeln!(std::io::stderr(), "cluster {title} has no join tokens");
            String::new()
        }
        OutputFormat::Table => table(&views, false),
        OutputFormat::Wide => table(&views, true),
        OutputFormat::Json => serde_json::to_string_pretty(&list()).map_err(CommandFailure::other)? + "\n",
        OutputFormat::Yaml => serde_saphyr::to_string(&list()).map_err(CommandFailure::other)?,
        OutputFormat::Name => views.iter().flat_map(|view| ["jointoken/", view.record.id.as_str(), "\n"]).collect(),
    };
    print(&text)?;
    Ok(Code::Done)
}

fn revoke(global: &GlobalArguments, arguments: &RevokeTokenArguments) -> Result<Code, CommandFailure> {
    let id = &arguments.id;
    // Text that is not an id can be a whole token, so the error does not quote it.
    if id.len() != 6 || !id.bytes().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase()) {
        let problem = "ID must be the ID of a join token: six lower-case letters and digits";
        return Err(CommandFailure::usage(problem, list_tokens(&arguments.cluster)));
    }
    let documents = Input::read(&global.files)?.documents()?;
    let cluster = cluster(&documents, &arguments.cluster)?;
    let (runtime, workers) = connect(&documents, cluster, &arguments.cluster)?;
    let failed = |error| failure(error, &arguments.cluster);
    let worker_ttl = cluster.spec.certificates.worker_ttl;
    runtime.block_on(async {
        let revoked = workers.revoke_token(id).await;
        // No worker can join with the token now, so the list of those that did is complete.
        let joined = if arguments.evict { workers.joined_with(id).await.map_err(failed)? } else { [].into() };
        match revoked {
            // The token expired, or an earlier run revoked it.
            Err(WorkersError::NoToken(_)) if !joined.is_empty() => {}
            Err(error) => return Err(failed(error)),
            Ok(()) if !global.quiet => {
                let _ = writeln!(std::io::stderr(), "revoked join token {id}");
            }
            Ok(()) => {}
        }
        evict(&workers, &joined, (&arguments.cluster, worker_ttl), global).await
    })
}
