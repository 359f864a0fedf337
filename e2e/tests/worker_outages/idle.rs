//! Connections to the API's address on a worker over which nobody says anything: only a reset ends them.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{self, Read},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use keelway_e2e::{
    outage,
    worker_fleet::{TestCluster, TestWorker},
};

/// Half of them are through each ingress, whatever the kubelet and pods do meanwhile.
const CONNECTIONS: usize = 8;

/// Where each worker answers for the API.
pub(crate) fn api(cluster: &TestCluster) -> SocketAddr {
    let path = "{.endpoints[0].addresses[0]}:{.ports[0].port}";
    cluster.value("endpointslices/kubernetes", path).parse().unwrap()
}

pub(crate) struct Idle {
    connections: Vec<TcpStream>,
    /// When it was seen that one was reset, by its number.
    reset: RefCell<BTreeMap<usize, f64>>,
}

impl Idle {
    pub(crate) fn open(worker: &TestWorker<'_>, api: SocketAddr) -> Self {
        let connect = || {
            let stream = TcpStream::connect(api).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        Self { connections: worker.within(|| (0..CONNECTIONS).map(|_| connect()).collect()), reset: RefCell::default() }
    }

    /// Notes those that are reset by now. A connection tells once.
    pub(crate) fn look(&self) {
        for (at, mut connection) in self.connections.iter().enumerate() {
            if matches!(connection.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::ConnectionReset) {
                self.reset.borrow_mut().insert(at, outage::now());
            }
        }
    }

    /// How long after that the last one was reset. Those through the other ingress were not.
    pub(crate) fn last_reset(&self, since: f64) -> Duration {
        let reset = self.reset.borrow();
        assert!((1..CONNECTIONS).contains(&reset.len()), "{} of {CONNECTIONS} connections were reset", reset.len());
        Duration::from_secs_f64(reset.values().fold(since, |last, at| at.max(last)) - since)
    }
}
