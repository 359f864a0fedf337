//! The images of the supported minor versions of Kubernetes before the newest, and the kubeadm that upgrades are compared with.

use super::{ImageDefinition, Product, ProductSet, images_of, kubeadm, release};
use crate::release::MINORS;

pub(super) fn products() -> Vec<Product> {
    let mut images: Vec<ImageDefinition> = Vec::new();
    for row in MINORS.iter().filter(|row| row.minor < release().row.minor) {
        for image in images_of(row.newest_tested()) {
            // Neighbouring minor versions have the same sandbox image, which the standard set can have, too.
            let is_known = image.reference == release().pause_image(None)
                || images.iter().any(|known| known.reference == image.reference);
            if !is_known {
                images.push(ImageDefinition { set: ProductSet::EarlierMinors, ..image });
            }
        }
    }
    // kubeadm creates a cluster of its own minor version, and upgrades one of the minor version before.
    let [.., previous, newest] = &MINORS;
    let kubeadms = [previous, newest].map(|row| kubeadm(row.newest_tested()));
    images.into_iter().chain(kubeadms).map(Product::Image).collect()
}
