//! Waves: how a new release of Keelway reaches the clusters. Its image is in every API server's pod (egress) and in every gateway, so
//! without waves a release would replace components of all clusters at once.

use alloc::{collections::BTreeSet, format, string::ToString, vec, vec::Vec};
use core::{fmt, str::FromStr};

use keelway_api::{
    Cluster, Documents,
    condition::{self},
    name::ClusterRef,
    release::KEELWAY,
};

/// The condition of a Cluster. It exists only while the cluster is not up to date.
pub(crate) const UP_TO_DATE: &str = "KeelwayUpToDate";

/// How many clusters are upgraded to a new release of Keelway before all others. A wave begins when every cluster of the earlier waves runs
/// the release, is available and is not degraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waves(Vec<Share>);

/// The size of one wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    Clusters(usize),
    /// Of all clusters, rounded up.
    Percent(usize),
}

/// The error for a text that does not describe waves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be numbers or percentages of clusters, such as 1,10%, or 100% for all clusters at once")]
pub struct WavesError;

impl Default for Waves {
    fn default() -> Self {
        Self(vec![Share::Clusters(1), Share::Percent(10)])
    }
}

impl FromStr for Waves {
    type Err = WavesError;

    fn from_str(text: &str) -> Result<Self, WavesError> {
        text.split(',').map(|share| Share::parse(share.trim()).ok_or(WavesError)).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Waves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = self.0.iter().map(|share| match share {
            Share::Clusters(number) => number.to_string(),
            Share::Percent(number) => format!("{number}%"),
        });
        f.write_str(&shares.collect::<Vec<_>>().join(","))
    }
}

impl Share {
    fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str| digits.parse::<usize>().ok().filter(|number| *number > 0);
        match text.strip_suffix('%') {
            Some(digits) => number(digits).filter(|percent| *percent <= 100).map(Self::Percent),
            None => number(text).map(Self::Clusters),
        }
    }

    fn of(self, clusters: usize) -> usize {
        match self {
            Self::Clusters(number) => number,
            Self::Percent(percent) => clusters.saturating_mul(percent).div_ceil(100),
        }
    }
}

impl Waves {
    /// Returns the clusters that may be upgraded to this release now, which are those of the waves that have begun. Healthy clusters belong to
    /// earlier waves than others. Among equals the order is by name.
    #[must_use]
    pub fn open(&self, documents: &Documents) -> BTreeSet<ClusterRef> {
        let upgradable = documents.clusters.iter().filter(|(_, cluster)| is_upgradable(cluster));
        let mut behind: Vec<(bool, &ClusterRef)> = Vec::new();
        let (mut admitted, mut done) = (0, 0);
        for (name, cluster) in upgradable {
            if is_behind(cluster) {
                behind.push((!is_healthy(cluster), name));
            } else if was_upgraded(cluster) {
                admitted += 1;
                done += usize::from(is_healthy(cluster) && !is_upgrading(cluster));
            }
        }
        behind.sort_unstable();
        let begun = self.begun(admitted + behind.len(), done);
        behind.into_iter().take(begun.saturating_sub(admitted)).map(|(_, name)| name.clone()).collect()
    }

    /// Returns whether the cluster is to be upgraded to this release, once its wave has begun.
    #[must_use]
    pub fn awaits(cluster: &Cluster) -> bool {
        is_upgradable(cluster) && is_behind(cluster)
    }

    /// The number of clusters in the waves that have begun, if `done` of `all` clusters are upgraded and healthy.
    fn begun(&self, all: usize, done: usize) -> usize {
        let mut begun = 0;
        for share in self.0.iter().map(|share| share.of(all)).chain([all]) {
            if done < begun {
                return begun;
            }
            begun = all.min(begun.saturating_add(share));
        }
        begun
    }
}

/// Whether the cluster takes part in waves. A cluster that is paused or sleeps takes part later.
pub(crate) fn is_upgradable(cluster: &Cluster) -> bool {
    cluster.id().is_some() && cluster.is_changeable()
}

/// Whether Keelway's own components of the cluster are to run another release than this one.
pub(crate) fn is_behind(cluster: &Cluster) -> bool {
    cluster.keelway_version() != KEELWAY
}

/// Whether the cluster was upgraded from an earlier release. A new cluster does not show that an upgrade works.
fn was_upgraded(cluster: &Cluster) -> bool {
    let keelway = cluster.status.as_ref().and_then(|status| status.keelway.as_ref());
    keelway.is_some_and(|keelway| keelway.previous_version.is_some())
}

/// Whether components of the cluster may still run the previous release.
pub(crate) fn is_upgrading(cluster: &Cluster) -> bool {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    !is_behind(cluster) && conditions.any(|found| found.type_ == UP_TO_DATE)
}

pub(crate) fn is_healthy(cluster: &Cluster) -> bool {
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::is_true(conditions, "Available") && !condition::is_true(conditions, "Degraded")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(waves: &str, all: usize, done: usize) -> usize {
        waves.parse::<Waves>().unwrap().begun(all, done)
    }

    #[test]
    fn a_wave_begins_once_those_before_it_are_done() {
        let of_thirty = [0, 1, 3, 4, 30].map(|done| begun("1,10%", 30, done));
        assert_eq!(of_thirty, [1, 4, 4, 30, 30]);
        assert_eq!([0, 1, 2].map(|done| begun("1,10%", 2, done)), [1, 2, 2]);
        assert_eq!([0, 1].map(|done| begun("1,10%", 1, done)), [1, 1]);
        assert_eq!(begun("100%", 30, 0), 30);
        assert_eq!(begun("1", 0, 0), 0);
    }

    #[test]
    fn waves_are_written_as_numbers_and_percentages() {
        for text in ["1,10%", "1,5,10%,50%", "100%"] {
            assert_eq!(text.parse::<Waves>().unwrap().to_string(), text);
        }
        assert_eq!(Waves::default(), "1, 10%".parse().unwrap());
        for text in ["", "0", "1,", "101%", "0%", "-1", "ten", "1;2"] {
            assert_eq!(text.parse::<Waves>(), Err(WavesError), "{text}");
        }
    }
}
