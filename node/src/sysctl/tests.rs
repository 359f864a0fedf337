use rustix::thread::UnshareFlags;

use super::*;
use crate::{
    files,
    forwarders::Forwarders,
    isolated::{run, within},
    undo::forget,
};

const FORWARDS: &str = "net/ipv4/ip_forward";

fn settings(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn only_values_of_a_worker_are_restored() {
    let before = settings(&[
        (FORWARDS, "0"),
        ("kernel/panic", "0"),
        ("net/ipv6/conf/eth0/accept_ra", "1"),
        ("net/netfilter/nf_conntrack_max", "1000"),
        ("vm/overcommit_memory", "0"),
        ("vm/panic_on_oom", "0"),
    ]);
    let now = settings(&[
        (FORWARDS, "1"),
        ("kernel/panic", "10"),
        ("net/ipv6/conf/eth0/accept_ra", "0"),
        ("net/netfilter/nf_conntrack_max", "2000"),
        ("vm/overcommit_memory", "2"),
        ("vm/panic_on_oom", "0"),
    ]);
    let names: Vec<&str> = of_worker(&before, |name| now.get(name).cloned()).map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["kernel/panic", FORWARDS, "net/netfilter/nf_conntrack_max", "vm/panic_on_oom"]);
}

#[test]
fn forwarding_stays_if_other_programs_need_it() {
    within(UnshareFlags::NEWNET, || {
        let state = tempfile::tempdir().unwrap();
        let layout = Layout::new(state.path());
        write(FORWARDS, "0").unwrap();
        set(&layout, false).unwrap();
        assert_eq!(read(FORWARDS).as_deref(), Some("1"));
        let changes = Changes::read(&layout).unwrap();
        let left = restore(&changes, true).unwrap();
        assert!(left.iter().any(|name| name == "net.ipv4.ip_forward"), "{left:?}");
        assert_eq!(read(FORWARDS).as_deref(), Some("1"));
        assert_eq!(restore(&changes, false).unwrap(), Vec::<String>::new());
        assert_eq!(read(FORWARDS).as_deref(), Some("0"));
        assert_eq!(restore(&changes, true).unwrap(), Vec::<String>::new());
    });
}

/// Joins and leaves. Returns whether the machine forwards packets then.
fn forwards_after(between: impl FnOnce() + Send) -> bool {
    let mut forwards = false;
    within(UnshareFlags::NEWNET, || {
        let state = tempfile::tempdir().unwrap();
        let layout = Layout::new(state.path().join("state"));
        std::fs::create_dir(layout.root()).unwrap();
        write(FORWARDS, "0").unwrap();
        let before = Changes { forwarders: Some(Forwarders::observe().unwrap()), ..Changes::default() };
        files::write_json(&layout.changes(), &before).unwrap();
        set(&layout, false).unwrap();
        between();
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(forget(&layout)).unwrap();
        forwards = read(FORWARDS).as_deref() == Some("1");
    });
    forwards
}

#[test]
fn docker_keeps_forwarding() {
    assert!(!forwards_after(|| {}));
    let docker = || drop(run("ip", &["link", "add", "docker0", "type", "bridge"]));
    assert_eq!(forwards_after(docker), rustix::process::geteuid().is_root());
}
