//! Digests of pods and configs, in the layout that v0.1.0 hashed. If the digest differs, the pod or the config has changed.
//!
//! A sandbox carries the digest of its pod for as long as it runs, and documents contain the digest of a config. The layout therefore outlives
//! releases: a different digest restarts the component on every upgrade of Keelway. The layout is written out here, apart from the structs of
//! configs, which may change.
//!
//! Each function destructures a struct field by field, so that the compiler reports a new field. A new field is hashed only if it does not have its
//! default: digests of objects without it stay the same. [`config`] does this for removals.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io::{self, BufWriter, Write},
    net::SocketAddr,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{
    CertificateFiles, ConfigFormat, Container, ContainerCheck, ContainerResources, DataRemoval, Digest, HaproxyServers,
    Liveness, Mount, OnChange, Pod, PodFile, Start, hex, sha256_hex,
};
use crate::{
    name::{ClusterId, InstallationId, PodName},
    registry::RegistryCredentials,
};

/// The digest of everything whose change requires replacing the pod: its containers, its user, and files that are read at start. Checks of containers
/// are not part of it. Servers are changed while their haproxy runs.
pub(super) fn replacement(pod: &Pod) -> String {
    let Pod { user, files, data, containers, pause_image, servers: _, start: _, hold: _, registries: _, prefetch: _ } =
        pod;
    let containers: Vec<_> = containers.iter().map(|container| HashedContainer::of(container, false)).collect();
    let restart = files.iter().filter(|file| file.on_change == OnChange::Restart);
    let restart: Vec<_> = restart.map(HashedFile::of).collect();
    hex(&digest_of(&(user, containers, data, pause_image, restart)))
}

/// The digest of everything in a pod. It contains digests in place of the contents of files, because files are most of a pod, and their bytes are
/// hashed directly.
pub(super) fn content(pod: &Pod, digests: &[String]) -> Digest {
    let Pod { user, files, data, containers, pause_image, servers, start, hold, registries, prefetch } = pod;
    let files = files.iter().zip(digests);
    let files: Vec<_> = files
        .map(|(PodFile { path, content: _, on_change }, digest)| (path, digest, name_of_change(*on_change)))
        .collect();
    let containers: Vec<_> = containers.iter().map(|container| HashedContainer::of(container, true)).collect();
    let servers = servers.as_ref().map(|HaproxyServers { options, addresses }| HashedServers { options, addresses });
    let registries: Vec<_> = registries.iter().map(hashed_registry).collect();
    let start = &*name_of_start(*start);
    if prefetch.is_empty() {
        return digest_of(&(user, files, data, containers, pause_image, servers, (start, hold, registries)));
    }
    digest_of(&(user, files, data, containers, pause_image, servers, (start, hold, registries, prefetch)))
}

/// The digest of everything in a config except its term and generation. `pods` contains the [`content`] of each pod.
pub(super) fn config(
    format: ConfigFormat,
    installation: &InstallationId,
    pods: &BTreeMap<PodName, impl AsRef<[u8]>>,
    (others, removals): (&BTreeSet<ClusterId>, &BTreeMap<PodName, DataRemoval>),
) -> String {
    let installation = installation.as_str();
    let pods: Vec<_> = pods.iter().map(|(name, digest)| (HashedName::of(name), hex(digest.as_ref()))).collect();
    let others: Vec<_> = others.iter().map(ClusterId::as_str).collect();
    if format == ConfigFormat::One || removals.is_empty() {
        return hex(&digest_of(&(installation, pods, others)));
    }
    let removals = removals.iter();
    let removals: Vec<_> = removals
        .map(|(name, DataRemoval { member, reason })| (HashedName::of(name), HashedRemoval { member, reason }))
        .collect();
    hex(&digest_of(&(installation, pods, others, removals)))
}

/// Passwords may be weak, and digests are visible. The result contains enough of the digest to detect a change, and too little to verify a guess.
fn hashed_registry<'a>(
    (image, RegistryCredentials { username, password }): (&'a String, &'a RegistryCredentials),
) -> (&'a String, &'a String, String) {
    const SHOWN: usize = 4;
    (image, username, sha256_hex(password.as_bytes()).chars().take(SHOWN).collect())
}

fn name_of_change(change: OnChange) -> &'static str {
    match change {
        OnChange::PickedUp => "PickedUp",
        OnChange::Restart => "Restart",
    }
}

fn name_of_start(start: Start) -> Cow<'static, str> {
    match start {
        Start::Always => "Always".into(),
        Start::Never => "Never".into(),
        Start::Later => "Later".into(),
        Start::OnMarkedData => "OnMarkedData".into(),
        Start::OnUsedData => "OnUsedData".into(),
        Start::Stopped => "Stopped".into(),
        Start::Copied(copy) => format!("Copied{copy}").into(),
    }
}

#[derive(Serialize)]
struct HashedName<'a> {
    cluster: &'a str,
    component: &'a str,
}

impl<'a> HashedName<'a> {
    fn of(PodName { cluster, component }: &'a PodName) -> Self {
        Self { cluster: cluster.as_str(), component: component.as_str() }
    }
}

#[derive(Serialize)]
struct HashedRemoval<'a> {
    member: &'a str,
    reason: &'a str,
}

#[derive(Serialize)]
struct HashedServers<'a> {
    options: &'a str,
    addresses: &'a BTreeMap<String, SocketAddr>,
}

#[derive(Serialize)]
struct HashedFile<'a> {
    path: &'a str,
    content: String,
    on_change: &'static str,
}

impl<'a> HashedFile<'a> {
    fn of(PodFile { path, content, on_change }: &'a PodFile) -> Self {
        Self { path, content: STANDARD.encode(content), on_change: name_of_change(*on_change) }
    }
}

#[derive(Serialize)]
struct HashedContainer<'a> {
    name: &'a str,
    image: &'a str,
    command: &'a [String],
    mounts: Vec<HashedMount<'a>>,
    resources: HashedResources,
    stop_seconds: u32,
    liveness: Option<HashedLiveness<'a>>,
}

impl<'a> HashedContainer<'a> {
    fn of(container: &'a Container, is_checked: bool) -> Self {
        let Container { name, image, command, mounts, resources, stop_seconds, liveness } = container;
        let ContainerResources { cpu_request_millis, cpu_limit_millis, memory_limit_bytes } = *resources;
        let mounts = mounts.iter().map(|Mount { source, target, read_only }| HashedMount {
            source,
            target,
            read_only: *read_only,
        });
        Self {
            name,
            image,
            command,
            mounts: mounts.collect(),
            resources: HashedResources { cpu_request_millis, cpu_limit_millis, memory_limit_bytes },
            stop_seconds: *stop_seconds,
            liveness: liveness.as_ref().filter(|_| is_checked).map(HashedLiveness::of),
        }
    }
}

#[derive(Serialize)]
struct HashedMount<'a> {
    source: &'a str,
    target: &'a str,
    read_only: bool,
}

#[derive(Serialize)]
struct HashedResources {
    cpu_request_millis: u32,
    cpu_limit_millis: Option<u32>,
    memory_limit_bytes: u64,
}

#[derive(Serialize)]
struct HashedLiveness<'a> {
    check: HashedCheck<'a>,
    period_seconds: u32,
    timeout_seconds: u32,
    failure_threshold: u32,
    startup_seconds: Option<u32>,
}

impl<'a> HashedLiveness<'a> {
    fn of(liveness: &'a Liveness) -> Self {
        let Liveness { check, period_seconds, timeout_seconds, failure_threshold, startup_seconds } = liveness;
        Self {
            check: HashedCheck::of(check),
            period_seconds: *period_seconds,
            timeout_seconds: *timeout_seconds,
            failure_threshold: *failure_threshold,
            startup_seconds: *startup_seconds,
        }
    }
}

#[derive(Serialize)]
enum HashedCheck<'a> {
    Https {
        address: SocketAddr,
        path: &'a str,
        server_name: &'a str,
        authority: &'a str,
        identity: Option<HashedCertificate<'a>>,
    },
    Http {
        address: SocketAddr,
        path: &'a str,
    },
    Socket {
        path: &'a str,
        request: &'a str,
        answer: &'a str,
    },
}

impl<'a> HashedCheck<'a> {
    fn of(check: &'a ContainerCheck) -> Self {
        match check {
            ContainerCheck::Https { address, path, server_name, authority, identity } => Self::Https {
                address: *address,
                path,
                server_name,
                authority,
                identity: identity
                    .as_ref()
                    .map(|CertificateFiles { certificate, key }| HashedCertificate { certificate, key }),
            },
            ContainerCheck::Http { address, path } => Self::Http { address: *address, path },
            ContainerCheck::Socket { path, request, answer } => Self::Socket { path, request, answer },
        }
    }
}

#[derive(Serialize)]
struct HashedCertificate<'a> {
    certificate: &'a str,
    key: &'a str,
}

/// Hashes the JSON text in pieces, so that the text of a large config is never in memory as a whole.
fn digest_of(content: &impl Serialize) -> Digest {
    const PIECE: usize = 16 << 10;
    let mut text = BufWriter::with_capacity(PIECE, Hash(Sha256::new()));
    // Serializing plain data of strings, numbers and lists cannot fail, and neither can hashing.
    let _ = serde_json::to_writer(&mut text, content).map(|()| text.flush());
    let (Hash(hash), _) = text.into_parts();
    hash.finalize().into()
}

/// A writer that hashes its input.
struct Hash(Sha256);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
