//! `keelway fleet explain`.

use clap::{Args, ValueEnum};
use keelway_fleet::PlacementExplanation;

use super::{
    fleet_api::{FleetArgument, read_or_stdin},
    fleet_observation::FleetObservation,
    print,
    session::runtime,
};
use crate::exit::{Code, CommandFailure};

#[derive(Args)]
pub(crate) struct FleetExplainArguments {
    /// The object: KIND/NAME, or KIND.GROUP/NAME
    #[arg(value_name = "KIND/NAME")]
    pub(crate) object: String,
    /// The namespace of the object [default: that of the kubeconfig, or default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: ExplanationOutput,
    /// Explain from the output of `keelway fleet observe`, without the fleet; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "kubeconfig")]
    pub(crate) from: Option<String>,
    #[command(flatten)]
    pub(crate) fleet: FleetArgument,
}

/// The output format of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplanationOutput {
    /// A paragraph for each cluster
    Text,
    /// The same in JSON
    Json,
}

pub(super) fn run(arguments: &FleetExplainArguments) -> Result<Code, CommandFailure> {
    let Some((kind, name)) =
        arguments.object.split_once('/').filter(|(kind, name)| !kind.is_empty() && !name.is_empty())
    else {
        let message = format!("{:?} is not an object", arguments.object);
        return Err(CommandFailure::usage(message, "write KIND/NAME, such as deployment/web"));
    };
    let explanation = match &arguments.from {
        Some(path) => {
            let observation = FleetObservation::read(&read_or_stdin(path)?)?;
            explain(&observation, arguments.namespace.as_deref().unwrap_or("default"), kind, name)
        }
        None => runtime()?.block_on(async {
            let (client, _) = arguments.fleet.client().await?;
            let namespace = arguments.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
            explain(&FleetObservation::of_objects(&client, namespace, name).await?, namespace, kind, name)
        }),
    }?;
    let text = match arguments.output {
        ExplanationOutput::Text => explanation.to_string(),
        ExplanationOutput::Json => serde_json::to_string_pretty(&explanation).map_err(CommandFailure::other)? + "\n",
    };
    print(&text)?;
    Ok(Code::Done)
}

fn explain(
    observation: &FleetObservation,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<PlacementExplanation, CommandFailure> {
    let placement = observation.placement(namespace, kind, name)?;
    Ok(PlacementExplanation::new(&placement.spec, placement.status.as_ref(), &observation.clusters))
}
