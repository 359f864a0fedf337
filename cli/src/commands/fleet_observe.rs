//! `keelway fleet observe`.

use clap::Args;

use super::{fleet_api::FleetArgument, fleet_observation::FleetObservation, print, session::runtime};
use crate::exit::{Code, CommandFailure};

#[derive(Args)]
pub(crate) struct FleetObserveArguments {
    #[command(flatten)]
    pub(crate) fleet: FleetArgument,
}

pub(super) fn run(arguments: &FleetObserveArguments) -> Result<Code, CommandFailure> {
    let observation = runtime()?.block_on(async {
        let (client, _) = arguments.fleet.client().await?;
        FleetObservation::of_fleet(&client).await
    })?;
    print(&serde_saphyr::to_string(&observation.list()?).map_err(CommandFailure::other)?)?;
    Ok(Code::Done)
}
