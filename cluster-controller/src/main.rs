//! `keelway-cluster-controller`: the programs that stand between a control plane and its workers.

use clap::Parser;

/// The programs that stand between a control plane and its workers.
#[derive(Debug, Parser)]
#[command(name = "keelway-cluster-controller", version)]
struct Arguments {}

fn main() {
    Arguments::parse();
}
