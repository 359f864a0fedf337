//! Enrolls agents on a network, renews their certificates and trust, and starts and stops agents behind proxies.

use keelway_agent_api::enrollment::enroll;
use keelway_api::Hypervisor;
use keelway_base::error_chain::chain_text;
use keelway_planner::AgentOrder;

use super::{
    ConnectedMachines, MachineBackend,
    started_agent::{StartAgentError, StartedAgent},
};
use crate::{AgentCertification, ApplyOutcome, RunControl};

pub(super) async fn certify(
    machines: &ConnectedMachines,
    machine: &Hypervisor,
    certifying: &AgentCertification<'_>,
    run: &RunControl,
) -> ApplyOutcome {
    let certified = match certifying.order() {
        AgentOrder::Enroll(_) => {
            // An agent that does not listen yet is no failure: the pass waits for it.
            let Ok(way) = machines.introduction.way(machine) else { return ApplyOutcome::default() };
            let Ok(stream) = way.connection().await else { return ApplyOutcome::default() };
            begins(certifying, run);
            match certifying.token() {
                Ok(token) => {
                    let grant = |request: &str| certifying.grant(request);
                    let enrolled = enroll(stream, certifying.machine(), &token, grant).await;
                    enrolled.map_err(|error| chain_text(&error))
                }
                Err(why) => Err(why),
            }
        }
        order @ (AgentOrder::Renew(_) | AgentOrder::Trust) => match machines.connect(machine).await {
            Ok(connected) => match &connected.by {
                MachineBackend::Agent(agent) => {
                    begins(certifying, run);
                    if *order == AgentOrder::Trust {
                        agent.trust(certifying).await
                    } else {
                        agent.renew(certifying).await
                    }
                }
                MachineBackend::Runtime(_) => return ApplyOutcome::default(),
            },
            Err(why) => Err(why),
        },
        AgentOrder::Start(_) => match start(machines, machine, certifying, run).await {
            Ok(false) => return ApplyOutcome::default(),
            started => started.map(drop).map_err(|error| chain_text(&error)),
        },
        AgentOrder::Stop => match StartedAgent::of(&machines.introduction, machine) {
            Ok(agent) => {
                begins(certifying, run);
                agent.stop(&machines.archives).await.map_err(|error| chain_text(&error))
            }
            Err(error) => Err(chain_text(&error)),
        },
    };
    match certified {
        Ok(()) => ApplyOutcome { effects: 1, failures: Vec::new() },
        Err(why) => ApplyOutcome { effects: 0, failures: vec![why] },
    }
}

/// Starts the agent behind a machine's proxy. A proxy that does not respond yet is no failure: the pass waits for it. Returns whether anything was
/// done.
async fn start(
    machines: &ConnectedMachines,
    machine: &Hypervisor,
    certifying: &AgentCertification<'_>,
    run: &RunControl,
) -> Result<bool, StartAgentError> {
    let agent = StartedAgent::of(&machines.introduction, machine)?;
    if agent.is_running().await.is_err() {
        return Ok(false);
    }
    begins(certifying, run);
    agent.start(&machines.archives, certifying).await
}

fn begins(certifying: &AgentCertification<'_>, run: &RunControl) {
    let (machine, effect) = (certifying.machine(), certifying.order().to_string());
    tracing::debug!(%machine, effect, "begins");
    run.progress.effect(machine, &effect);
}
