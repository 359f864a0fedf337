//! The first bindings, which a pass applies to each new cluster, for a cluster that no pass created.

use std::{path::PathBuf, sync::Arc};

use keelway_api::jiff::Timestamp;
use keelway_e2e::{TestControlPlane, deadline};
use keelway_reconciler::{Components, ConnectedMachines, DialledComponents};

/// Applies the bindings as a pass does, to the current server of the cluster's API.
pub(crate) fn bind(plane: &TestControlPlane<'_>) {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Nothing runs on the machines through this, so no directory of images is needed.
    let components = DialledComponents::new(Arc::new(ConnectedMachines::new(PathBuf::new())));
    let binds = || {
        let bound = executor.block_on(components.bind(&plane.documents, plane.id(), Timestamp::now()));
        bound.inspect_err(|why| println!("the first bindings: {why}")).is_ok()
    };
    deadline::until("the first bindings", deadline::KUBERNETES, binds);
}
