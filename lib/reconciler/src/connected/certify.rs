//! Enrolls agents on a network, and renews their certificates and trust.

use keelway_agent_api::enrollment::enroll;
use keelway_api::Hypervisor;
use keelway_base::error_chain::chain_text;
use keelway_planner::AgentOrder;

use super::{ConnectedMachines, MachineBackend};
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
                MachineBackend::Runtime(_) | MachineBackend::Bare(_) => return ApplyOutcome::default(),
            },
            Err(why) => Err(why),
        },
    };
    match certified {
        Ok(()) => ApplyOutcome { effects: 1, failures: Vec::new() },
        Err(why) => ApplyOutcome { effects: 0, failures: vec![why] },
    }
}

fn begins(certifying: &AgentCertification<'_>, run: &RunControl) {
    let (machine, effect) = (certifying.machine(), certifying.order().to_string());
    tracing::debug!(%machine, effect, "begins");
    run.progress.effect(machine, &effect);
}
