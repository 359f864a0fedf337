//! The kubelet alone, without Keelway.

use std::time::Instant;

use keelway_e2e::process;

use crate::{cluster::Cluster, there};

/// The command line and addresses with which a worker's kubelet was started. [`KEEP`] copies its files, which remain after the machine has left the
/// cluster.
pub(crate) struct Plain {
    command: Vec<String>,
    addresses: Vec<String>,
}

/// The link to the current serving certificate.
const SERVING: &str = "/var/lib/keelway-node/pki/kubelet-server-current.pem";

/// [`KEEP`] copies the files of the worker. [`PUT_BACK`] restores them after the worker has left. The configuration of the kubelet contains these
/// paths.
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
    /// Records the worker that the machine currently is.
    pub(crate) fn of(cluster: &Cluster<'_>, name: &str) -> Self {
        // The kubelet gets this certificate shortly after the Node is ready.
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

    /// Starts the kubelet, and returns the time in seconds until its Node was ready.
    pub(crate) fn ready(&self, cluster: &Cluster<'_>, name: &str) -> f64 {
        let ingress = cluster.plane.ingress().to_string();
        let addresses = self.addresses.join(" ");
        let _ = cluster.on_machine(&["sh", "-ec", PUT_BACK, "sh", &ingress, &addresses], &[]).succeeded();
        let words: Vec<&str> = self.command.iter().map(String::as_str).collect();
        let started = Instant::now();
        let kubelet = cluster.plane.keelway.start(&[&cluster.enter()[..], &words].concat(), &[]);
        let took = cluster.ready(name) - started;
        process::kill(kubelet.pid());
        // Pods hold mounts below the kubelet's directory, so they are removed first.
        cluster.forget(name);
        let _ = cluster.on_machine(&["sh", "-ec", CLEAR, "sh", &addresses], &[]).succeeded();
        took.as_secs_f64()
    }
}
