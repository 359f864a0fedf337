//! All machines, of which a tenth is public, and their documents in the API server.

use std::{collections::BTreeSet, fmt::Write, fs, path::PathBuf};

use futures::future::join_all;
use keelway_api::{Documents, name::ClusterId};
use keelway_e2e::{Keelway, host};
use keelway_reconciler::agent_credentials;

use crate::{
    config::Config,
    effects::Effects,
    machine::{Machine, PORT},
    network::{self, Addresses},
};

/// The namespace of the Lease of managers.
pub(crate) const NAMESPACE: &str = "default";

/// The roots of all machines.
pub(crate) struct Fleet(Vec<PathBuf>);

impl Fleet {
    /// Takes all away that machines have, and returns their configs of these clusters.
    pub(crate) async fn cleared(&self, clusters: &BTreeSet<ClusterId>) -> Vec<Config> {
        join_all(self.0.iter().map(|root| Config::cleared(root, clusters))).await
    }
}

/// Starts them. Their documents are in the API server then, with certificates of the installation.
pub(crate) fn start(machines: usize, kubeconfig: &str, effects: &Effects) -> Fleet {
    let keelway = Keelway::new("fleet");
    // Nobody answers yet. What is minted is written.
    let minted = keelway.run(&["reconcile", "--once"], documents(machines).as_bytes()).stdout;
    let to = format!("kubernetes:{kubeconfig}");
    let _ = keelway.run(&["pivot", "--from", "-", "--to", &to, "--namespace", NAMESPACE], &minted).succeeded();
    let documents = Documents::read(&minted).unwrap();
    network::bridge();
    // Short, so that the paths of sockets below it are.
    let directory = host::directory("m");
    let roots: Vec<PathBuf> = (0..machines).map(|number| directory.join(number.to_string())).collect();
    for (number, root) in roots.iter().enumerate() {
        let credentials = agent_credentials(&documents, &name(number).parse().unwrap()).unwrap();
        fs::create_dir(root).unwrap();
        let addresses = addresses(number);
        Machine { root: root.clone(), addresses, credentials, effects: effects.clone() }.start(number);
    }
    Fleet(roots)
}

fn name(number: usize) -> String {
    format!("hv-{number}")
}

fn addresses(number: usize) -> Addresses {
    Addresses::of(number, number.is_multiple_of(10))
}

fn documents(machines: usize) -> String {
    let mut text = String::new();
    for number in 0..machines {
        let Addresses { private, public } = addresses(number);
        let role = if public.is_some() { "Public" } else { "Private" };
        let public = public.map(|address| address.to_string()).unwrap_or_default();
        write!(
            text,
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: {}}}\nspec:\n  role: {role}\n  \
             endpoint: {{agent: {{address: '{private}:{PORT}'}}}}\n  addresses: {{private: [{private}], public: [{public}]}}\n",
            name(number)
        )
        .unwrap();
    }
    text
}
