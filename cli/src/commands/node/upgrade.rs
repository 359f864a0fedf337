//! `keelway node upgrade`.

use std::time::Duration;

use keelway_node::{Layout, LeaveStep, NodeUpgradeStep, UpgradeError, UpgradeOptions, UpgradeOutcome, UpgradeTarget};

use super::{
    alone,
    arguments::UpgradeArguments,
    failure::{HarmlessError, into_failure},
    runtime, waiting,
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    progress::ProgressLine,
};

pub(super) fn upgrade(global: &GlobalArguments, arguments: UpgradeArguments) -> Result<Code, CommandFailure> {
    let options = UpgradeOptions {
        layout: Layout::new(&arguments.state.state_dir),
        drain: arguments.drain.then(|| Duration::from(arguments.drain_timeout)),
        timeout: Duration::from(arguments.timeout),
        target: target(arguments.image, arguments.to),
    };
    let _held = alone(&options.layout, false)?;
    let line = ProgressLine::of_terminal(global.quiet);
    let upgraded = runtime()?.block_on(keelway_node::upgrade(&options, |step| line.show(&step_text(step))));
    drop(line);
    let outcome = upgraded.map_err(into_failure)?;
    if !global.quiet {
        print_upgraded(&outcome);
    }
    Ok(Code::Done)
}

fn target(image: Option<String>, to: Option<String>) -> UpgradeTarget {
    match (image, to) {
        (Some(image), _) => UpgradeTarget::Image(image),
        (None, Some(version)) => UpgradeTarget::Release(version.trim_start_matches('v').to_owned()),
        (None, None) => UpgradeTarget::Cluster,
    }
}

fn step_text(step: &NodeUpgradeStep) -> String {
    match step {
        NodeUpgradeStep::Programs(image) => format!("extracting kubelet and CNI plugins from {image}"),
        NodeUpgradeStep::Drain(LeaveStep::Drain { ending, held }) => waiting(ending, held),
        NodeUpgradeStep::Drain(LeaveStep::Again(error)) => format!("retrying: {error}"),
        NodeUpgradeStep::Drain(LeaveStep::Undo | LeaveStep::Known(_)) => "draining".to_owned(),
        NodeUpgradeStep::Restart => "restarting the kubelet".to_owned(),
        NodeUpgradeStep::Wait(name) => format!("waiting for the Node {name}"),
    }
}

#[expect(clippy::print_stderr, reason = "it is for people")]
fn print_upgraded(outcome: &UpgradeOutcome) {
    let UpgradeOutcome { node, image, version, has_changed } = outcome;
    let what = if *has_changed { "runs" } else { "already runs" };
    eprintln!("{node} {what} kubelet {version} of {image}");
}

impl HarmlessError for UpgradeError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are failures on the way")]
    fn help(&self) -> Option<&'static str> {
        match self {
            Self::Status(status) => status.help(),
            Self::Release(_) | Self::Skew(_) | Self::Version { .. } => Some("nothing was changed"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_an_image_a_release_or_that_of_the_cluster() {
        assert_eq!(target(Some("a".into()), None), UpgradeTarget::Image("a".into()));
        assert_eq!(target(None, Some("v1.36.3".into())), UpgradeTarget::Release("1.36.3".into()));
        assert_eq!(target(None, None), UpgradeTarget::Cluster);
    }
}
