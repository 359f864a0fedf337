//! The images of the supported minor versions of Kubernetes before the newest.

use super::{ImageDefinition, Product, ProductSet, images_of, release};
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
    images.into_iter().map(Product::Image).collect()
}
