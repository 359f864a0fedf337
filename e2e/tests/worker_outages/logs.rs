//! Reads the log of a pod repeatedly, with the request of `kubectl logs` on a new connection each time.

use std::{
    fmt,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_e2e::{Kubectl, deadline, https::HttpsClient, outage};

/// The pause between two requests.
const PAUSE: Duration = Duration::from_millis(100);

/// A reader of logs. It ends on drop.
pub(crate) struct Logs {
    pod: String,
    answers: Arc<Mutex<Vec<f64>>>,
    _ends: Sender<()>,
}

impl Logs {
    /// Starts a reader through this ingress, as the user of a kubeconfig.
    pub(crate) fn start(kubectl: &Kubectl, ingress: SocketAddr, pod: String) -> Self {
        let config = kubectl.kubeconfig();
        let value =
            |list: &str, kind: &str, key: &str| STANDARD.decode(config[list][0][kind][key].as_str().unwrap()).unwrap();
        let identity = ["client-certificate-data", "client-key-data"].map(|key| value("users", "user", key));
        let authority = value("clusters", "cluster", "certificate-authority-data");
        let https = HttpsClient::new(&authority, "kubernetes", Some((&identity[0], &identity[1])));
        let path = format!("/api/v1/namespaces/default/pods/{pod}/log?tailLines=1");
        let (ends, ended) = channel();
        let answers: Arc<Mutex<Vec<f64>>> = Arc::default();
        let noted = Arc::clone(&answers);
        thread::spawn(move || {
            while ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                let asked = TcpStream::connect_timeout(&ingress, deadline::REQUEST);
                if asked.and_then(|stream| https.get(stream, &path)).is_ok_and(|answer| answer.status == 200) {
                    noted.lock().unwrap().push(outage::now());
                }
            }
        });
        Self { pod, answers, _ends: ends }
    }

    /// Returns when responses arrived, in seconds since the Unix epoch.
    pub(crate) fn answers(&self) -> Vec<f64> {
        self.answers.lock().unwrap().clone()
    }
}

impl fmt::Display for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "logs of {}", self.pod)
    }
}
