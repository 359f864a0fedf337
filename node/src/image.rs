//! Kubelet and CNI plugins, from an image in containerd.
//!
//! containerd has unpacked the image into a snapshot, whatever the compression of its layers. If the image has one layer, the snapshot is a
//! directory, and its programs are hard-linked. Otherwise a view of the snapshot is mounted, copied from, and removed. No container is needed.

mod containerd_config;
mod programs;
mod pulled;
mod snapshot_mount;

use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use containerd_client::{
    services::v1::{
        CreateRequest, DeleteImageRequest, DeleteRequest, GetImageRequest, Image, ListContainersRequest,
        ListImagesRequest, ReadContentRequest,
        containers_client::ContainersClient,
        content_client::ContentClient,
        images_client::ImagesClient,
        leases_client::LeasesClient,
        snapshots::{RemoveSnapshotRequest, ViewSnapshotRequest, snapshots_client::SnapshotsClient},
    },
    types::Mount,
};
use futures::TryStreamExt;
use k8s_cri::v1::{StatusRequest, runtime_service_client::RuntimeServiceClient};
use keelway_api::image_override::reported_name;
use keelway_cri::CriRuntime;
use rustix::mount::{UnmountFlags, unmount};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tonic::{Code, Request, Status, metadata::MetadataValue, transport::Channel};

use crate::{
    changes::Changes,
    cni::Directories,
    facts,
    files::{self, NodeFileError},
    registry_config::{RegistryConfig, RegistryConfigError},
    settings::{Layout, NodeOptions},
};
use containerd_config::ContainerdConfig;
use programs::InstallMethod;
pub(crate) use pulled::records;
use pulled::{ImageOrigins, digest_of};
use snapshot_mount::mount_at;

/// The containerd namespace that CRI uses.
const NAMESPACE: &str = "k8s.io";
/// The snapshotter that is assumed if containerd does not report one.
const SNAPSHOTTER: &str = "overlayfs";
/// How long reading the image may take. After that, containerd removes the view by itself.
const LEASE: Duration = Duration::from_secs(600);
/// The name of view and lease.
const VIEW: &str = "keelway-node";

/// The programs cannot be installed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The runtime failed.
    #[error("cannot pull the image {image}")]
    Runtime {
        /// The name of the image.
        image: String,
        /// The error of the runtime.
        #[source]
        source: keelway_cri::CriError,
    },
    /// A request to containerd's own API failed.
    #[error("containerd cannot read the image {image}")]
    Containerd {
        /// The name of the image.
        image: String,
        /// The status that containerd returned.
        #[source]
        source: Box<Status>,
    },
    /// The image does not have the expected content.
    #[error("the image {image} has no {what}")]
    Form {
        /// The name of the image.
        image: String,
        /// The part that is missing.
        what: &'static str,
    },
    /// The view cannot be mounted.
    #[error("cannot mount the image {image}")]
    Mount {
        /// The name of the image.
        image: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The stored credentials cannot be used.
    #[error(transparent)]
    Registry(#[from] RegistryConfigError),
}

/// Settings of containerd.
pub(crate) struct ContainerdSettings {
    /// `None` if containerd does not report it.
    snapshotter: Option<String>,
    /// The image of sandboxes. `None` if containerd does not report it.
    sandbox_image: Option<String>,
    cni: Directories,
}

impl ContainerdSettings {
    /// Adds what containerd 2 does not report, from its configuration.
    pub(crate) async fn completed(self, socket: &Path) -> Self {
        if self.snapshotter.is_some() && self.sandbox_image.is_some() {
            return self;
        }
        let config = ContainerdConfig::of_socket(socket).await;
        Self {
            snapshotter: self.snapshotter.or(config.snapshotter),
            sandbox_image: self.sandbox_image.or(config.sandbox_image),
            cni: self.cni,
        }
    }

    /// Returns the image of sandboxes, if it is known.
    pub(crate) fn sandbox_image(&self) -> Option<&str> {
        self.sandbox_image.as_deref()
    }

    /// Returns the CNI directories: those of the options, or else those of containerd.
    pub(crate) fn directories(self, options: &NodeOptions) -> Directories {
        Directories {
            plugins: options.cni_bin_dir.clone().unwrap_or(self.cni.plugins),
            configuration: options.cni_conf_dir.clone().unwrap_or(self.cni.configuration),
        }
    }
}

/// Reads what containerd reports in its verbose status.
pub(crate) async fn settings(runtime: &CriRuntime) -> ContainerdSettings {
    let mut client = RuntimeServiceClient::new(runtime.channel());
    let answer = client.status(StatusRequest { verbose: true }).await.map(|answer| answer.into_inner().info);
    let config = answer.ok().and_then(|info| serde_json::from_str::<Value>(info.get("config")?).ok());
    settings_of(&config.unwrap_or_default())
}

fn settings_of(config: &Value) -> ContainerdSettings {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let cni = &config["cni"];
    let plugins = text(&cni["binDirs"][0]).or_else(|| text(&cni["binDir"]));
    ContainerdSettings {
        sandbox_image: text(&config["sandboxImage"]),
        snapshotter: text(&config["containerd"]["snapshotter"]),
        cni: Directories {
            plugins: plugins.unwrap_or_else(|| "/opt/cni/bin".to_owned()).into(),
            configuration: text(&cni["confDir"]).unwrap_or_else(|| "/etc/cni/net.d".to_owned()).into(),
        },
    }
}

/// Ensures that the worker's directory contains the programs of this image. If it installed them, it returns the view that it read them
/// from, which the caller must remove.
pub(crate) async fn ensure(
    layout: &Layout,
    runtime: &CriRuntime,
    settings: &ContainerdSettings,
    image: &str,
) -> Result<Option<ImageSnapshot>, ImageError> {
    if files::read(&layout.programs_of())?.as_deref() == Some(image) {
        return Ok(None);
    }
    pull(layout, runtime, image).await?;
    take(layout, runtime, settings, image).await.map(Some)
}

/// Pulls the image if containerd does not have it, and records that.
pub(crate) async fn pull(layout: &Layout, runtime: &CriRuntime, image: &str) -> Result<(), ImageError> {
    let wrong = |source| ImageError::Runtime { image: image.to_owned(), source };
    let credentials = RegistryConfig::load(layout)?;
    if runtime.image_status(image).await.map_err(wrong)?.is_none() {
        Changes::note(layout, |changes| changes.pulled.extend([reported_name(image).into_owned()]))?;
        let login = credentials.as_ref().and_then(|credentials| credentials.login(image));
        runtime.pull_image(image, login).await.map_err(wrong)?;
    }
    Ok(())
}

/// Installs the programs of an image that containerd has. Returns the view that it read them from, which the caller must remove.
pub(crate) async fn take(
    layout: &Layout,
    runtime: &CriRuntime,
    settings: &ContainerdSettings,
    image: &str,
) -> Result<ImageSnapshot, ImageError> {
    let view = ImageSnapshot::of(layout, runtime, settings, image);
    match view.take().await {
        Ok(()) => Ok(view),
        Err(error) => {
            view.remove().await;
            Err(error)
        }
    }
}

/// A view of an image's snapshot in containerd.
pub(crate) struct ImageSnapshot {
    layout: Layout,
    image: String,
    channel: Channel,
    snapshotter: String,
}

impl ImageSnapshot {
    fn of(layout: &Layout, runtime: &CriRuntime, settings: &ContainerdSettings, image: &str) -> Self {
        Self {
            layout: layout.clone(),
            image: image.to_owned(),
            channel: runtime.channel(),
            snapshotter: settings.snapshotter.clone().unwrap_or_else(|| SNAPSHOTTER.to_owned()),
        }
    }

    async fn take(&self) -> Result<(), ImageError> {
        let parent = self.chain().await?;
        clear_mount(&self.layout);
        tracing::debug!(action = "view of the image", "begins");
        let mounts = self.show(&parent).await.map_err(|status| self.failed(status))?;
        tracing::debug!(action = "view of the image", "done");
        tracing::debug!(action = "programs", "begins");
        let is_linked = match programs::directory(&mounts) {
            Some(directory) => self.install_from(directory, InstallMethod::Link).await?,
            None => false,
        };
        if !is_linked {
            self.copy(&mounts).await?;
        }
        tracing::debug!(action = "programs", "done");
        Ok(())
    }

    async fn copy(&self, mounts: &[Mount]) -> Result<(), ImageError> {
        let target = self.layout.mount();
        files::make_dir(&target, 0o700)?;
        for each in mounts {
            mount_at(each, &target).map_err(|source| ImageError::Mount { image: self.image.clone(), source })?;
        }
        let copied = self.install_from(&target, InstallMethod::Copy).await;
        clear_mount(&self.layout);
        copied.map(drop)
    }

    /// Installs the programs from a directory. Returns `false` if this method does not work there.
    async fn install_from(&self, from: &Path, way: InstallMethod) -> Result<bool, ImageError> {
        let (layout, image, from) = (self.layout.clone(), self.image.clone(), from.to_owned());
        let filled = tokio::task::spawn_blocking(move || programs::install(&layout, &image, &from, way)).await;
        filled.map_err(io::Error::from).map_err(NodeFileError::new("fill", self.layout.programs()))?
    }

    /// Creates a view of the snapshot with all layers, and returns how to mount it.
    async fn show(&self, parent: &str) -> Result<Vec<Mount>, Status> {
        match self.try_to_show(parent).await {
            // An interrupted join left a view.
            Err(status) if status.code() == Code::AlreadyExists => {
                self.remove().await;
                self.try_to_show(parent).await
            }
            shown => shown,
        }
    }

    async fn try_to_show(&self, parent: &str) -> Result<Vec<Mount>, Status> {
        self.lease().await?;
        let request = ViewSnapshotRequest {
            snapshotter: self.snapshotter.clone(),
            key: VIEW.to_owned(),
            parent: parent.to_owned(),
            ..ViewSnapshotRequest::default()
        };
        let mut request = in_namespace(request);
        request.metadata_mut().insert("containerd-lease", MetadataValue::from_static(VIEW));
        let view = SnapshotsClient::new(self.channel.clone()).view(request).await?;
        Ok(view.into_inner().mounts)
    }

    /// Returns the name of the snapshot with all layers: a digest of their digests (the OCI image specification, "Layer ChainID").
    async fn chain(&self) -> Result<String, ImageError> {
        let lacks = |what| ImageError::Form { image: self.image.clone(), what };
        let request = in_namespace(GetImageRequest { name: reported_name(&self.image).into_owned() });
        let record = ImagesClient::new(self.channel.clone()).get(request).await;
        let target = record.map_err(|status| self.failed(status))?.into_inner().image.and_then(|image| image.target);
        let mut document = self.json(&target.ok_or_else(|| lacks("content"))?.digest).await?;
        if let Some(manifests) = document["manifests"].as_array() {
            let digest = manifests.iter().find(|manifest| is_ours(&manifest["platform"])).or_else(|| manifests.first());
            let digest = digest.and_then(|manifest| manifest["digest"].as_str()).ok_or_else(|| lacks("manifest"))?;
            let digest = digest.to_owned();
            document = self.json(&digest).await?;
        }
        let config = document["config"]["digest"].as_str().ok_or_else(|| lacks("configuration"))?;
        let config = self.json(config).await?;
        let layers = config["rootfs"]["diff_ids"].as_array().into_iter().flatten().filter_map(Value::as_str);
        chain_of(layers).ok_or_else(|| lacks("layers"))
    }

    async fn json(&self, digest: &str) -> Result<Value, ImageError> {
        let request = in_namespace(ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 });
        let read = async {
            let answers = ContentClient::new(self.channel.clone()).read(request).await?.into_inner();
            answers
                .try_fold(Vec::new(), |mut all, part| async move {
                    all.extend(part.data);
                    Ok(all)
                })
                .await
        };
        let bytes = read.await.map_err(|status| self.failed(status))?;
        let form = |_| ImageError::Form { image: self.image.clone(), what: "valid JSON manifest" };
        serde_json::from_slice(&bytes).map_err(form)
    }

    /// Creates a lease that keeps the view. It expires by itself if this process does not remove the view.
    async fn lease(&self) -> Result<(), Status> {
        let end = prost_time(SystemTime::now() + LEASE);
        let labels = [("containerd.io/gc.expire".to_owned(), end)].into();
        let request = in_namespace(CreateRequest { id: VIEW.to_owned(), labels });
        LeasesClient::new(self.channel.clone()).create(request).await.map(drop)
    }

    /// Removes the view, the mount and the lease, also those of an interrupted join.
    pub(crate) async fn remove(&self) {
        clear_mount(&self.layout);
        let request = RemoveSnapshotRequest { snapshotter: self.snapshotter.clone(), key: VIEW.to_owned() };
        let (mut snapshots, mut leases) =
            (SnapshotsClient::new(self.channel.clone()), LeasesClient::new(self.channel.clone()));
        let view = snapshots.remove(in_namespace(request));
        let lease = leases.delete(in_namespace(DeleteRequest { id: VIEW.to_owned(), sync: false }));
        let (view, lease) = tokio::join!(view, lease);
        for status in [view.map(drop), lease.map(drop)]
            .into_iter()
            .filter_map(Result::err)
            .filter(|status| status.code() != Code::NotFound)
        {
            tracing::debug!(%status, "cannot remove the view of the image; it expires by itself");
        }
    }

    fn failed(&self, status: Status) -> ImageError {
        ImageError::Containerd { image: self.image.clone(), source: Box::new(status) }
    }
}

fn prost_time(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::MAX);
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn is_ours(platform: &Value) -> bool {
    platform["os"] == "linux" && platform["architecture"] == facts::architecture()
}

fn chain_of<'a>(mut layers: impl Iterator<Item = &'a str>) -> Option<String> {
    let first = layers.next()?.to_owned();
    Some(layers.fold(first, |chain, layer| {
        let digest = Sha256::digest(format!("{chain} {layer}"));
        digest.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
    }))
}

/// Removes the mount of this join or an interrupted one.
pub(crate) fn clear_mount(layout: &Layout) {
    let target = layout.mount();
    while unmount(&target, UnmountFlags::DETACH).is_ok() {}
    if let Err(error) = files::gone(fs::remove_dir(&target)) {
        tracing::debug!(%error, "cannot unmount the image");
    }
}

fn in_namespace<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}

/// Removes what an interrupted join left in containerd while it read the image.
pub(crate) async fn clear(layout: &Layout, runtime: &CriRuntime, socket: &Path) {
    let settings = settings(runtime).await.completed(socket).await;
    ImageSnapshot::of(layout, runtime, &settings, "").remove().await;
}

/// Returns the digests of all images that containerd has.
pub(crate) async fn digests(runtime: &CriRuntime) -> Result<BTreeSet<String>, Status> {
    Ok(images(runtime).await?.into_iter().map(|image| digest_of(&image)).collect())
}

/// Removes the images that were pulled for the worker, unless they were there `before` or a container uses them. Returns the names of other images
/// that were added since.
pub(crate) async fn remove_pulled(
    runtime: &CriRuntime,
    before: &BTreeSet<String>,
    pulled: BTreeSet<String>,
) -> Result<Vec<String>, Status> {
    let all = images(runtime).await?;
    let mut containers = ContainersClient::new(runtime.channel());
    let containers = containers.list(in_namespace(ListContainersRequest::default())).await?.into_inner();
    let used = containers.containers.into_iter().map(|container| container.image).collect();
    let (removed, stay) = ImageOrigins { before: before.clone(), pulled, used, all: &all }.removals();
    let last = removed.len().saturating_sub(1);
    let mut images = ImagesClient::new(runtime.channel());
    for (at, name) in removed.into_iter().enumerate() {
        // The deletion of the last image returns only after containerd has collected the unused content.
        let request = DeleteImageRequest { name, sync: at == last, ..DeleteImageRequest::default() };
        match images.delete(in_namespace(request)).await {
            Err(status) if status.code() != Code::NotFound => return Err(status),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(stay)
}

async fn images(runtime: &CriRuntime) -> Result<Vec<Image>, Status> {
    let answer = ImagesClient::new(runtime.channel()).list(in_namespace(ListImagesRequest::default())).await?;
    Ok(answer.into_inner().images)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_one_layer_is_that_layer() {
        assert_eq!(chain_of(["sha256:aa"].into_iter()).as_deref(), Some("sha256:aa"));
        assert_eq!(chain_of([].into_iter()), None);
        let two = chain_of(["sha256:aa", "sha256:bb"].into_iter()).unwrap();
        assert!(two.starts_with("sha256:") && two.len() == 71, "{two}");
    }

    #[test]
    fn both_forms_of_containerds_settings_are_read() {
        let settings = settings_of(&serde_json::json!({"cni": {"binDirs": ["/a"], "confDir": "/b"}}));
        assert_eq!(
            (settings.cni.plugins.as_path(), settings.cni.configuration.as_path()),
            (Path::new("/a"), Path::new("/b"))
        );
        let old = serde_json::json!({"cni": {"binDir": "/c"}, "containerd": {"snapshotter": "native"}});
        let settings = settings_of(&old);
        assert_eq!(
            (settings.cni.plugins.as_path(), settings.snapshotter.as_deref()),
            (Path::new("/c"), Some("native"))
        );
        assert_eq!(settings.cni.configuration, Path::new("/etc/cni/net.d"));
    }
}
