use super::*;

pub(super) fn good() -> HostFacts {
    HostFacts {
        is_root: true,
        socket: "/run/containerd/containerd.sock".into(),
        runtime: Ok(HostRuntimeFacts { name: "containerd".to_owned(), version: "v2.4.2".to_owned(), components: 0 }),
        cgroups: Cgroups::Unified,
        has_memory_cgroup: true,
        has_kernel_log: true,
        noexec: vec![],
        kubelets: BTreeSet::new(),
        kubelet_root: "/var/lib/kubelet".into(),
        has_kubelet_state: false,
        listeners: BTreeSet::from(["0.0.0.0:22".parse().unwrap()]),
        is_hypervisor: false,
        has_tunnels: true,
        has_nftables: true,
        has_bridge_netfilter: true,
        resolv_confs: vec![ResolvConf { path: Path::new(RESOLV_CONF), servers: vec!["192.0.2.53".parse().unwrap()] }],
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

pub(super) const STRICT: CheckOptions = CheckOptions { allow_cgroup_v1: false };

#[test]
fn a_good_machine_has_no_faults() {
    assert_eq!(faults(&good(), STRICT), []);
}

/// A fault, and texts of its problem and its help.
type Row<'a> = (&'a dyn Fn(&mut HostFacts), &'a str, &'a str);

#[test]
fn each_fault_names_a_remedy() {
    let runtime = |name: &str, version: &str, components| {
        Ok(HostRuntimeFacts { name: name.to_owned(), version: version.to_owned(), components })
    };
    let table: [Row<'_>; 19] = [
        (&|f| f.is_root = false, "root", "sudo"),
        (&|f| f.runtime = Err("no such file".to_owned()), "no such file", "install and start containerd"),
        (&|f| f.runtime = runtime("cri-o", "1.30.0", 0), "cri-o 1.30.0", "containerd 1.7"),
        (&|f| f.runtime = runtime("containerd", "1.6.20~ds1", 0), "1.6.20", "containerd 1.7"),
        (&|f| f.runtime = runtime("containerd", "v2.4.2", 1), "hypervisor", "another machine"),
        (&|f| f.is_hypervisor = true, "hypervisor", "another machine"),
        (&|f| f.cgroups = Cgroups::Legacy, "cgroup v1", "--allow-cgroup-v1"),
        (&|f| f.cgroups = Cgroups::Missing, "no cgroups", "cgroup2"),
        (&|f| f.has_memory_cgroup = false, "memory controller", "cgroup_enable=memory"),
        (&|f| f.has_kernel_log = false, "/dev/kmsg", "mknod"),
        (&|f| f.noexec = vec![("--state-dir", "/var/lib/keelway-node".into())], "noexec", "--state-dir"),
        (&|f| f.kubelets = BTreeSet::from([7]), "process 7", "stop that kubelet"),
        (&|f| f.has_kubelet_state = true, "/var/lib/kubelet", "--kubelet-root-dir"),
        (&|f| f.listeners = BTreeSet::from(["[::]:10250".parse().unwrap()]), "10250", "stop"),
        (&|f| f.has_tunnels = false, "/dev/net/tun", "modprobe tun"),
        (&|f| f.has_nftables = false, "nftables", "modprobe nf_tables"),
        (&|f| f.has_bridge_netfilter = false, "bridged", "modprobe br_netfilter"),
        (&|f| f.resolv_confs.clear(), "resolv.conf does not exist", "nameserver"),
        (&|f| f.resolv_confs[0].servers.clear(), "names no DNS server", "nameserver"),
    ];
    for (change, problem, help) in table {
        let mut facts = good();
        change(&mut facts);
        let found = faults(&facts, STRICT);
        let [fault] = found.as_slice() else { panic!("{problem}: {found:?}") };
        assert!(fault.problem.contains(problem) && fault.help.contains(help), "{fault}");
    }
}

#[test]
fn all_faults_are_reported_at_once() {
    let facts = HostFacts { is_root: false, cgroups: Cgroups::Legacy, has_tunnels: false, ..good() };
    assert_eq!(faults(&facts, STRICT).len(), 3);
    assert_eq!(faults(&facts, CheckOptions { allow_cgroup_v1: true }).len(), 2);
}

#[test]
fn clocks_may_differ_a_little() {
    let here = good().now;
    assert_eq!(clock(here, None), None);
    assert_eq!(clock(here, Some(here + SignedDuration::from_mins(3))), None);
    assert!(clock(here, Some(here - SignedDuration::from_mins(9))).unwrap().problem.contains("540 s ahead"));
    assert!(clock(here, Some(here + SignedDuration::from_mins(9))).unwrap().problem.contains("540 s behind"));
}

#[test]
fn the_apis_address_is_free() {
    let api: [SocketAddr; 1] = ["100.80.0.1:6443".parse().unwrap()];
    let is_taken = |listener: &str| api_port(&BTreeSet::from([listener.parse().unwrap()]), &api).is_some();
    assert!(is_taken("0.0.0.0:6443") && is_taken("[::]:6443") && is_taken("100.80.0.1:6443"));
    assert!(!is_taken("127.0.0.1:6443") && !is_taken("0.0.0.0:6444"));
}

#[test]
fn overlapping_ranges_are_faults() {
    let mut cluster = crate::samples::cluster();
    cluster.vpn_cidrs.push("fd00::/64".parse().unwrap());
    cluster.endpoints = serde_json::from_value(serde_json::json!([{ "address": "203.0.113.1:20000" }])).unwrap();
    let ranges = NamedRanges::of(&cluster);
    let networks = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
    assert_eq!(overlaps(&ranges, &networks(&["0.0.0.0/0", "::/0", "192.168.0.0/24", "10.0.0.0/24"])), []);
    let met = overlaps(&ranges, &networks(&["10.0.0.0/8", "10.96.3.7/32", "fd00::7/128"]));
    let names: Vec<&str> = met.iter().map(|fault| fault.problem.as_str()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn a_state_directory_of_other_programs_is_refused() {
    let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
    let check = |found| state_directory(Path::new("/srv"), &names(found), &names(&["ca.crt", "ca.crt.new"]));
    assert_eq!(check(&[]), None);
    assert_eq!(check(&["ca.crt.new"]), None);
    let fault = check(&["ca.crt", "photos"]).unwrap();
    assert!(fault.problem.contains("/srv") && fault.problem.contains("photos") && fault.help.contains("--state-dir"));
}
