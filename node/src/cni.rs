//! Writes the cluster's CNI configuration with this worker's own pod ranges.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::{
    changes::Changes,
    files::{self, NodeFileError},
    settings::Layout,
};

/// The ConfigMap with the configuration. It is absent if the cluster uses its own ([`keelway_api::worker::CniInformation`]).
pub(crate) const CONFIG_MAP: &str = "keelway-cni";

/// The directories in which containerd looks for CNI plugins and configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directories {
    pub(crate) plugins: PathBuf,
    pub(crate) configuration: PathBuf,
}

/// The CNI configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CniError {
    #[error("{file} of the ConfigMap kube-system/{CONFIG_MAP} is not valid JSON")]
    Form {
        file: String,
        #[source]
        source: serde_json::Error,
    },
    #[error(transparent)]
    File(#[from] NodeFileError),
}

/// Returns each file with this worker's ranges. Returns no file before the worker has ranges.
fn rendered(templates: &BTreeMap<String, String>, ranges: &[IpNet]) -> Result<BTreeMap<String, String>, CniError> {
    let mut files = BTreeMap::new();
    if ranges.is_empty() {
        return Ok(files);
    }
    let ranges: Value = ranges.iter().map(|range| json!([{ "subnet": range }])).collect();
    for (file, template) in templates.iter().filter(|(file, _)| is_file(file)) {
        let mut list: Value =
            serde_json::from_str(template).map_err(|source| CniError::Form { file: file.clone(), source })?;
        let plugins = list.get_mut("plugins").and_then(Value::as_array_mut).into_iter().flatten();
        for ipam in plugins.filter_map(|plugin| plugin.get_mut("ipam")).filter(|ipam| ipam["type"] == "host-local") {
            ipam["ranges"] = ranges.clone();
        }
        files.insert(file.clone(), format!("{list:#}\n"));
    }
    Ok(files)
}

/// Whether the name is a CNI configuration file and cannot leave its directory.
fn is_file(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    !name.contains('/') && matches!(extension, Some("conflist" | "conf"))
}

/// Writes the configuration, and removes files that it wrote earlier and that the cluster no longer has.
pub(crate) fn apply(
    layout: &Layout,
    directory: &Path,
    templates: &BTreeMap<String, String>,
    ranges: &[IpNet],
) -> Result<(), CniError> {
    let wanted = rendered(templates, ranges)?;
    let is_gone = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.parent() == Some(directory) && name.is_some_and(|name| is_file(name) && !templates.contains_key(name))
    };
    for path in Changes::read(layout)?.files.iter().filter(|path| is_gone(path)) {
        files::remove(path)?;
    }
    // This happens before the worker has ranges, too, so that only the files themselves remain to be written then.
    let room: Vec<PathBuf> = templates.keys().filter(|name| is_file(name)).map(|name| directory.join(name)).collect();
    if !room.is_empty() {
        Changes::make_room(layout, room.iter().map(PathBuf::as_path))?;
    }
    for (name, content) in wanted {
        let path = directory.join(name);
        if files::update(&path, content, 0o644)? {
            tracing::info!(file = %path.display(), "wrote the CNI configuration");
        }
    }
    Ok(())
}

/// Installs plugins where containerd looks for them. An existing file of another owner with the same name stays.
pub(crate) fn install(layout: &Layout, directory: &Path) -> Result<(), NodeFileError> {
    if directory == layout.plugins() {
        return Ok(());
    }
    let ours = Changes::read(layout)?.files;
    let entries = std::fs::read_dir(layout.plugins()).map_err(NodeFileError::new("list", layout.plugins()))?;
    let plugins = entries.flatten().map(|entry| (entry.path(), directory.join(entry.file_name())));
    let plugins: Vec<(PathBuf, PathBuf)> = plugins.filter(|(_, to)| !to.exists() || ours.contains(to)).collect();
    Changes::make_room(layout, plugins.iter().map(|(_, to)| to.as_path()))?;
    // These are copies, because an administrator with plugins of the same names may write to these files.
    files::at_once(&plugins, |(from, to)| {
        let content = std::fs::read(from).map_err(NodeFileError::new("read", from))?;
        files::update(to, content, 0o755).map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_writes_its_own_ranges() {
        let template = json!({ "plugins": [
            { "type": "bridge", "ipam": { "type": "host-local", "ranges": [] } },
            { "type": "portmap" },
        ] });
        let templates = BTreeMap::from([
            ("10-keelway.conflist".to_owned(), template.to_string()),
            ("../../etc/passwd.conf".to_owned(), String::new()),
        ]);
        assert_eq!(rendered(&templates, &[]).unwrap(), BTreeMap::new());
        let ranges = ["10.244.3.0/24".parse().unwrap(), "fd01:3::/80".parse().unwrap()];
        let files = rendered(&templates, &ranges).unwrap();
        assert_eq!(files.len(), 1);
        let list: Value = serde_json::from_str(&files["10-keelway.conflist"]).unwrap();
        let found = &list["plugins"][0]["ipam"]["ranges"];
        assert_eq!(*found, json!([[{ "subnet": "10.244.3.0/24" }], [{ "subnet": "fd01:3::/80" }]]));
        assert_eq!(list["plugins"][1], json!({ "type": "portmap" }));
    }

    #[test]
    fn a_disabled_configuration_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let (layout, directory) = (Layout::new(state.path()), state.path().join("net.d"));
        let templates = BTreeMap::from([("10-keelway.conflist".to_owned(), "{}".to_owned())]);
        let ranges = ["10.244.3.0/24".parse().unwrap()];
        apply(&layout, &directory, &templates, &[]).unwrap();
        assert!(directory.exists() && !directory.join("10-keelway.conflist").exists());
        apply(&layout, &directory, &templates, &ranges).unwrap();
        assert!(directory.join("10-keelway.conflist").exists());
        apply(&layout, &directory, &BTreeMap::new(), &ranges).unwrap();
        assert!(!directory.join("10-keelway.conflist").exists());
        assert_eq!(Changes::read(&layout).unwrap().directories, [directory]);
    }
}
