//! All machines, a tenth of them public, and their documents in the API server.

use std::{collections::BTreeSet, fmt::Write, fs, ops::Range, path::PathBuf};

use futures::future::join_all;
use keelway_api::{
    Documents, Secret,
    name::{ClusterId, HypervisorName},
};
use keelway_e2e::{Keelway, host};
use keelway_planner::agent_identity;
use keelway_reconciler::agent_credentials;

use crate::{
    config::Config,
    effects::Effects,
    machine::{Machine, PORT},
    network::{self, Addresses},
    objects::Objects,
};

/// The namespace of the managers' Lease.
pub(crate) const NAMESPACE: &str = "default";

pub(crate) struct Fleet {
    /// The documents, with the certificates that agents serve with.
    documents: Documents,
    /// The directory that contains the root of each machine.
    directory: PathBuf,
    machines: usize,
    effects: Effects,
}

impl Fleet {
    /// Starts machines. Stores their documents in the API server first, with certificates of the installation.
    pub(crate) fn start(machines: usize, kubeconfig: &str, effects: &Effects) -> Self {
        let keelway = Keelway::new("fleet");
        // No agent listens yet. This run only mints keys and writes them into the documents.
        let minted = keelway.run(&["reconcile", "--once"], documents(0..machines).as_bytes()).stdout;
        let to = format!("kubernetes:{kubeconfig}");
        let _ = keelway.run(&["pivot", "--from", "-", "--to", &to, "--namespace", NAMESPACE], &minted).succeeded();
        let documents = Documents::read(&minted).unwrap();
        network::bridge();
        // A short name, because the length of socket paths is limited.
        let directory = host::directory("m");
        let mut fleet = Self { documents, directory, machines: 0, effects: effects.clone() };
        fleet.begin(machines);
        fleet
    }

    /// Adds machines up to this number, as a user does. The manager mints the certificates of their agents.
    pub(crate) async fn grow(&mut self, machines: usize, objects: &Objects) {
        let more = self.machines..machines;
        let new = Documents::read(documents(more.clone()).as_bytes()).unwrap();
        join_all(new.hypervisors.values().map(|machine| objects.add(machine))).await;
        let id = self.documents.installation().unwrap().clone();
        let secrets = join_all(more.map(|number| {
            let name = agent_identity(&id, &name(number)).secret;
            async move { (name.clone(), objects.secret(&name).await) }
        }));
        self.documents
            .secrets
            .extend(secrets.await.into_iter().map(|(name, secret)| (name, Secret::from(secret).into())));
        self.begin(machines);
    }

    fn begin(&mut self, machines: usize) {
        for number in self.machines..machines {
            let credentials = agent_credentials(&self.documents, &name(number)).unwrap();
            let root = self.root(number);
            fs::create_dir(&root).unwrap();
            Machine { root, addresses: addresses(number), credentials, effects: self.effects.clone() }.start(number);
        }
        self.machines = machines;
    }

    fn root(&self, number: usize) -> PathBuf {
        self.directory.join(number.to_string())
    }

    /// Removes all pods from all machines, and returns the configs of the machines restricted to these clusters.
    pub(crate) async fn cleared(&self, clusters: &BTreeSet<ClusterId>) -> Vec<Config> {
        let roots: Vec<PathBuf> = (0..self.machines).map(|number| self.root(number)).collect();
        join_all(roots.iter().map(|root| Config::cleared(root, clusters))).await
    }
}

fn name(number: usize) -> HypervisorName {
    format!("hv-{number}").parse().unwrap()
}

fn addresses(number: usize) -> Addresses {
    Addresses::of(number, number.is_multiple_of(10))
}

fn documents(numbers: Range<usize>) -> String {
    let mut text = String::new();
    for number in numbers {
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
