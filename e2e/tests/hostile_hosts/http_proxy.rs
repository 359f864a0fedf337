//! The only way out of a worker's network is an HTTP proxy with credentials. The worker joins, uses its tunnels over TLS, and leaves through the proxy.

use std::{net::SocketAddr, path::Path};

use keelway_e2e::{
    FinishedCommand,
    http_proxy::TestHttpProxy,
    program_directory,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet},
};

use crate::{transport::uses_tls, udp::works};

const PORT: u16 = 3128;
const CREDENTIALS: &str = "worker:p@ss-hidden";
/// The same in a URL.
const ENCODED: &str = "worker:p%40ss-hidden";

/// Everything but the proxy and the cluster's own interfaces is cut off.
const ENCLOSE: &str = "nft -f - <<'RULES'
table inet enclosed {
  chain out { type filter hook output priority 0; oifname { lo, cni0, \"keelway*\" } accept; ip daddr PROXY tcp dport PORT accept; reject; }
  chain through { type filter hook forward priority 0; oifname { lo, cni0, \"keelway*\" } accept; reject; }
}
RULES";

pub(crate) fn is_the_only_way_out(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    let machines = worker_fleet.fleet.machines();
    let public = machines.iter().find(|machine| machine.is_public()).unwrap();
    let address = SocketAddr::new(public.document.spec.addresses.public[0].parse().unwrap(), PORT);
    let proxy = public.within(|| TestHttpProxy::start(address, Some(CREDENTIALS)));
    let shown = format!("http://{address}");
    let rules = ENCLOSE.replace("PROXY", &address.ip().to_string()).replace("PORT", &PORT.to_string());
    let _ = worker.shell(&rules).succeeded();

    let token = worker_fleet.token(cluster);
    let refused = join(&worker, &[], &token);
    assert!(refused.code() == 2 && refused.stderr.contains("is unreachable"), "{}", refused.stderr);
    let refused = join(&worker, &[&format!("HTTPS_PROXY=http://worker:wrong-hidden@{address}")], &token);
    assert!(refused.code() == 2, "{}", refused.stderr);
    assert!(refused.stderr.contains(&format!("the HTTP proxy {shown} requires credentials")), "{}", refused.stderr);
    assert!(!refused.stderr.contains("hidden"), "{}", refused.stderr);
    assert!(proxy.targets().is_empty());

    let _ = join(&worker, &[&format!("HTTPS_PROXY=http://{ENCODED}@{address}")], &token).succeeded();
    uses_tls(&worker);
    works(cluster, name);
    let before = worker.status();
    let ingresses = before["ingresses"].as_array().unwrap();
    for ingress in ingresses {
        assert!(
            ingress["proxy"] == *shown && proxy.targets().contains(ingress["address"].as_str().unwrap()),
            "{before}"
        );
    }
    assert_eq!(proxy.targets().len(), ingresses.len());

    // The variable outlives the shell of the join.
    let _ = worker.shell(&format!("kill -KILL {}", before["pid"])).succeeded();
    worker.start_daemon(Path::new("keelway"));
    let _ = worker.another_daemon(&before);
    uses_tls(&worker);
    let output =
        worker.shell("keelway node status -o json; keelway node status; cat /var/lib/keelway-node/log/*").stdout;
    let output = String::from_utf8_lossy(&output);
    assert!(output.contains(&shown) && !output.contains("hidden"), "{output}");
    let _ = worker.run(&["keelway", "node", "leave"], &[]).succeeded();
}

/// Runs a join with these variables.
fn join(worker: &TestWorker<'_>, variables: &[&str], token: &[u8]) -> FinishedCommand {
    let installed = ["--install-dir", program_directory()];
    let command = ["keelway", "node", "join", "-", "--allow-cgroup-v1", "--service", "detached"];
    worker.run(&[&["env"], variables, &command, &installed].concat(), token)
}
