//! Where documents are, and where they move to.

use std::path::{Path, PathBuf};

use clap::Args;

#[derive(Args)]
pub(crate) struct PivotArguments {
    /// Where the documents are: dir:PATH, kubernetes[:KUBECONFIG], or - for stdin
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = end)]
    pub(crate) from: EndArgument,
    /// Where they go: dir:PATH, kubernetes[:KUBECONFIG], or - for stdout
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = end)]
    pub(crate) to: EndArgument,
    /// The namespace that Keelway's managers are in, in a management cluster
    #[arg(long, value_name = "NAMESPACE", default_value = "keelway-system")]
    pub(crate) namespace: String,
}

#[derive(Args)]
pub(crate) struct RecoverArguments {
    /// Where the documents are: dir:PATH, kubernetes[:KUBECONFIG], or - for stdin, with the recovered ones on stdout
    #[arg(long, value_name = "STORE", default_value = "-", value_parser = end)]
    pub(crate) from: EndArgument,
    /// Report what differs and change nothing; no documents are written
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The namespace that Keelway's managers are in, in a management cluster
    #[arg(long, value_name = "NAMESPACE", default_value = "keelway-system")]
    pub(crate) namespace: String,
}

/// A store.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum EndArgument {
    /// stdin, or stdout.
    Stream,
    /// A directory.
    Directory(PathBuf),
    /// A management cluster, by a kubeconfig: else that which kubectl would use.
    Kubernetes(Option<PathBuf>),
}

fn end(text: &str) -> Result<EndArgument, String> {
    let mend = || "write dir:PATH, kubernetes, kubernetes:KUBECONFIG, or -".to_owned();
    // A move that is begun again elsewhere names the same store.
    let absolute = |path: &str| std::path::absolute(Path::new(path)).map_err(|error| error.to_string());
    match text.split_once(':') {
        None if text == "-" => Ok(EndArgument::Stream),
        None if text == "kubernetes" => Ok(EndArgument::Kubernetes(None)),
        Some(("dir", path)) if !path.is_empty() => Ok(EndArgument::Directory(absolute(path)?)),
        Some(("kubernetes", path)) if !path.is_empty() => Ok(EndArgument::Kubernetes(Some(absolute(path)?))),
        _ => Err(mend()),
    }
}
