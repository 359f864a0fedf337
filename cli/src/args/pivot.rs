//! Where documents are, and where they move to.

use std::path::{Path, PathBuf};

use clap::Args;

#[derive(Args)]
pub(crate) struct PivotArguments {
    /// The source of the documents: dir:PATH, kubernetes[:KUBECONFIG], or - for stdin
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = end)]
    pub(crate) from: PivotStoreArgument,
    /// The destination of the documents: dir:PATH, kubernetes[:KUBECONFIG], or - for stdout
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = end)]
    pub(crate) to: PivotStoreArgument,
    /// The namespace of Keelway's managers in a management cluster
    #[arg(long, value_name = "NAMESPACE", default_value = "keelway-system")]
    pub(crate) namespace: String,
}

#[derive(Args)]
pub(crate) struct RecoverArguments {
    /// The store of the documents: dir:PATH, kubernetes[:KUBECONFIG], or - for stdin and stdout
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = end)]
    pub(crate) from: PivotStoreArgument,
    /// Report the differences without changing or writing documents
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The namespace of Keelway's managers in a management cluster
    #[arg(long, value_name = "NAMESPACE", default_value = "keelway-system")]
    pub(crate) namespace: String,
}

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

fn end(text: &str) -> Result<PivotStoreArgument, String> {
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
