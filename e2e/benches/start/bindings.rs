//! The first bindings, which a pass gives to each new cluster, for one that no pass made.

use std::{path::PathBuf, sync::Arc};

use keelway_api::jiff::Timestamp;
use keelway_e2e::{TestControlPlane, deadline};
use keelway_reconciler::{Components, ConnectedMachines, DialledComponents};

/// Applies them as the pass does, to whatever serves the cluster's API now.
pub(crate) fn bind(plane: &TestControlPlane<'_>) {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Nothing is run on the machines, so that no image is looked for.
    let components = DialledComponents::new(Arc::new(ConnectedMachines::new(PathBuf::new())));
    let binds = || {
        let bound = executor.block_on(components.bind(&plane.documents, plane.id(), Timestamp::now()));
        bound.inspect_err(|why| println!("the first bindings: {why}")).is_ok()
    };
    deadline::until("the first bindings", deadline::KUBERNETES, binds);
}
