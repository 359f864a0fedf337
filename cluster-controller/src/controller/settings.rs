//! The content of the files. They are read again when they change, so that neither the process nor the Lease ends.

use std::{
    fs,
    path::{Path, PathBuf},
};

use keelway_component::{
    configuration, files,
    kubeconfig::{client, files_of},
};
use keelway_tls::FilesVersion;
use kube::{Client, core::DynamicObject};

use super::{
    ANSWER, ControllerConfiguration, ControllerRunError,
    objects::{self, PublishedFiles},
};

/// The configuration, and what was built from it and from the files that it names.
pub(super) struct ControllerSettings {
    /// All files, the configuration first.
    files: Vec<PathBuf>,
    stamp: FilesVersion,
    path: PathBuf,
    pub(super) configuration: ControllerConfiguration,
    pub(super) client: Client,
    /// Definitions of kinds, which must be applied first.
    pub(super) definitions: Vec<DynamicObject>,
    /// All other objects that are kept applied in the cluster.
    pub(super) wanted: Vec<DynamicObject>,
    /// The authorities that workers trust, in PEM.
    pub(super) authorities: String,
}

impl ControllerSettings {
    /// Reads all files.
    pub(super) async fn read(path: &Path) -> Result<Self, ControllerRunError> {
        // The version of each file is determined before the file is read, so that a concurrent change leads to another read.
        let own = FilesVersion::of([path]);
        let configuration: ControllerConfiguration =
            configuration::read(path).map_err(ControllerRunError::Configuration)?;
        let mut others = files_of(&configuration.kubeconfig);
        others.push(configuration.authorities.clone());
        others.extend(configuration.registries.clone());
        let stamp = own.with(FilesVersion::of(&others));
        let published = published_files(&configuration)?;
        Ok(Self {
            files: [path.to_owned()].into_iter().chain(others).collect(),
            stamp,
            path: path.to_owned(),
            client: client(&configuration.kubeconfig, ANSWER).await.map_err(ControllerRunError::Client)?,
            definitions: objects::definitions().map_err(ControllerRunError::Objects)?,
            wanted: objects::wanted(&configuration, &published).map_err(ControllerRunError::Objects)?,
            authorities: published.authorities,
            configuration,
        })
    }

    /// Waits until the files change and can be used.
    pub(super) async fn replaced(&self) -> Self {
        files::replaced(&self.stamp, &self.files, async || Self::read(&self.path).await).await
    }
}

fn published_files(configuration: &ControllerConfiguration) -> Result<PublishedFiles, ControllerRunError> {
    let wrong = |path: &Path| {
        let path = path.to_owned();
        move |source| ControllerRunError::PublishedFile { path, source }
    };
    let authorities = &configuration.authorities;
    let registries = configuration.registries.as_ref().map(|path| fs::read(path).map_err(wrong(path)));
    Ok(PublishedFiles {
        authorities: fs::read_to_string(authorities).map_err(wrong(authorities))?,
        registries: registries.transpose()?,
    })
}
