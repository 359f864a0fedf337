//! containerd's configuration.

/// Plugins that no control plane needs. Each costs time and memory in every machine.
const DISABLED: [&str; 14] = [
    "io.containerd.differ.v1.erofs",
    "io.containerd.image-verifier.v1.bindir",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.tracing",
    "io.containerd.monitor.container.v1.restart",
    "io.containerd.mount-handler.v1.erofs",
    "io.containerd.nri.v1.nri",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.ttrpc.v1.otelttrpc",
];

/// The image of sandboxes, as kubeadm names it for the newest release.
const SANDBOX_IMAGE: &str = "registry.k8s.io/pause:3.10.2";

/// Returns the configuration for a machine. Paths are as in a standard installation: `/run`, `/var/lib` and `/var/log` belong to the machine.
///
/// Set `restrict_oom_score_adj` on a host where even root cannot lower a process' score. `networks` is the directory of the CNI configuration.
///
/// By default, containerd 2.4 reads the cgroups of every container and sandbox once per second, for the momentary processor use that `crictl stats`
/// shows. Many machines on one host would spend a quarter of its processor time on that.
pub(crate) fn render(restrict_oom_score_adj: bool, networks: &str) -> String {
    let disabled: Vec<String> = DISABLED.iter().map(|id| format!("  '{id}',\n")).collect();
    format!(
        "version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
imports = []
required_plugins = ['io.containerd.grpc.v1.cri']
disabled_plugins = [
{}]

[grpc]
  address = '/run/containerd/containerd.sock'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{SANDBOX_IMAGE}'

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = {restrict_oom_score_adj}
  cdi_spec_dirs = []
  stats_collect_period = '10m'

[plugins.'io.containerd.cri.v1.runtime'.cni]
  conf_dir = '{networks}'
",
        disabled.concat()
    )
}
