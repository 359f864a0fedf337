//! The table of checks in docs/workers.md. `UPDATE=1` writes it.

use std::{cell::RefCell, env, fmt::Write, fs, panic::Location, path::PathBuf};

use keelway_api::worker::ClusterInformation;
use keelway_vpn::netlink::routing::{PolicyRule, RoutedPrefix};

use super::{
    tests::{STRICT, good},
    *,
};
use crate::{foreign_drops::tests::drop_by, program::ProgramInstallation, sandbox_image};

const PAGE: &str = "docs/workers.md";
const HEAD: &str = "| A worker needs | `join` reports | What to do |\n|---|---|---|\n";
/// The end of a file's own code.
const TESTS: &str = "mod tests {";
const CONSTRUCTOR: &str = "CheckFault::new(";

thread_local! {
    /// The places of this thread's faults so far: file and line.
    static PLACES: RefCell<BTreeSet<(PathBuf, u32)>> = const { RefCell::new(BTreeSet::new()) };
}

/// Records where a fault is reported.
pub(super) fn record(place: &Location<'_>) {
    PLACES.with_borrow_mut(|places| places.insert((place.file().into(), place.line())));
}

/// What a worker needs, and what a join reports where that is missing.
type NeedRow = (&'static str, Vec<CheckFault>);

/// Returns the faults of a good machine after these changes, one at a time.
fn of_machine<const N: usize>(changes: [fn(&mut HostFacts); N]) -> Vec<CheckFault> {
    changes
        .iter()
        .flat_map(|change| {
            let mut facts = good();
            change(&mut facts);
            faults(&facts, STRICT)
        })
        .collect()
}

fn runtime(version: &str, components: usize) -> HostRuntimeFacts {
    HostRuntimeFacts { name: "containerd".to_owned(), version: version.to_owned(), components }
}

fn of_the_machine() -> Vec<NeedRow> {
    let socket = "100.80.0.1:6443".parse::<SocketAddr>().unwrap();
    let (now, then) = (good().now, good().now + SignedDuration::from_mins(9));
    let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
    let installation = ProgramInstallation::of(Path::new("/tmp/keelway"), Path::new("/usr/local/bin"));
    vec![
        ("root", of_machine([|f| f.is_root = false])),
        (
            "containerd 1.7 or newer, which responds with `runtime.v1` on `--containerd-socket`",
            of_machine([
                |f| f.runtime = Err("connection refused".to_owned()),
                |f| f.runtime = Ok(runtime("1.6.20~ds1", 0)),
            ]),
        ),
        (
            "the image of sandboxes, in containerd or in a registry from which containerd can pull it",
            vec![sandbox_image::fault("registry.k8s.io/pause:3.10.2", "connection refused")],
        ),
        ("a machine that is no hypervisor of Keelway", of_machine([|f| f.is_hypervisor = true])),
        (
            "no other kubelet, and no state of one",
            of_machine([|f| f.kubelets = BTreeSet::from([4711]), |f| f.has_kubelet_state = true]),
        ),
        (
            "a directory (`--state-dir`) without files of other programs",
            state_directory(Path::new("/var/lib/keelway-node"), &names(&["photos"]), &names(&[])).into_iter().collect(),
        ),
        (
            "cgroups of version 2, or `--allow-cgroup-v1`",
            of_machine([|f| f.cgroups = Cgroups::Legacy, |f| f.cgroups = Cgroups::Missing]),
        ),
        ("the memory controller of cgroups", of_machine([|f| f.has_memory_cgroup = false])),
        ("`/dev/kmsg`", of_machine([|f| f.has_kernel_log = false])),
        (
            "programs that can be executed in `--state-dir`, in the directory of CNI plugins, and in `--kubelet-root-dir`, where volumes of pods are",
            of_machine([|f| f.noexec = vec![("--kubelet-root-dir", "/var/lib/kubelet".into())]]),
        ),
        (
            "its own program where it stays, see [The program](#the-program)",
            vec![installation.is_taken(), installation.has_no_place(Path::new("/usr/local/bin"))],
        ),
        (
            "free ports: 10250 and 10248, and 6443 at the API's reserved addresses",
            [
                of_machine([|f| f.listeners = BTreeSet::from(["0.0.0.0:10250".parse().unwrap()])]),
                api_port(&BTreeSet::from(["0.0.0.0:6443".parse().unwrap()]), &[socket]).into_iter().collect(),
            ]
            .concat(),
        ),
        ("`/dev/net/tun`, or WireGuard in the kernel", of_machine([|f| f.has_tunnels = false])),
        ("nftables", of_machine([|f| f.has_nftables = false])),
        ("`br_netfilter`", of_machine([|f| f.has_bridge_netfilter = false])),
        (
            "a DNS server that pods can reach, in `/etc/resolv.conf` or in a list of systemd-resolved or NetworkManager",
            of_machine([
                |f| f.resolv_confs.clear(),
                |f| f.resolv_confs[0].servers.clear(),
                |f| f.resolv_confs[0].servers = vec!["127.0.0.53".parse().unwrap()],
            ]),
        ),
        ("a clock that differs from the cluster's by at most 4 minutes", clock(then, Some(now)).into_iter().collect()),
    ]
}

fn cluster() -> ClusterInformation {
    let mut cluster = crate::samples::cluster();
    cluster.endpoints = serde_json::from_value(serde_json::json!([{ "address": "10.96.7.7:20000" }])).unwrap();
    cluster
}

fn of_the_network() -> Vec<NeedRow> {
    let route =
        RoutedPrefix { table: 52, destination: "100.80.7.7/32".parse().unwrap(), drops: false, interface: None };
    let rule = PolicyRule { priority: 99, prefixes: vec!["10.244.0.0/17".parse().unwrap()], table: Some(7) };
    let server = ResolvConf { path: Path::new(RESOLV_CONF), servers: vec!["10.96.0.53".parse().unwrap()] };
    let routing =
        RoutingFacts { routes: vec![route], rules: vec![rule], resolv_confs: vec![server], ..RoutingFacts::default() };
    let tailscale = RoutingFacts { tailscale_chains: vec!["ip filter ts-input".to_owned()], ..RoutingFacts::default() };
    let ranges = NamedRanges::of(&cluster());
    vec![
        (
            "`vpn.cidrs`, `podCIDRs` and `serviceCIDRs` that overlap no address and no route of the machine, in any routing table, no policy rule with another table (`ip rule`), no DNS server of the machine or its pods, and no ingress",
            [
                overlaps(&ranges, &["10.0.0.0/8".parse().unwrap()])[..1].to_vec(),
                overlaps(&ranges, &[]),
                routing_faults(&ranges, &routing),
            ]
            .concat(),
        ),
        ("with Tailscale: none of these ranges in 100.64.0.0/10", routing_faults(&ranges, &tailscale)),
        (
            "no chain of another program, of nftables or of `iptables-legacy`, that drops packets of the cluster, except where the worker can accept them itself ([Firewalls of other programs](#what-runs-on-a-worker))",
            ["ip filter FORWARD", "inet firewalld filter_FORWARD", "inet owner forward"]
                .map(|chain| drop_by(chain, None, "from pods to other workers").fault())
                .to_vec(),
        ),
    ]
}

fn of_the_cluster() -> Vec<NeedRow> {
    let kernel = |change: fn(&mut KernelFacts)| {
        let mut facts =
            KernelFacts { release: "6.1.0-28-amd64".to_owned(), has_fib_v4: true, has_fib_v6: true, has_ipv6: true };
        change(&mut facts);
        kernel_faults(&facts, KernelNeeds { kube_proxy: true, ipv6: true })
    };
    let network = |files: &[&str], bridge: &[&str]| {
        let facts = PodNetworkFacts {
            directory: "/etc/cni/net.d".into(),
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            bridge: bridge.iter().map(|address| address.parse().unwrap()).collect(),
        };
        pod_network(&facts, &[])
    };
    vec![
        ("in a cluster with ranges of IPv6: IPv6", kernel(|facts| facts.has_ipv6 = false)),
        (
            "unless `spec.addons.kubeProxy` is off: Linux 5.13 or newer, with `nft_fib_ipv4` and, in a cluster with ranges of IPv6, `nft_fib_ipv6`",
            [kernel(|facts| facts.release = "5.10.0-30-amd64".to_owned()), kernel(|facts| facts.has_fib_v4 = false)]
                .concat(),
        ),
        (
            "unless `spec.addons.cni` is off: no CNI configuration in containerd's directory that sorts before `10-keelway.conflist`",
            network(&["10-containerd-net.conflist"], &[]),
        ),
        ("unless `spec.addons.cni` is off: no bridge `cni0` of another program", network(&[], &["10.88.0.1"])),
        (
            "unless `spec.addons.cni` is off: `nft` or `iptables`, with which a CNI plugin serves the `hostPort` of pods. `join` only warns",
            host_ports(&[]).into_iter().collect(),
        ),
    ]
}

fn table() -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
    let mut table = HEAD.to_owned();
    for (need, faults) in [of_the_machine(), of_the_network(), of_the_cluster()].concat() {
        assert!(!faults.is_empty(), "{need}");
        for (at, fault) in faults.iter().enumerate() {
            let need = if at == 0 { need } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(table, "| {need} | {} | {} |", cell(&fault.problem), cell(&fault.help));
        }
    }
    table
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the places in a directory where its own code reports a fault.
fn places(directory: &Path, found: &mut BTreeSet<(PathBuf, u32)>) {
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            places(&entry, found);
        } else if entry.file_name().is_some_and(|name| name != "documented.rs" && name != "tests.rs") {
            let text = fs::read_to_string(&entry).unwrap();
            let own = text.split(TESTS).next().unwrap();
            let lines = own.lines().zip(1..).filter(|(line, _)| line.contains(CONSTRUCTOR));
            found.extend(lines.map(|(_, number)| (entry.strip_prefix(repository()).unwrap().to_owned(), number)));
        }
    }
}

#[test]
fn the_page_has_the_text_of_each_check() {
    let (path, table) = (repository().join(PAGE), table());
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(HEAD).unwrap();
    let after = rest.split_once("\n\n").unwrap().1;
    let current = format!("{before}{table}\n{after}");
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, current).unwrap();
        return;
    }
    assert!(
        page == current,
        "the table of checks in {PAGE} differs from the code: run the test with UPDATE=1:\n{table}"
    );

    let mut expected = BTreeSet::new();
    places(&repository().join("node/src"), &mut expected);
    let missing: Vec<_> = PLACES.with_borrow(|places| expected.difference(places).cloned().collect());
    assert_eq!(missing, [], "faults without a row in the table");
    assert!(expected.len() > 20, "{expected:?}");
}
