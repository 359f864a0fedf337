//! A management cluster that Keelway runs, and the objects that its users apply.

use std::{
    fs,
    path::{Path, PathBuf},
};

use keelway_api::Documents;
use serde_json::json;

use crate::{Keelway, Kubectl};

/// The namespace and the ServiceAccount of the manager.
const NAMESPACE: &str = "keelway-system";
const ACCOUNT: &str = "keelway-manager";

/// A cluster whose API contains the documents of other clusters.
pub struct Management {
    /// An administrator's client.
    pub kubectl: Kubectl,
    directory: PathBuf,
}

impl Management {
    /// Creates the cluster on these machines with `keelway`.
    pub fn start(keelway: &Keelway, machines: &Documents) -> Self {
        let machines = machines.write().into_bytes();
        let asked = keelway.run(&["cluster", "inject", "--name", "management"], &machines).succeeded();
        let mut asked = Documents::read(&asked.stdout).unwrap();
        // Without workers, the API of metrics has no endpoint. Listing all API groups then fails, and namespaces are never deleted.
        asked.clusters.values_mut().for_each(|cluster| cluster.spec.addons.metrics_server.enabled = false);
        let settled = keelway.run(&["reconcile"], asked.write().as_bytes()).succeeded();
        let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "management"], &settled.stdout).succeeded();
        let directory = keelway.directory().join("management");
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("admin.kubeconfig");
        fs::write(&file, kubeconfig.stdout).unwrap();
        Self { kubectl: Kubectl::new(&file), directory }
    }

    /// Applies the manifest with the definitions, the account and its rights.
    pub fn install(&self) {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/keelway-manager.yaml");
        let _ = self.kubectl.run(&["apply", "-f", manifest.to_str().unwrap()]).succeeded();
        let kinds =
            ["clusterclasses", "clusters", "components", "hypervisors"].map(|kind| format!("crd/{kind}.keelway.dev"));
        self.kubectl.wait("condition=Established", &kinds.each_ref().map(String::as_str));
    }

    /// Writes a kubeconfig with only the rights of the manager's account, and returns its path.
    pub fn of_manager(&self) -> PathBuf {
        let token = self.kubectl.run(&["create", "token", ACCOUNT, "--namespace", NAMESPACE]).succeeded();
        let mut kubeconfig = self.kubectl.kubeconfig();
        for user in kubeconfig["users"].as_array_mut().unwrap() {
            user["user"] = json!({ "token": token.text().trim() });
        }
        let file = self.directory.join("manager.kubeconfig");
        fs::write(&file, kubeconfig.to_string()).unwrap();
        file
    }
}
