//! `keelway fleet agent-manifests`.

use clap::{ArgAction, Args};
use keelway_api::{
    name::{is_label, is_subdomain},
    release,
};
use keelway_fleet::{AgentRights, FleetToken, agent_manifests};

use super::{fleet_api::read_or_stdin, print};
use crate::exit::{Code, CommandFailure};

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct AgentManifestsArguments {
    /// The file of the token, or - for stdin
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) token: String,
    /// A registry that contains the image of the agent [default: registry.keelway.dev]
    #[arg(long, value_name = "REGISTRY")]
    pub(crate) registry: Option<String>,
    /// Let the fleet place roles and their bindings
    #[arg(long)]
    pub(crate) rbac: bool,
    /// Let the fleet place configurations of webhooks
    #[arg(long)]
    pub(crate) webhooks: bool,
    /// Let the fleet place these custom resources
    #[arg(long = "resource", value_name = "PLURAL.GROUP", value_parser = custom_resource)]
    pub(crate) resources: Vec<String>,
    /// Let the agent apply what the fleet places; with false, another orchestrator submits it, and the agent only reads
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub(crate) orchestration_enabled: bool,
    /// Let the fleet move objects away from this cluster by itself; with false, failover moves nothing away
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub(crate) rescheduling_enabled: bool,
}

fn custom_resource(text: &str) -> Result<String, &'static str> {
    let is_named = text.split_once('.').is_some_and(|(plural, group)| is_label(plural, 63) && is_subdomain(group));
    is_named
        .then(|| text.to_owned())
        .ok_or("use PLURAL.GROUP, the name of its CustomResourceDefinition, such as widgets.example.com")
}

pub(super) fn run(arguments: &AgentManifestsArguments) -> Result<Code, CommandFailure> {
    let text = read_or_stdin(&arguments.token)?;
    let token = FleetToken::parse(&text).map_err(|error| {
        CommandFailure::usage(error.to_string(), "create a token: keelway fleet token create --cluster-name NAME")
    })?;
    let rights = AgentRights {
        rbac: arguments.rbac,
        webhooks: arguments.webhooks,
        resources: arguments.resources.clone(),
        delegated: !arguments.orchestration_enabled,
        pinned: !arguments.rescheduling_enabled,
    };
    let image = release::fleet_agent_image(arguments.registry.as_deref());
    for manifest in agent_manifests(&token.to_text(), &image, &rights) {
        print("---\n")?;
        print(&serde_saphyr::to_string(&manifest).map_err(CommandFailure::other)?)?;
    }
    Ok(Code::Done)
}
