//! All machines, of which a tenth is public, and their documents in the API server.

use std::{fmt::Write, fs};

use keelway_api::Documents;
use keelway_e2e::{Keelway, host};
use keelway_reconciler::agent_credentials;

use crate::{
    effects::Effects,
    machine::{Machine, PORT},
    network::{self, Addresses},
};

/// The namespace of the Lease of managers.
pub(crate) const NAMESPACE: &str = "default";

/// Starts them. Their documents are in the API server then, with certificates of the installation.
pub(crate) fn start(machines: usize, kubeconfig: &str, effects: &Effects) {
    let keelway = Keelway::new("fleet");
    // Nobody answers yet. What is minted is written.
    let minted = keelway.run(&["reconcile", "--once"], documents(machines).as_bytes()).stdout;
    let to = format!("kubernetes:{kubeconfig}");
    let _ = keelway.run(&["pivot", "--from", "-", "--to", &to, "--namespace", NAMESPACE], &minted).succeeded();
    let documents = Documents::read(&minted).unwrap();
    network::bridge();
    let roots = host::directory("m");
    for number in 0..machines {
        let credentials = agent_credentials(&documents, &name(number).parse().unwrap()).unwrap();
        // Short, so that the paths of sockets below it are.
        let root = roots.join(number.to_string());
        fs::create_dir(&root).unwrap();
        let addresses = addresses(number);
        Machine { root, addresses, credentials, effects: effects.clone() }.start(number);
    }
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
