//! Machines that apply their configs at once, and placeholders for keys.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    ByteString, Documents,
    documents::SecretName,
    jiff::Timestamp,
    machine::{
        CgroupDriver, ContainerPhase, ContainerState, DataState, FileState, MachineConfig, MachineState, Pod,
        RuntimeFacts, SandboxState, ServerAdmin, ServerState, Start, copy_name,
    },
    name::{HypervisorName, PodName},
};
use keelway_planner::{AuthorityGeneration, CertificateSeen, MintRequest, Plan, identify};

/// In a certificate, what precedes the certificate of its authority.
pub(crate) const SIGNED_BY: &[u8] = b", signed by ";

/// Returns the certificate of the authority that signed a certificate of the model. None: the first generation signed it.
pub(crate) fn signer_of(certificate: &[u8]) -> Option<Vec<u8>> {
    let at = certificate.windows(SIGNED_BY.len()).position(|window| window == SIGNED_BY)?;
    certificate.get(at + SIGNED_BY.len()..).map(<[u8]>::to_vec)
}

/// Updates which authorities the documents have, and which of them signed each certificate.
pub(crate) fn see_signers(documents: &Documents, certificates: &mut BTreeMap<(SecretName, String), CertificateSeen>) {
    for ((secret, name), seen) in &mut *certificates {
        let value = documents.secrets.get(secret).and_then(|secret| secret.data.as_ref()?.get(&format!("{name}.crt")));
        seen.authority_key_id = value.and_then(|value| signer_of(&value.0));
    }
    let is_later = |value: &ByteString| value.0.starts_with(b"\nnext of ");
    for (name, secret) in documents.secrets.iter().filter(|(name, _)| name.name.ends_with("-ca")) {
        for generation in ["active", "previous"] {
            let place = (name.clone(), generation.to_owned());
            certificates.remove(&place);
            let value = secret.data.as_ref().and_then(|data| data.get(format!("{generation}.crt").as_str()));
            let Some(value) = value else { continue };
            let seen = CertificateSeen {
                common_name: name.name.clone(),
                organizations: Vec::new(),
                dns_names: Vec::new(),
                addresses: Vec::new(),
                not_before: Timestamp::UNIX_EPOCH,
                renew_at: Timestamp::MAX,
                not_after: Timestamp::MAX,
                key_id: is_later(value).then(|| value.0.clone()),
                authority_key_id: None,
            };
            certificates.insert(place, seen);
        }
    }
}

/// Mints what a plan requests into its documents, and adds the contents of the certificates.
pub(crate) fn mint(plan: &mut Plan, certificates: &mut BTreeMap<(SecretName, String), CertificateSeen>) {
    for wanted in &plan.mint {
        let (secret, keys) = match wanted {
            MintRequest::Authority { secret, .. } => {
                (secret, ["active.crt", "active.key", "bundle.crt"].map(str::to_owned).to_vec())
            }
            MintRequest::NextAuthority { secret, .. } => {
                mint_next_authority(&mut plan.documents, secret);
                continue;
            }
            MintRequest::ServiceAccountKey { secret } => {
                (secret, ["active.key", "bundle.pub"].map(str::to_owned).to_vec())
            }
            MintRequest::NextServiceAccountKey { secret } => {
                mint_next(&mut plan.documents, secret);
                continue;
            }
            MintRequest::NextEncryptionKey { secret } => {
                mint_next_encryption(&mut plan.documents, secret);
                continue;
            }
            MintRequest::EncryptionKey { secret } => (secret, vec!["active.key".to_owned()]),
            MintRequest::WireGuardKey { secret, name } => (secret, vec![format!("{name}.key"), format!("{name}.pub")]),
            MintRequest::Certificate { secret, name, subject, authority, generation, .. } => {
                let half = match generation {
                    AuthorityGeneration::Active => "active.crt",
                    AuthorityGeneration::Previous => "previous.crt",
                };
                let signer = plan.documents.secrets.get(authority).and_then(|found| found.data.as_ref()?.get(half));
                let signer = signer.map(|signer| signer.0.clone());
                let seen = CertificateSeen {
                    common_name: subject.common_name.clone(),
                    organizations: subject.organizations.clone(),
                    dns_names: subject.dns_names.clone(),
                    addresses: subject.addresses.clone(),
                    not_before: Timestamp::UNIX_EPOCH,
                    renew_at: Timestamp::MAX,
                    not_after: Timestamp::MAX,
                    key_id: None,
                    authority_key_id: signer.clone(),
                };
                certificates.insert((secret.clone(), name.clone()), seen);
                for half in ["crt", "key"] {
                    keep(&mut plan.documents, secret, &format!("{name}.{half}"));
                }
                // A first generation is not named, so that what every pod begins with stays the same.
                if let Some(signer) = signer.filter(|signer| signer.starts_with(b"\nnext of ")) {
                    let text = [format!("{}/{name}.crt", secret.name).as_bytes(), SIGNED_BY, &signer].concat();
                    plan.documents.put_secret_values(secret, [(format!("{name}.crt"), ByteString(text))]);
                }
                continue;
            }
            MintRequest::RevocationList { secret, name, .. } => (secret, vec![name.clone()]),
        };
        for key in keys {
            keep(&mut plan.documents, secret, &key);
        }
    }
}

/// A next key differs from every key before it.
fn mint_next(documents: &mut Documents, name: &SecretName) {
    let Some(data) = documents.secrets.get(name).and_then(|secret| secret.data.clone()) else { return };
    let active = data.get("active.key").cloned().unwrap_or_default();
    let mut values = data;
    let part = |text: &str| ByteString([&active.0, text.as_bytes()].concat());
    let halves = [("active.pub", ", public"), ("next.key", ", next key"), ("next.pub", ", next pub")];
    for (name, text) in halves {
        if !values.contains_key(name) {
            values.insert(name.to_owned(), part(text));
        }
    }
    let parts = ["active.pub", "next.pub", "previous.pub"].into_iter().filter_map(|part| values.get(part));
    let bundle = parts.flat_map(|part| part.0.clone()).collect();
    values.insert("bundle.pub".to_owned(), ByteString(bundle));
    documents.put_secret_values(name, values);
}

/// A next authority differs from every one before it. Each is one line of the bundle.
fn mint_next_authority(documents: &mut Documents, name: &SecretName) {
    let data = documents.secrets.get(name).and_then(|secret| secret.data.clone()).unwrap_or_default();
    if data.contains_key("next.crt") {
        return;
    }
    let next = |half: &str| {
        let active = data[format!("active.{half}").as_str()].0.trim_ascii();
        ByteString([b"\nnext of ", active].concat())
    };
    let bundle = ByteString([data["active.crt"].0.as_slice(), &next("crt").0].concat());
    let values = [("next.crt", next("crt")), ("next.key", next("key")), ("bundle.crt", bundle)];
    documents.put_secret_values(name, values.map(|(name, value)| (name.to_owned(), value)));
}

fn mint_next_encryption(documents: &mut Documents, name: &SecretName) {
    let data = documents.secrets.get(name).and_then(|secret| secret.data.clone()).unwrap_or_default();
    if !data.contains_key("next.key") {
        let next = ByteString([&data["active.key"].0, &b", next key"[..]].concat());
        documents.put_secret_values(name, [("next.key".to_owned(), next)]);
    }
}

fn keep(documents: &mut Documents, name: &SecretName, key: &str) {
    let value = ByteString(format!("{}/{key}, never shown to anybody", name.name).into_bytes());
    documents.put_secret_values(name, [(key.to_owned(), value)]);
}

/// Machines of these roles, as a user writes them.
pub(crate) fn hypervisors(roles: &[&str]) -> impl Iterator<Item = String> {
    roles.iter().enumerate().map(|(number, role)| {
        let public = if *role == "Public" { format!("198.18.0.{number}") } else { String::new() };
        format!(
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-{number}}}\nspec:\n  \
             role: {role}\n  endpoint: {{unix: {{path: /run/{number}.sock}}}}\n  \
             addresses: {{private: [10.0.0.{number}], public: [{public}]}}\n  portRange: {{from: 20000, to: 22767}}\n"
        )
    })
}

/// Documents with all ids, and their empty machines.
pub(crate) fn identified(text: &str) -> (Documents, BTreeMap<HypervisorName, MachineState>) {
    let mut documents = Documents::read(text.as_bytes()).unwrap();
    let mut number = 0_u64;
    let random = || {
        number += 1;
        format!("a{number:015x}")
    };
    identify(&mut documents, random).unwrap();
    let machines = documents.hypervisors.keys().map(|name| (name.clone(), empty())).collect();
    (documents, machines)
}

/// An empty machine.
pub(crate) fn empty() -> MachineState {
    let runtime =
        RuntimeFacts { name: "model".to_owned(), version: "1".to_owned(), cgroup_driver: CgroupDriver::Cgroupfs };
    MachineState::empty(runtime)
}

/// Starts and removes pods at once, except those of `others`. A haproxy gets the servers that its machine would send to it.
pub(crate) fn apply(state: &mut MachineState, config: &MachineConfig) {
    let stays = |sandbox: &SandboxState| match config.pods.get(&sandbox.pod) {
        Some(pod) => !pod.start.stops() && (pod.hold || pod.digest() == sandbox.digest),
        None => config.others.contains(&sandbox.pod.cluster),
    };
    state.sandboxes.retain(stays);
    let kept: BTreeSet<PodName> = state.sandboxes.iter().map(|sandbox| sandbox.pod.clone()).collect();
    state.containers.retain(|container| kept.iter().any(|pod| pod.to_string() == container.sandbox));
    state.servers.retain(|pod, _| kept.contains(pod));
    for removal in config.removals.keys().filter(|pod| !config.pods.contains_key(*pod)) {
        state.files.remove(&removal.to_string());
        state.files.retain(|path, _| !path.starts_with(&format!("{removal}/files/")));
    }
    for (name, pod) in &config.pods {
        if kept.contains(name) {
            change(state, name, pod);
            if state.sandboxes.iter().any(|sandbox| sandbox.pod == *name && sandbox.digest == pod.digest()) {
                write_files(state, name, pod);
            }
        } else if let Start::Copied(copy) = pod.start {
            copy_data(state, name, pod, copy);
        } else if pod.start.stops() {
            // Its files and its data stay.
        } else if pod.start.waits() {
            of_data(state, name, pod, |data| data.marked |= pod.start == Start::Never);
            // Without a sandbox, a pod with marked data still has its directory.
            if state.has_marked_data(name) {
                state.files.insert(name.to_string(), directory(pod));
            }
        } else if pod.data.iter().all(|data| state.data_of(name, data).allows(pod.start)) {
            of_data(state, name, pod, |data| data.used = true);
            start(state, name, pod);
        }
    }
}

fn copy_data(state: &mut MachineState, name: &PodName, pod: &Pod, copy: u32) {
    for data in &pod.data {
        let found = state.data_of(name, data);
        state.data.entry(format!("{name}/{}", copy_name(data, copy))).or_insert(found);
    }
}

fn of_data(state: &mut MachineState, name: &PodName, pod: &Pod, change: impl Fn(&mut DataState)) {
    for data in &pod.data {
        change(state.data.entry(format!("{name}/{data}")).or_default());
    }
}

fn serves(address: std::net::SocketAddr) -> ServerState {
    ServerState { address, admin: ServerAdmin::Serves, sessions: 0, ready: false }
}

fn directory(pod: &Pod) -> FileState {
    FileState { user: 0, group: pod.user, mode: 0o750, sha256: None }
}

fn write_files(state: &mut MachineState, name: &PodName, pod: &Pod) {
    for (file, digest) in pod.files.iter().zip(pod.digests().files) {
        let written = FileState { sha256: Some(digest), ..directory(pod) };
        state.files.insert(format!("{name}/files/{}", file.path), written);
    }
}

fn start(state: &mut MachineState, name: &PodName, pod: &Pod) {
    let id = name.to_string();
    let sandbox = SandboxState { id: id.clone(), pod: name.clone(), attempt: 0, digest: pod.digest(), ready: true };
    state.sandboxes.push(sandbox);
    state.files.insert(format!("{name}/files"), directory(pod));
    write_files(state, name, pod);
    state.containers.extend(pod.containers.iter().map(|container| ContainerState {
        id: format!("{id}-{}", container.name),
        sandbox: id.clone(),
        name: container.name.clone(),
        attempt: 0,
        phase: ContainerPhase::Running,
        stop_seconds: None,
    }));
    if let Some(servers) = &pod.servers {
        let started = servers.addresses.iter().map(|(server, address)| (server.clone(), serves(*address)));
        state.servers.insert(name.clone(), started.collect());
    }
}

fn change(state: &mut MachineState, name: &PodName, pod: &Pod) {
    let Some(wanted) = &pod.servers else { return };
    // A pod that is kept for now may have been made without servers.
    let Some(found) = state.servers.get_mut(name) else { return };
    let is_wanted = |server: &str, found: &ServerState| wanted.addresses.get(server) == Some(&found.address);
    found.retain(|server, found| is_wanted(server, found) || found.admin == ServerAdmin::Serves || found.sessions > 0);
    for (server, found) in found.iter_mut() {
        found.admin = if is_wanted(server, found) { ServerAdmin::Serves } else { ServerAdmin::Drains };
    }
    for (server, address) in &wanted.addresses {
        found.entry(server.clone()).or_insert_with(|| serves(*address));
    }
}
