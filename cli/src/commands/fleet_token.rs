//! `keelway fleet token`.

use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::ConfigMap;
use keelway_api::{duration::Span, jiff::Timestamp};
use keelway_fleet::{
    BootstrapToken, ClusterLocation, FleetToken,
    bootstrap::{AUTHORITIES_KEY, ENDPOINTS_KEY, FLEET_INFORMATION, TOKEN_NAMESPACE, token_secret},
    is_label_value,
    names::{LONGEST_CLUSTER_NAME, is_cluster_name},
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use rand::{SeedableRng, rngs::StdRng};

use super::{fleet_api::FleetArgument, print, session::runtime, workers::after};
use crate::exit::{Code, CommandFailure};

/// `keelway fleet token`.
#[derive(Subcommand)]
pub(crate) enum FleetTokenCommand {
    /// Create and print a token with which one workload cluster can register once
    #[command(
        after_help = "Example:\n  keelway fleet token create --cluster-name west --kubeconfig f1.kubeconfig > token\n  keelway fleet token create --cluster-name west --region eu --zone a --ttl 10m --kubeconfig f1.kubeconfig > token"
    )]
    Create(CreateFleetTokenArguments),
}

#[derive(Args)]
pub(crate) struct CreateFleetTokenArguments {
    /// The name of the workload cluster in the fleet
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster_name: String,
    /// The provider of the cluster, such as aws or keelway; policies can select it
    #[arg(long, value_name = "NAME", value_parser = label_value)]
    pub(crate) provider: Option<String>,
    /// The region of the cluster; policies can select it
    #[arg(long, value_name = "NAME", value_parser = label_value)]
    pub(crate) region: Option<String>,
    /// The zone of the cluster; policies can select it
    #[arg(long, value_name = "NAME", value_parser = label_value)]
    pub(crate) zone: Option<String>,
    /// How long the token is valid
    #[arg(long, default_value = "1h", value_name = "DURATION")]
    pub(crate) ttl: Span,
    #[command(flatten)]
    pub(crate) fleet: FleetArgument,
}

fn label_value(text: &str) -> Result<String, &'static str> {
    let help = "use 1 to 63 letters, digits, -, _ and ., with a letter or digit at both ends";
    is_label_value(text).then(|| text.to_owned()).ok_or(help)
}

pub(super) fn run(command: &FleetTokenCommand) -> Result<Code, CommandFailure> {
    let FleetTokenCommand::Create(arguments) = command;
    create(arguments)
}

fn create(arguments: &CreateFleetTokenArguments) -> Result<Code, CommandFailure> {
    let cluster = &arguments.cluster_name;
    if !is_cluster_name(cluster) {
        let help = format!("use at most {LONGEST_CLUSTER_NAME} lower-case letters, digits and -, such as west");
        return Err(CommandFailure::usage(
            format!("--cluster-name: {cluster:?} is not a name of a workload cluster"),
            help,
        ));
    }
    if arguments.ttl.seconds() == 0 {
        return Err(CommandFailure::usage("--ttl must be greater than 0", "set --ttl to 1m or more"));
    }
    let location = ClusterLocation {
        provider: arguments.provider.clone(),
        region: arguments.region.clone(),
        zone: arguments.zone.clone(),
    };
    let bootstrap = BootstrapToken::mint(&mut StdRng::from_rng(&mut rand::rng()));
    let text = runtime()?.block_on(async {
        let (client, _) = arguments.fleet.client().await?;
        let (server, authorities) = information(&client).await?;
        let mut secret = token_secret(&bootstrap, cluster, after(Timestamp::now(), arguments.ttl));
        secret.annotations_mut().extend(location.annotations());
        let secrets = Api::namespaced(client, TOKEN_NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await.map_err(CommandFailure::other)?;
        Ok::<_, CommandFailure>(FleetToken { server, authorities, cluster: cluster.clone(), bootstrap }.to_text())
    })?;
    print(&text)?;
    print("\n")?;
    Ok(Code::Done)
}

/// Returns the endpoints and the authorities of the fleet, as its controller published them.
async fn information(client: &Client) -> Result<(Vec<String>, String), CommandFailure> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), TOKEN_NAMESPACE);
    let found = maps.get_opt(FLEET_INFORMATION).await.map_err(CommandFailure::other)?;
    let data = found.and_then(|map| map.data).unwrap_or_default();
    let endpoints = data.get(ENDPOINTS_KEY).map(String::as_str).unwrap_or_default();
    let servers: Vec<String> = endpoints.lines().map(|endpoint| format!("https://{endpoint}")).collect();
    match data.get(AUTHORITIES_KEY) {
        Some(authorities) if !servers.is_empty() => Ok((servers, authorities.clone())),
        Some(_) | None => Err(CommandFailure::usage(
            "the fleet has not published its endpoints: either this is not the kubeconfig of a fleet, or its controller does not run",
            "check the fleet: keelway fleet status",
        )),
    }
}
