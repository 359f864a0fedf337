//! The products of the cache, and the origin of each part.
//!
//! A test machine has no access to a container registry. Images are therefore made from Go modules and Debian packages, under the names under which
//! a user with a network pulls them.

use std::collections::BTreeSet;
use std::fmt;

use crate::release::{self, MinorRelease, Release};

mod conformance;
mod earlier;

/// The runtime of local hypervisors. The containerd of Debian 12 is too old for the kubelets of 1.36 and later.
const CONTAINERD: &str = "2.4.2";
/// The standard CNI plugins, the same version for every release.
const CNI_PLUGINS: &str = "1.9.1";
/// The container of Kubernetes' own tests. It is built from the module of the release, where `test/images/agnhost/VERSION` is its version.
const AGNHOST: &str = "2.66.1";
/// The registry from which tests pull.
const DISTRIBUTION: &str = "3.1.2";
/// The WireGuard implementation that the VPN is tested against and compared with. Its Go module has no releases; this is the newest version.
const WIREGUARD: &str = "0.0.0-20260522210424-ecfc5a8d5446";

/// The S3-compatible store that snapshots are tested with.
const VERSITYGW: &str = "1.8.0";
/// A CRI client that works as Kubernetes' own tools do.
const CRI_TOOLS: &str = "1.36.0";
/// The program that renders the chart of the manager.
const HELM: &str = "4.3.1";

/// A file of the cache.
#[derive(Debug, Clone)]
pub(crate) enum Product {
    /// A program that the machine itself runs, in `bin/`.
    Program(ProgramOrigin),
    /// A container image, in `images/`.
    Image(ImageDefinition),
}

/// The products that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ProductSet {
    /// What Keelway and its tests run.
    #[default]
    Standard,
    /// What Kubernetes' conformance tests run. Only `make conformance` makes them.
    Conformance,
    /// The images of the other supported minor versions of Kubernetes, and kubeadm. Only `make upgrades` makes them.
    EarlierMinors,
}

/// A container image of one layer.
#[derive(Debug, Clone, Default)]
pub(crate) struct ImageDefinition {
    /// The full public name with its tag, as pods use it.
    pub(crate) reference: String,
    /// The programs in the image. Their shared libraries are added automatically.
    pub(crate) files: Vec<ImageFile>,
    /// `Entrypoint` of the configuration.
    pub(crate) entrypoint: Vec<&'static str>,
    /// `Cmd` of the configuration.
    pub(crate) command: Vec<&'static str>,
    /// `StopSignal` of the configuration, if it is not SIGTERM.
    pub(crate) stop_signal: Option<&'static str>,
    /// Files with fixed contents: the path in the image, and the text.
    pub(crate) texts: Vec<(&'static str, &'static str)>,
    /// Symbolic links: the path in the image, and the target.
    pub(crate) links: Vec<(String, &'static str)>,
    /// Whether the programs run as their owner, root, whichever user starts them.
    pub(crate) set_user_id: bool,
    /// The set of the image. Both sets have an image of the name of agnhost; that of the conformance tests has more programs.
    pub(crate) set: ProductSet,
}

/// A program and its path in an image.
#[derive(Debug, Clone)]
pub(crate) struct ImageFile {
    /// The absolute path in the image.
    pub(crate) at: &'static str,
    pub(crate) origin: ProgramOrigin,
}

/// The origin of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramOrigin {
    /// Built from Go modules: the build and the name of the program.
    Go(GoBuild, &'static str),
    /// A program that the build of this workspace left, with its shared libraries.
    Workspace(&'static str),
    /// A file of the first module of a Go build: the build and the path in the module.
    ModuleFile(GoBuild, &'static str),
    /// Compiled statically from one C file.
    C { name: &'static str, source: &'static str, version: &'static str },
    /// Installed by a Debian package, with its shared libraries. If `version` is set, it is checked.
    Debian { package: &'static str, path: &'static str, version: Option<&'static str> },
}

/// Programs that are built together from modules of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GoBuild {
    Kubernetes(&'static MinorRelease),
    Etcd(&'static MinorRelease),
    Containerd,
    Wireguard,
    CoreDns(&'static MinorRelease),
    MetricsServer,
    CniPlugins,
    Distribution,
    CriTools,
    Helm,
    Versitygw,
    Conformance,
}

impl GoBuild {
    /// Returns the version without a leading `v`.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Kubernetes(row) => row.tested,
            Self::Conformance => release().row.tested,
            Self::Etcd(row) => etcd_version(row),
            Self::Containerd => CONTAINERD,
            Self::Wireguard => WIREGUARD,
            Self::CoreDns(row) => without_v(row.coredns),
            Self::MetricsServer => without_v(release::METRICS_SERVER),
            Self::CniPlugins => CNI_PLUGINS,
            Self::Distribution => DISTRIBUTION,
            Self::CriTools => CRI_TOOLS,
            Self::Helm => HELM,
            Self::Versitygw => VERSITYGW,
        }
    }

    /// Returns the modules to require, all at [`Self::version`].
    pub(crate) fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Kubernetes(_) | Self::Conformance => &["k8s.io/kubernetes"],
            Self::Etcd(_) => &["go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdutl/v3"],
            Self::Containerd => &["github.com/containerd/containerd/v2"],
            Self::Wireguard => &["golang.zx2c4.com/wireguard"],
            Self::CoreDns(_) => &["github.com/coredns/coredns"],
            Self::MetricsServer => &["sigs.k8s.io/metrics-server"],
            Self::CniPlugins => &["github.com/containernetworking/plugins"],
            Self::Distribution => &["github.com/distribution/distribution/v3"],
            Self::CriTools => &["sigs.k8s.io/cri-tools"],
            Self::Helm => &["helm.sh/helm/v4"],
            Self::Versitygw => &["github.com/versity/versitygw"],
        }
    }

    /// Returns the version of the modules that [`Self::modules`] require as `v0.0.0` because they are published from the same tree. For Kubernetes
    /// 1.37.0, `k8s.io/api` is 0.37.0.
    pub(crate) fn staging_version(self) -> Option<String> {
        match self {
            Self::Kubernetes(_) | Self::Conformance => {
                self.version().strip_prefix("1.").map(|rest| format!("v0.{rest}"))
            }
            Self::Etcd(_)
            | Self::Containerd
            | Self::Wireguard
            | Self::CoreDns(_)
            | Self::MetricsServer
            | Self::CniPlugins
            | Self::Distribution
            | Self::CriTools
            | Self::Helm
            | Self::Versitygw => None,
        }
    }

    /// Returns the Go package of a program.
    pub(crate) fn package(self, program: &str) -> String {
        match self {
            Self::Conformance => conformance::package(program).to_owned(),
            Self::Kubernetes(_) if program == "agnhost" => "k8s.io/kubernetes/test/images/agnhost".to_owned(),
            Self::Kubernetes(_) => format!("k8s.io/kubernetes/cmd/{program}"),
            Self::Etcd(_) if program == "etcd" => "go.etcd.io/etcd/server/v3".to_owned(),
            Self::Etcd(_) => format!("go.etcd.io/etcd/{program}/v3"),
            Self::Containerd => format!("github.com/containerd/containerd/v2/cmd/{program}"),
            Self::Wireguard => "golang.zx2c4.com/wireguard".to_owned(),
            Self::CoreDns(_) => "github.com/coredns/coredns".to_owned(),
            Self::MetricsServer => "sigs.k8s.io/metrics-server/cmd/metrics-server".to_owned(),
            Self::Distribution => format!("github.com/distribution/distribution/v3/cmd/{program}"),
            Self::CriTools => format!("sigs.k8s.io/cri-tools/cmd/{program}"),
            Self::Helm => format!("helm.sh/helm/v4/cmd/{program}"),
            Self::Versitygw => format!("github.com/versity/versitygw/cmd/{program}"),
            Self::CniPlugins => {
                format!("github.com/containernetworking/plugins/plugins/{}/{program}", plugin_kind(program))
            }
        }
    }

    /// Returns the file name that `go build` chooses for a program: the last element of its package path without a major version.
    pub(crate) fn built_name(self, program: &'static str) -> &'static str {
        match (self, program) {
            (Self::Etcd(_), "etcd") => "server",
            (Self::Wireguard, _) => "wireguard",
            (Self::Conformance, "nnp") => "nonewprivs",
            _ => program,
        }
    }

    /// Returns flags for the linker: no symbols, and the version in the variable where the program reads it.
    pub(crate) fn ldflags(self) -> String {
        let version = self.version();
        match self {
            Self::Kubernetes(_) | Self::Conformance => {
                let minor = version.split('.').nth(1).unwrap_or_default();
                let package = "k8s.io/component-base/version";
                format!(
                    "-s -w -X {package}.gitVersion=v{version} -X {package}.gitMajor=1 -X {package}.gitMinor={minor} \
                     -X {package}.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=v{version}"
                )
            }
            Self::Etcd(_) | Self::Wireguard | Self::CoreDns(_) => "-s -w".to_owned(),
            Self::Versitygw => format!("-s -w -X main.Version=v{version}"),
            Self::MetricsServer => format!("-s -w -X k8s.io/client-go/pkg/version.gitVersion=v{version}"),
            Self::CniPlugins => {
                let package = "github.com/containernetworking/plugins/pkg/utils/buildversion";
                format!("-s -w -X {package}.BuildVersion=v{version}")
            }
            Self::Distribution => {
                let package = "github.com/distribution/distribution/v3/version";
                format!("-s -w -X {package}.version=v{version}")
            }
            Self::CriTools => format!("-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=v{version}"),
            Self::Helm => format!("-s -w -X helm.sh/helm/v4/internal/version.version=v{version}"),
            Self::Containerd => {
                let package = "github.com/containerd/containerd/v2";
                format!("-s -w -X {package}/version.Version=v{version} -X {package}/version.Package={package}")
            }
        }
    }
}

impl fmt::Display for GoBuild {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Kubernetes(_) => "kubernetes",
            Self::Etcd(_) => "etcd",
            Self::Containerd => "containerd",
            Self::Wireguard => "wireguard-go",
            Self::CoreDns(_) => "coredns",
            Self::MetricsServer => "metrics-server",
            Self::CniPlugins => "cni-plugins",
            Self::Distribution => "distribution",
            Self::CriTools => "cri-tools",
            Self::Helm => "helm",
            Self::Versitygw => "versitygw",
            Self::Conformance => "conformance",
        };
        write!(formatter, "{name} {}", self.version())
    }
}

impl ProgramOrigin {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Go(_, name) | Self::Workspace(name) | Self::C { name, .. } => name,
            Self::ModuleFile(_, path) | Self::Debian { path, .. } => path.rsplit('/').next().unwrap_or(path),
        }
    }

    /// Returns the Go build that the program needs.
    pub(crate) fn go_build(&self) -> Option<GoBuild> {
        match self {
            Self::Go(build, _) => Some(*build),
            Self::Workspace(_) | Self::ModuleFile(..) | Self::C { .. } | Self::Debian { .. } => None,
        }
    }
}

impl Product {
    /// Returns the name for people: that of the program, or the last path element of the image without its tag.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Program(origin) => origin.name(),
            Self::Image(image) => image.name(),
        }
    }

    /// Returns the path in the cache.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Program(origin) => format!("bin/{}", origin.name()),
            Self::Image(image) => format!("{}/{}", image.set.directory(), archive_name(&image.reference)),
        }
    }

    /// Returns the programs that the product contains.
    pub(crate) fn origins(&self) -> Vec<ProgramOrigin> {
        match self {
            Self::Program(origin) => vec![*origin],
            Self::Image(image) => image.files.iter().map(|file| file.origin).collect(),
        }
    }

    /// Returns whether the product contains a program of this workspace.
    pub(crate) fn is_own(&self) -> bool {
        self.origins().iter().any(|origin| matches!(origin, ProgramOrigin::Workspace(_)))
    }

    /// Returns whether only tests run the product.
    pub(crate) fn is_for_tests(&self) -> bool {
        let only_tests =
            [GoBuild::Wireguard, GoBuild::Distribution, GoBuild::CriTools, GoBuild::Helm, GoBuild::Versitygw];
        self.go_builds().iter().any(|build| only_tests.contains(build))
    }

    /// Returns the Go builds that the product needs.
    pub(crate) fn go_builds(&self) -> BTreeSet<GoBuild> {
        self.origins().iter().filter_map(ProgramOrigin::go_build).collect()
    }
}

impl ProductSet {
    /// Returns the directory of the images in the cache.
    fn directory(self) -> &'static str {
        match self {
            Self::Standard => "images",
            Self::Conformance => "conformance",
            Self::EarlierMinors => "earlier-minors",
        }
    }

    pub(crate) fn products(self) -> Vec<Product> {
        match self {
            Self::Standard => products(),
            Self::Conformance => conformance::products(),
            Self::EarlierMinors => earlier::products(),
        }
    }
}

impl ImageDefinition {
    fn name(&self) -> &str {
        let last = self.reference.rsplit('/').next().unwrap_or(&self.reference);
        last.split(':').next().unwrap_or(last)
    }
}

/// Returns the file name of an image: its full name with `/` and `:` replaced by `_`, and `.tar`. No name that Keelway uses contains `_`, so
/// different images have different files.
pub(crate) fn archive_name(reference: &str) -> String {
    format!("{}.tar", reference.replace(['/', ':'], "_"))
}

/// Returns the release whose images the standard set has. [`ProductSet::EarlierMinors`] has those of the others.
fn release() -> Release {
    release::newest()
}

/// Returns the version of etcd: the tag of its image without the build number of the image.
fn etcd_version(row: &'static MinorRelease) -> &'static str {
    row.etcd.split_once('-').map_or(row.etcd, |(version, _)| version)
}

fn without_v(version: &'static str) -> &'static str {
    version.strip_prefix('v').unwrap_or(version)
}

/// Returns the folder of a CNI plugin in the module of the plugins.
fn plugin_kind(plugin: &str) -> &'static str {
    match plugin {
        "host-local" | "static" => "ipam",
        "bandwidth" | "firewall" | "portmap" | "tuning" => "meta",
        _ => "main",
    }
}

fn products() -> Vec<Product> {
    let programs = programs().into_iter().map(Product::Program);
    programs.chain(images().into_iter().map(Product::Image)).collect()
}

fn programs() -> [ProgramOrigin; 12] {
    let Release { row, .. } = release();
    [
        ProgramOrigin::Go(GoBuild::Kubernetes(row), "kubectl"),
        ProgramOrigin::Go(GoBuild::Kubernetes(row), "kubelet"),
        ProgramOrigin::Go(GoBuild::Etcd(row), "etcdctl"),
        ProgramOrigin::Go(GoBuild::Etcd(row), "etcdutl"),
        ProgramOrigin::Go(GoBuild::Containerd, "containerd"),
        ProgramOrigin::Go(GoBuild::Containerd, "containerd-shim-runc-v2"),
        ProgramOrigin::Go(GoBuild::Containerd, "ctr"),
        ProgramOrigin::Go(GoBuild::Wireguard, "wireguard-go"),
        ProgramOrigin::Go(GoBuild::Distribution, "registry"),
        ProgramOrigin::Go(GoBuild::CriTools, "crictl"),
        ProgramOrigin::Go(GoBuild::Helm, "helm"),
        ProgramOrigin::Go(GoBuild::Versitygw, "versitygw"),
    ]
}

fn images() -> Vec<ImageDefinition> {
    let others = [
        haproxy(),
        add_on(release::metrics_server_image(None), "/metrics-server", GoBuild::MetricsServer),
        kubernetes(release(), "kubectl", "/bin/kubectl"),
        agnhost(),
        cluster_controller(),
        fleet_controller(),
        fleet_agent(),
        hypervisor_agent(),
        manager(),
    ];
    images_of(release()).into_iter().chain(others).collect()
}

/// Returns the images that belong to one release of Kubernetes.
fn images_of(release: Release) -> [ImageDefinition; 8] {
    [
        pause(release),
        etcd(release),
        kubernetes(release, "kube-apiserver", "/usr/local/bin/kube-apiserver"),
        kubernetes(release, "kube-controller-manager", "/usr/local/bin/kube-controller-manager"),
        kubernetes(release, "kube-scheduler", "/usr/local/bin/kube-scheduler"),
        kube_proxy(release),
        node(release),
        add_on(release.coredns_image(None), "/coredns", GoBuild::CoreDns(release.row)),
    ]
}

fn pause(release: Release) -> ImageDefinition {
    let origin = ProgramOrigin::C { name: "pause", source: include_str!("pause.c"), version: release.row.pause };
    ImageDefinition {
        reference: release.pause_image(None),
        files: vec![ImageFile { at: "/pause", origin }],
        entrypoint: vec!["/pause"],
        command: vec![],
        ..ImageDefinition::default()
    }
}

fn haproxy() -> ImageDefinition {
    let origin =
        ProgramOrigin::Debian { package: "haproxy", path: "/usr/sbin/haproxy", version: Some(release::HAPROXY) };
    ImageDefinition {
        reference: release::haproxy_image(None),
        files: vec![ImageFile { at: "/usr/local/sbin/haproxy", origin }],
        entrypoint: vec![],
        command: vec!["haproxy", "-f", "/usr/local/etc/haproxy/haproxy.cfg"],
        // As in the official image: on this signal, haproxy waits for connections to end.
        stop_signal: Some("SIGUSR1"),
        ..ImageDefinition::default()
    }
}

fn cluster_controller() -> ImageDefinition {
    own(release::cluster_controller_image(None, release::KEELWAY), "/keelway-cluster-controller")
}

fn fleet_controller() -> ImageDefinition {
    own(release::fleet_controller_image(None, release::KEELWAY), "/keelway-fleet-controller")
}

fn fleet_agent() -> ImageDefinition {
    own(release::fleet_agent_image(None), "/keelway-fleet-agent")
}

fn hypervisor_agent() -> ImageDefinition {
    own(release::hypervisor_agent_image(None), "/keelway-hypervisor-agent")
}

fn manager() -> ImageDefinition {
    ImageDefinition { command: vec!["run"], ..own(release::manager_image(None), "/keelway-manager") }
}

/// Returns an image with one program of this workspace. Such images are not public before Keelway's own release.
fn own(reference: String, at: &'static str) -> ImageDefinition {
    let origin = ProgramOrigin::Workspace(at.trim_start_matches('/'));
    ImageDefinition {
        reference,
        files: vec![ImageFile { at, origin }],
        entrypoint: vec![at],
        command: vec![],
        ..ImageDefinition::default()
    }
}

fn etcd(release: Release) -> ImageDefinition {
    let file = |name, at| ImageFile { at, origin: ProgramOrigin::Go(GoBuild::Etcd(release.row), name) };
    ImageDefinition {
        reference: release.etcd_image(None),
        files: vec![
            file("etcd", "/usr/local/bin/etcd"),
            file("etcdctl", "/usr/local/bin/etcdctl"),
            file("etcdutl", "/usr/local/bin/etcdutl"),
        ],
        entrypoint: vec![],
        command: vec!["etcd"],
        ..ImageDefinition::default()
    }
}

fn kubernetes(release: Release, name: &'static str, at: &'static str) -> ImageDefinition {
    ImageDefinition {
        reference: release.kubernetes_image(name, None),
        files: vec![ImageFile { at, origin: ProgramOrigin::Go(GoBuild::Kubernetes(release.row), name) }],
        entrypoint: vec![at],
        command: vec![],
        ..ImageDefinition::default()
    }
}

/// The names of protocols, as in the public image. Without them, `nft` lists elements with numbers, and a kube-proxy that starts again takes what it
/// finds for elements that nobody needs, and deletes all Services.
const PROTOCOLS: &str = "tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n";

/// kube-proxy in nftables mode runs `nft`, any version since 1.0.1.
fn kube_proxy(release: Release) -> ImageDefinition {
    let nft = ProgramOrigin::Debian { package: "nftables", path: "/usr/sbin/nft", version: None };
    let mut image = kubernetes(release, "kube-proxy", "/usr/local/bin/kube-proxy");
    image.files.push(ImageFile { at: "/usr/sbin/nft", origin: nft });
    image.texts.push(("/etc/protocols", PROTOCOLS));
    image
}

/// Returns the image from which a worker copies files: kubelet, and the plugins for its pod network and for other ones. No container runs from it.
fn node(release: Release) -> ImageDefinition {
    let kubelet = ProgramOrigin::Go(GoBuild::Kubernetes(release.row), "kubelet");
    let plugin = |name, at| ImageFile { at, origin: ProgramOrigin::Go(GoBuild::CniPlugins, name) };
    ImageDefinition {
        reference: release.node_image(None),
        files: vec![
            ImageFile { at: "/usr/local/bin/kubelet", origin: kubelet },
            plugin("bandwidth", "/opt/cni/bin/bandwidth"),
            plugin("bridge", "/opt/cni/bin/bridge"),
            plugin("firewall", "/opt/cni/bin/firewall"),
            plugin("host-local", "/opt/cni/bin/host-local"),
            plugin("loopback", "/opt/cni/bin/loopback"),
            plugin("portmap", "/opt/cni/bin/portmap"),
            plugin("ptp", "/opt/cni/bin/ptp"),
            plugin("static", "/opt/cni/bin/static"),
            plugin("tuning", "/opt/cni/bin/tuning"),
        ],
        entrypoint: vec!["/usr/local/bin/kubelet"],
        command: vec!["--version"],
        ..ImageDefinition::default()
    }
}

/// Returns an image with kubeadm. There is no public one. A test copies the program from it, as a worker copies its kubelet.
fn kubeadm(release: Release) -> ImageDefinition {
    let at = "/usr/local/bin/kubeadm";
    let kubeadm = kubernetes(release, "kubeadm", at);
    ImageDefinition { set: ProductSet::EarlierMinors, ..kubeadm }
}

/// Returns an image of one program, which is the entrypoint and is named as the last element of its path.
fn add_on(reference: String, at: &'static str, build: GoBuild) -> ImageDefinition {
    let origin = ProgramOrigin::Go(build, at.trim_start_matches('/'));
    ImageDefinition {
        reference,
        files: vec![ImageFile { at, origin }],
        entrypoint: vec![at],
        command: vec![],
        ..ImageDefinition::default()
    }
}

/// Returns the test image with a shell and the tools that tests of streams need, as in the public image.
fn agnhost() -> ImageDefinition {
    let debian = |package, path, at| ImageFile { at, origin: ProgramOrigin::Debian { package, path, version: None } };
    ImageDefinition {
        reference: format!("registry.k8s.io/e2e-test-images/agnhost:{AGNHOST}"),
        files: vec![
            ImageFile { at: "/agnhost", origin: ProgramOrigin::Go(GoBuild::Kubernetes(release().row), "agnhost") },
            debian("bash", "/bin/bash", "/bin/bash"),
            debian("bash", "/bin/bash", "/bin/sh"),
            debian("coreutils", "/bin/cat", "/bin/cat"),
            debian("coreutils", "/usr/bin/head", "/usr/bin/head"),
            debian("coreutils", "/usr/bin/sha256sum", "/usr/bin/sha256sum"),
            debian("coreutils", "/bin/sleep", "/bin/sleep"),
        ],
        entrypoint: vec!["/agnhost"],
        command: vec!["pause"],
        ..ImageDefinition::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{GoBuild, Product, ProductSet, archive_name, release};

    #[test]
    fn an_archive_is_named_after_its_image() {
        assert_eq!(
            archive_name("registry.k8s.io/kube-apiserver:v1.37.0"),
            "registry.k8s.io_kube-apiserver_v1.37.0.tar"
        );
        assert_eq!(
            archive_name("registry.k8s.io/coredns/coredns:v1.14.6"),
            "registry.k8s.io_coredns_coredns_v1.14.6.tar"
        );
    }

    #[test]
    fn each_product_has_a_path_of_its_own() {
        let sets = [ProductSet::Standard, ProductSet::Conformance, ProductSet::EarlierMinors];
        let products: Vec<Product> = sets.into_iter().flat_map(ProductSet::products).collect();
        let paths: BTreeSet<String> = products.iter().map(Product::path).collect();
        assert_eq!(paths.len(), products.len());
    }

    #[test]
    fn staging_modules_follow_the_release() {
        assert_eq!(GoBuild::Kubernetes(release().row).staging_version().as_deref(), Some("v0.37.0"));
    }
}
