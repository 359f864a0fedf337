//! Where documents are, and where they move to.

use std::path::{Path, PathBuf};

/// A store.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum PivotStoreArgument {
    /// stdin, or stdout.
    Stream,
    /// A directory.
    Directory(PathBuf),
    /// A management cluster, by a kubeconfig: else that which kubectl would use.
    Kubernetes(Option<PathBuf>),
}

pub(crate) fn parse_store(text: &str) -> Result<PivotStoreArgument, String> {
    let help = || "must be dir:PATH, kubernetes, kubernetes:KUBECONFIG, or -".to_owned();
    // A move that is begun again elsewhere names the same store.
    let absolute = |path: &str| std::path::absolute(Path::new(path)).map_err(|error| error.to_string());
    match text.split_once(':') {
        None if text == "-" => Ok(PivotStoreArgument::Stream),
        None if text == "kubernetes" => Ok(PivotStoreArgument::Kubernetes(None)),
        Some(("dir", path)) if !path.is_empty() => Ok(PivotStoreArgument::Directory(absolute(path)?)),
        Some(("kubernetes", path)) if !path.is_empty() => Ok(PivotStoreArgument::Kubernetes(Some(absolute(path)?))),
        _ => Err(help()),
    }
}
