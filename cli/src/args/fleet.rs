//! `keelway fleet`.

use clap::Subcommand;

use crate::commands::{
    fleet_agent_manifests::AgentManifestsArguments,
    fleet_cluster::FleetClusterCommand,
    fleet_convert::FleetConvertArguments,
    fleet_diff::FleetDiffArguments,
    fleet_drain::{FleetCordonArguments, FleetDrainArguments},
    fleet_explain::FleetExplainArguments,
    fleet_inject::FleetInjectArguments,
    fleet_manifests::{FleetKubeconfigArguments, FleetManifestsArguments},
    fleet_observe::FleetObserveArguments,
    fleet_status::FleetStatusArguments,
    fleet_token::FleetTokenCommand,
};

#[derive(Subcommand)]
pub(crate) enum FleetCommand {
    /// Add a fleet to the documents: a Cluster that is one Kubernetes API over many clusters
    #[command(
        after_help = "Example:\n  keelway fleet inject --name f1 < world.yaml | keelway reconcile > f1.yaml\n  keelway fleet inject --name f1 --replicas 3 --ingress-replicas 2 < world.yaml"
    )]
    Inject(Box<FleetInjectArguments>),
    /// Print the manifests of a fleet's control plane for a Kubernetes cluster
    ///
    /// Every run without --existing creates another fleet. To renew certificates, or to change an option, run the command again with --existing.
    #[command(
        after_help = "Example:\n  keelway fleet manifests --endpoint fleet.example.com --replicas 3 | kubectl apply -f -\n  kubectl get secrets --namespace keelway-fleet -l fleet.keelway.dev/documents -o yaml | keelway fleet manifests --endpoint fleet.example.com --replicas 3 --existing - | kubectl apply -f -"
    )]
    Manifests(Box<FleetManifestsArguments>),
    /// Print a kubeconfig for a fleet in a Kubernetes cluster
    #[command(
        after_help = "Example:\n  kubectl get secrets --namespace keelway-fleet -l fleet.keelway.dev/documents -o yaml | keelway fleet kubeconfig > f1.kubeconfig"
    )]
    Kubeconfig(FleetKubeconfigArguments),
    /// Manage the tokens with which workload clusters register in a fleet
    #[command(
        subcommand,
        after_help = "Example:\n  keelway fleet token create --cluster-name west --kubeconfig f1.kubeconfig > token"
    )]
    Token(FleetTokenCommand),
    /// Print the manifests of the agent for a workload cluster
    #[command(
        after_help = "Example:\n  keelway fleet agent-manifests - < token > agent.yaml\n  keelway fleet agent-manifests token --rbac > agent.yaml"
    )]
    AgentManifests(AgentManifestsArguments),
    /// Manage the workload clusters of a fleet
    #[command(
        subcommand,
        after_help = "Example:\n  keelway fleet cluster remove west --workloads keep --kubeconfig f1.kubeconfig"
    )]
    Cluster(FleetClusterCommand),
    /// Stop placing new objects in a workload cluster
    #[command(after_help = "Example:\n  keelway fleet cordon west --kubeconfig f1.kubeconfig")]
    Cordon(FleetCordonArguments),
    /// Move the objects of the fleet from a workload cluster to others
    ///
    /// Nothing new is placed in the cluster. An object leaves it once its pods are ready in another cluster. An object that no other cluster can run
    /// stays.
    #[command(
        after_help = "Example:\n  keelway fleet drain west --kubeconfig f1.kubeconfig\n  keelway fleet drain west --max-moves 1 --timeout 1h --kubeconfig f1.kubeconfig"
    )]
    Drain(FleetDrainArguments),
    /// Place new objects in a workload cluster again, and end its drain
    #[command(after_help = "Example:\n  keelway fleet uncordon west --kubeconfig f1.kubeconfig")]
    Uncordon(FleetCordonArguments),
    /// Show which objects SchedulePolicies would move, before you apply them
    ///
    /// Nothing is written. The API server of the fleet checks the policies, and each object is decided twice: with the policies as they are, and with
    /// these. What is free in clusters changes all the time, so another cluster may be chosen later.
    #[command(
        after_help = "Example:\n  keelway fleet diff --filename policy.yaml --kubeconfig f1.kubeconfig\n  keelway fleet diff --filename policy.yaml --exit-code -o json --kubeconfig f1.kubeconfig"
    )]
    Diff(FleetDiffArguments),
    /// Explain why an object of a fleet runs where it runs, or nowhere
    #[command(
        after_help = "Example:\n  keelway fleet explain deployment/web --namespace shop --kubeconfig f1.kubeconfig\n  keelway fleet explain deployment/web -o json --kubeconfig f1.kubeconfig\n  keelway fleet explain deployment/web --namespace shop --from observed.yaml"
    )]
    Explain(FleetExplainArguments),
    /// Print what a fleet has decided, with its clusters and policies, as one List
    ///
    /// `keelway fleet explain --from` reads it. It contains no object that the fleet places, and no Secret.
    #[command(
        after_help = "Example:\n  keelway fleet observe --kubeconfig f1.kubeconfig > observed.yaml\n  keelway fleet explain deployment/web --namespace shop --from observed.yaml"
    )]
    Observe(FleetObserveArguments),
    /// Convert documents of Nova to documents of a fleet
    ///
    /// SchedulePolicies and the annotations of objects are converted. What is different in a fleet is written to stderr.
    #[command(
        after_help = "Example:\n  keelway fleet convert policies.yaml > converted.yaml\n  kubectl get schedulepolicies.policy.elotl.co -o yaml | keelway fleet convert | kubectl --kubeconfig f1.kubeconfig apply -f -"
    )]
    Convert(FleetConvertArguments),
    /// Check that a fleet works: its API, its controller, its kinds and its workload clusters
    #[command(
        after_help = "Example:\n  keelway fleet status --kubeconfig f1.kubeconfig\n  keelway fleet status -o json --kubeconfig f1.kubeconfig"
    )]
    Status(FleetStatusArguments),
}
