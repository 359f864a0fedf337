//! Why a cluster runs an object or does not, as data, and its text for people.

use alloc::collections::BTreeMap;
use core::fmt;

use k8s_openapi::jiff::Timestamp;

use crate::{
    ClusterTaint, LeaveCause, MoveObstacle, PlacementReason, RoomShortage, ScoreStep,
    names::{REASON_CANNOT_MOVE, REASON_NEEDED, REASON_SPREAD_REFUSED},
};

/// The reason whose message contains what is free, which changes all the time.
const NO_ROOM: &str = "NoRoom";

/// What was decided on one cluster for one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacementVerdict {
    /// The cluster runs the object.
    Runs(RunReason),
    /// The cluster cannot run the object.
    Rejected(Rejection),
    /// Another cluster is better.
    Outranked {
        /// The other cluster.
        winner: String,
        /// The step in which it is better.
        by: ScoreStep,
    },
}

/// Why a cluster runs an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunReason {
    /// It is the best of the clusters that can.
    Chosen {
        /// The number of clusters that can.
        among: usize,
    },
    /// No cluster is known to have room, and this one adds nodes.
    Grows,
    /// It has run the object before, and nothing forbids it.
    Stays,
    /// It runs a part of the replicas.
    Divided {
        /// Its part.
        replicas: u32,
        /// The replicas of the object.
        total: u32,
    },
    /// It runs the object as every selected cluster does.
    Everywhere,
    /// The object has to leave it, and stays.
    CannotMove {
        /// Why it has to leave.
        cause: LeaveCause,
        /// Why it stays.
        obstacle: MoveObstacle,
    },
    /// Other clusters run the object as well, and something in this one may need it until it has left.
    Needed,
}

/// Why a cluster cannot run an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// An annotation names the cluster, and the fleet has no such cluster.
    NotRegistered,
    /// The object stays in its clusters, because nothing selects it, or it is not known what does.
    Kept,
    /// The object stays in another cluster, which the policy or annotation does not select any more, and which it cannot leave.
    Held {
        /// The other cluster. If there are several, it is the first one.
        by: String,
    },
    /// An annotation names other clusters.
    NotNamed,
    /// The policy does not select the cluster.
    NotSelected {
        /// The policy.
        policy: String,
    },
    /// The order of the policy does not name the cluster.
    NotOrdered {
        /// The policy.
        policy: String,
    },
    /// The cluster lacks the label over whose values the object is spread.
    NoTopologyLabel {
        /// The label.
        key: String,
    },
    /// The policy assigns no share of the replicas to the cluster's domain.
    NoShare {
        /// The domain.
        domain: String,
    },
    /// Another orchestrator submits the objects of the cluster, and it submits each one as a whole.
    SpreadRefused,
    /// The cluster is being removed from the fleet.
    Leaving,
    /// The object leaves the cluster, or left it, because it was not ready.
    Lost {
        /// Since when it has not been ready. It is `None` if the cluster is ready again.
        since: Option<Timestamp>,
    },
    /// The object left the cluster because it was not ready, and the cluster has to be ready for longer before it returns.
    Recovering {
        /// The time at which it returns if the cluster is ready until then.
        until: Timestamp,
    },
    /// The cluster is being drained.
    Draining,
    /// The cluster is cordoned.
    Cordoned,
    /// The object does not tolerate a taint of the cluster.
    Tainted {
        /// The taint.
        taint: ClusterTaint,
    },
    /// The cluster is not ready.
    NotReady {
        /// The message of the condition. It is empty if the agent has never reported.
        message: String,
    },
    /// It is not known what the cluster has room for.
    UnknownRoom,
    /// The cluster has no room for the object.
    NoRoom(RoomShortage),
}

impl PlacementVerdict {
    /// Returns one CamelCase word for machines.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Runs(RunReason::Chosen { .. }) => "Chosen",
            Self::Runs(RunReason::Grows) => "Grows",
            Self::Runs(RunReason::Stays) => "Stays",
            Self::Runs(RunReason::Divided { .. }) => "Divided",
            Self::Runs(RunReason::Everywhere) => "Everywhere",
            Self::Runs(RunReason::CannotMove { .. }) => REASON_CANNOT_MOVE,
            Self::Runs(RunReason::Needed) => REASON_NEEDED,
            Self::Rejected(rejection) => rejection.reason(),
            Self::Outranked { .. } => "Outranked",
        }
    }

    /// Whether the cluster runs the object.
    #[must_use]
    pub fn runs(&self) -> bool {
        matches!(self, Self::Runs(_))
    }
}

impl Rejection {
    /// Whether only people change it: the policy, the annotation or the labels reject the cluster, or it is being removed.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::NotRegistered
                | Self::NotNamed
                | Self::NotSelected { .. }
                | Self::NotOrdered { .. }
                | Self::NoTopologyLabel { .. }
                | Self::NoShare { .. }
                | Self::SpreadRefused
                | Self::Leaving
        )
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::NotRegistered => "NotRegistered",
            Self::Kept => "Kept",
            Self::Held { .. } => "Held",
            Self::NotNamed => "NotNamed",
            Self::NotSelected { .. } => "NotSelected",
            Self::NotOrdered { .. } => "NotOrdered",
            Self::NoTopologyLabel { .. } => "NoTopologyLabel",
            Self::NoShare { .. } => "NoShare",
            Self::SpreadRefused => REASON_SPREAD_REFUSED,
            Self::Leaving => "Leaving",
            Self::Lost { .. } => "Lost",
            Self::Recovering { .. } => "Recovering",
            Self::Draining => "Draining",
            Self::Cordoned => "Cordoned",
            Self::Tainted { .. } => "Tainted",
            Self::NotReady { .. } => "NotReady",
            Self::UnknownRoom => "UnknownRoom",
            Self::NoRoom(_) => NO_ROOM,
        }
    }
}

impl fmt::Display for PlacementVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs(reason) => reason.fmt(f),
            Self::Rejected(rejection) => rejection.fmt(f),
            Self::Outranked { winner, by } => match by {
                ScoreStep::Home => write!(f, "the object returns to {winner}, which is ready again"),
                ScoreStep::Current => write!(f, "the object runs in {winner}, and nothing forbids it"),
                ScoreStep::Order => write!(f, "{winner} comes first in spec.orderedClusterSelector"),
                ScoreStep::Untainted => {
                    write!(f, "{winner} is preferred, because the cluster has a taint with the effect PreferNoSchedule")
                }
                ScoreStep::Name => write!(f, "{winner} is equally suitable, and its name comes first"),
            },
        }
    }
}

impl fmt::Display for RunReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chosen { among: 1 } => f.write_str("the only cluster that can run the object"),
            Self::Chosen { among } => write!(f, "the best of {among} clusters that can run the object"),
            Self::Grows => f.write_str(
                "no cluster is known to have room for the object, and this one adds nodes (spec.autoscaled)",
            ),
            Self::Stays => f.write_str("the object runs there already, and nothing forbids it"),
            Self::Divided { replicas, total } => write!(f, "{replicas} of {total} replicas"),
            Self::Everywhere => f.write_str("the object runs in every selected cluster"),
            Self::CannotMove { cause: cause @ LeaveCause::Deselected, obstacle } => {
                write!(f, "{cause}, and {obstacle}; or select the cluster again")
            }
            Self::CannotMove { cause, obstacle } => write!(f, "{cause}, and {obstacle}"),
            Self::Needed => {
                f.write_str("pods or data in the cluster may need the object, so it stays until they have left")
            }
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRegistered => {
                f.write_str("the fleet has no such cluster; register it, or correct the annotation of the object")
            }
            Self::Kept => f.write_str("the object stays where it is, because no other cluster is selected for it"),
            Self::Held { by } => write!(f, "the object stays in {by}, which it cannot leave"),
            Self::NotNamed => f.write_str("an annotation of the object names other clusters"),
            Self::NotSelected { policy } => {
                write!(f, "spec.clusterSelector of the SchedulePolicy {policy} does not match its labels")
            }
            Self::NotOrdered { policy } => {
                write!(f, "spec.orderedClusterSelector of the SchedulePolicy {policy} does not name its label")
            }
            Self::NoTopologyLabel { key } => {
                write!(f, "the cluster has no label {key}, which spec.spreadConstraints.topologyKey names")
            }
            Self::NoShare { domain } => write!(f, "spec.spreadConstraints.percentageSplit assigns nothing to {domain}"),
            Self::SpreadRefused => f.write_str(
                "the cluster delegates objects to another orchestrator (its agent has --orchestration-enabled=false), and an object that is spread \
                 cannot be delegated; select other clusters, or remove spec.spreadConstraints or the annotation spread-onto",
            ),
            Self::Leaving => f.write_str("the cluster is being removed from the fleet"),
            Self::Lost { since: Some(since) } => write!(f, "the cluster has not been ready since {since}"),
            Self::Lost { since: None } => f.write_str("the cluster was not ready, and the object has left it"),
            Self::Recovering { until } => {
                write!(f, "the object returns at {until} if the cluster is ready until then")
            }
            Self::Draining => f.write_str("the cluster is being drained (spec.drain)"),
            Self::Cordoned => f.write_str("the cluster is cordoned (spec.unschedulable)"),
            Self::Tainted { taint: ClusterTaint { key, value, .. } } => {
                let value = value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
                write!(f, "the cluster has the taint {key}{value}:NoSchedule")
            }
            Self::NotReady { message } if message.is_empty() => {
                f.write_str("the cluster is not ready: its agent has not reported yet")
            }
            Self::NotReady { message } => write!(f, "the cluster is not ready: {message}"),
            Self::UnknownRoom => f.write_str("its agent has not reported what is free in the cluster"),
            Self::NoRoom(shortage) => shortage.fmt(f),
        }
    }
}

impl fmt::Display for RoomShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods, fit, nodes, tainted, unlabelled, best, on_their_way } = self;
        let (pods_word, nodes_word) =
            (if *pods == 1 { "pod" } else { "pods" }, if *nodes == 1 { "node" } else { "nodes" });
        write!(f, "{fit} of {pods} {pods_word} fit for certain on {nodes} {nodes_word}")?;
        if *tainted > 0 {
            write!(f, ", {tainted} of which have taints that the pods do not tolerate")?;
        }
        if *unlabelled > 0 {
            write!(f, ", {unlabelled} of which have other labels than the pods require")?;
        }
        if !best.is_empty() {
            write!(f, "; the node with the most room has {best}")?;
        }
        match on_their_way {
            0 => Ok(()),
            1 => f.write_str("; another pod is on its way there"),
            more => write!(f, "; {more} other pods are on their way there"),
        }
    }
}

/// Whether reasons state the same about the same clusters, except for what is free.
pub(crate) fn are_same(a: &[PlacementReason], b: &[PlacementReason]) -> bool {
    let is_same = |(a, b): (&PlacementReason, &PlacementReason)| {
        let is_message = a.message == b.message || a.reason == NO_ROOM;
        a.cluster == b.cluster && a.reason == b.reason && is_message
    };
    a.len() == b.len() && a.iter().zip(b).all(is_same)
}

/// Returns verdicts as a Placement stores them, by cluster.
pub(crate) fn rendered(verdicts: &BTreeMap<String, PlacementVerdict>) -> Vec<PlacementReason> {
    let one = |(cluster, verdict): (&String, &PlacementVerdict)| PlacementReason {
        cluster: cluster.clone(),
        reason: verdict.reason().to_owned(),
        message: verdict.to_string(),
    };
    verdicts.iter().map(one).collect()
}
