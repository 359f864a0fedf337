//! Idle connections to the API's address on a worker. Only a reset ends them.

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

/// Half of the connections use each ingress, whatever other connections the kubelet and pods open.
const CONNECTIONS: usize = 8;

/// Returns the address of the API on each worker.
pub(crate) fn api(cluster: &TestCluster) -> SocketAddr {
    let path = "{.endpoints[0].addresses[0]}:{.ports[0].port}";
    cluster.value("endpointslices/kubernetes", path).parse().unwrap()
}

pub(crate) struct Idle {
    connections: Vec<TcpStream>,
    /// When each connection was observed as reset, by its number.
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

    /// Records the connections that have been reset. A connection reports a reset once.
    pub(crate) fn look(&self) {
        for (at, mut connection) in self.connections.iter().enumerate() {
            if matches!(connection.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::ConnectionReset) {
                self.reset.borrow_mut().insert(at, outage::now());
            }
        }
    }

    /// Returns the time from `since` to the last reset. Connections through the other ingress must not be reset.
    pub(crate) fn last_reset(&self, since: f64) -> Duration {
        let reset = self.reset.borrow();
        assert!((1..CONNECTIONS).contains(&reset.len()), "{} of {CONNECTIONS} connections were reset", reset.len());
        Duration::from_secs_f64(reset.values().fold(since, |last, at| at.max(last)) - since)
    }
}
