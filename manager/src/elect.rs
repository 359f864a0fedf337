//! Which of several managers over one store works, as options of a command.

use std::{fs, time::Duration};

use anyhow::{Context as _, bail};
use keelway_api::jiff::SignedDuration;
use keelway_lease::{Election, LeaseTimes, process};
use keelway_stores::kubernetes::LEASE;

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "the flags are called so")]
pub(crate) struct ElectArguments {
    /// With a store in Kubernetes: work only while holding the Lease keelway-manager, so that of several managers one works
    #[arg(long, default_missing_value = "true", default_value_t = false, num_args = 0..=1, require_equals = true, value_name = "BOOL", action = clap::ArgAction::Set)]
    pub(crate) leader_elect: bool,
    /// How long other managers wait before they acquire a Lease that is not renewed
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    leader_elect_lease_duration: Duration,
    /// How long the holder continues to work after its last renewal
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    leader_elect_renew_deadline: Duration,
    /// How often the holder renews the Lease
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    leader_elect_retry_period: Duration,
    /// The namespace of the Lease. The default is the namespace of the kubeconfig or of the pod
    #[arg(long, value_name = "NAMESPACE")]
    leader_elect_resource_namespace: Option<String>,
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    let parsed = text.parse::<SignedDuration>().ok().and_then(|span| Duration::try_from(span).ok());
    parsed.filter(|span| !span.is_zero()).ok_or("must be a duration, such as 15s")
}

impl ElectArguments {
    /// Returns the election, if the options request one.
    ///
    /// # Errors
    /// The durations contradict each other, or the machine has no name.
    pub(crate) fn election(&self, client: &kube::Client) -> anyhow::Result<Option<Election>> {
        if !self.leader_elect {
            return Ok(None);
        }
        let times = self.times()?;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").context("could not read the host name")?;
        let namespace = self.leader_elect_resource_namespace.as_deref().unwrap_or(client.default_namespace());
        Ok(Some(Election::new(client.clone(), (namespace, LEASE), &process(host.trim()), times)))
    }

    fn times(&self) -> anyhow::Result<LeaseTimes> {
        let (lasts, acts) = (self.leader_elect_lease_duration, self.leader_elect_renew_deadline);
        let renewal = self.leader_elect_retry_period;
        if lasts.subsec_nanos() > 0 {
            bail!("--leader-elect-lease-duration must be a whole number of seconds");
        }
        if lasts <= acts {
            bail!("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline");
        }
        if acts <= renewal {
            bail!("--leader-elect-renew-deadline must be longer than --leader-elect-retry-period");
        }
        Ok(LeaseTimes { duration: lasts, holder_deadline: acts, renewal, again: renewal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lasts: &str, acts: &str, renewal: &str) -> Result<LeaseTimes, String> {
        let arguments = ElectArguments {
            leader_elect: true,
            leader_elect_lease_duration: duration(lasts).unwrap(),
            leader_elect_renew_deadline: duration(acts).unwrap(),
            leader_elect_retry_period: duration(renewal).unwrap(),
            leader_elect_resource_namespace: None,
        };
        arguments.times().map_err(|error| error.to_string())
    }

    #[test]
    fn invalid_combinations_of_durations_are_refused() {
        assert!(of("15s", "10s", "2s").is_ok() && of("1m", "1500ms", "1s").is_ok());
        for (times, flag) in [
            (("1500ms", "1s", "500ms"), "lease-duration"),
            (("10s", "10s", "2s"), "lease-duration"),
            (("15s", "2s", "2s"), "renew-deadline"),
        ] {
            let (lasts, acts, renewal) = times;
            let refused = of(lasts, acts, renewal).unwrap_err();
            assert!(refused.starts_with(&format!("--leader-elect-{flag}")), "{refused}");
        }
        assert!(["", "15", "0s", "-1s", "soon"].iter().all(|text| duration(text).is_err()));
    }
}
