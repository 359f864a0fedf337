//! The kubelet alone.

use std::time::Instant;

use keelway_e2e::process;

use crate::{cluster::Cluster, there};

/// All that the kubelet of a worker was started with, kept while the machine is a worker no more.
pub(crate) struct Plain {
    command: Vec<String>,
    addresses: Vec<String>,
}

/// The serving certificate of now, a link.
const SERVING: &str = "/var/lib/keelway-node/pki/kubelet-server-current.pem";

/// What is copied away and, where nothing stays of the worker, put back. The kubelet's configuration names paths in it.
const KEEP: &str = "
mkdir /run/plain
cp -a /var/lib/keelway-node /run/plain/state
cp -a /etc/cni/net.d /run/plain/net.d
cp -a /opt/cni/bin /run/plain/bin";
const PUT_BACK: &str = "
mv /run/plain/state /var/lib/keelway-node
mkdir -p /etc/cni/net.d /opt/cni/bin
cp -a /run/plain/net.d/. /etc/cni/net.d
cp -a /run/plain/bin/. /opt/cni/bin
sed -i \"s#server: .*#server: https://$1#\" /var/lib/keelway-node/kubeconfig
for address in $2; do ip address add $address dev lo; done";
const CLEAR: &str = "
grep ' /var/lib/kubelet/' /proc/mounts | cut -d' ' -f2 | sort -r | xargs -r -n1 umount -l
find /var/lib/kubelet -mindepth 1 -delete
rm -rf /var/lib/keelway-node /run/plain /etc/cni/net.d/*keelway* /var/log/pods /var/log/containers
ip link delete cni0 2> /dev/null || true
for address in $1; do ip address delete $address dev lo; done";

impl Plain {
    /// Of the worker that the machine is now.
    pub(crate) fn of(cluster: &Cluster<'_>, name: &str) -> Self {
        // It comes a moment after the Node is ready.
        there(&cluster.file(SERVING));
        let status = cluster.on_machine(&["keelway", "node", "status", "-o", "json"], &[]).succeeded().json();
        assert_eq!(status["node"], name);
        let kubelet = u32::try_from(status["kubelet"]["pid"].as_u64().unwrap()).unwrap();
        let line = String::from_utf8(process::file(kubelet, "cmdline").unwrap()).unwrap();
        let command = line.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
        let addresses = status["addresses"].as_array().unwrap().iter();
        let addresses = addresses.map(|address| address.as_str().unwrap().to_owned()).collect();
        let _ = cluster.on_machine(&["sh", "-ec", KEEP], &[]).succeeded();
        Self { command, addresses }
    }

    /// Starts it, and returns the seconds until its Node was ready.
    pub(crate) fn ready(&self, cluster: &Cluster<'_>, name: &str) -> f64 {
        let ingress = cluster.plane.ingress().to_string();
        let addresses = self.addresses.join(" ");
        let _ = cluster.on_machine(&["sh", "-ec", PUT_BACK, "sh", &ingress, &addresses], &[]).succeeded();
        let words: Vec<&str> = self.command.iter().map(String::as_str).collect();
        let started = Instant::now();
        let kubelet = cluster.plane.keelway.start(&[&cluster.enter()[..], &words].concat(), &[]);
        let took = cluster.ready(name) - started;
        process::kill(kubelet.pid());
        // Its pods hold what is mounted there.
        cluster.forget(name);
        let _ = cluster.on_machine(&["sh", "-ec", CLEAR, "sh", &addresses], &[]).succeeded();
        took.as_secs_f64()
    }
}
