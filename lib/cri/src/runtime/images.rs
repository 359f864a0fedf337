use k8s_cri::v1;
use tokio::io::AsyncRead;

use super::{CriRuntime, gone_is_fine, within};
use crate::{CriError, CriImage, Operation, images, wire};

/// Credentials for a registry.
#[derive(Clone, Copy)]
pub struct Login<'a> {
    /// The user name.
    pub username: &'a str,
    /// The password or token of the user.
    pub password: &'a str,
}

impl CriRuntime {
    /// Returns all images on the machine, in the order of their ids.
    pub async fn list_images(&self) -> Result<Vec<CriImage>, CriError> {
        let request = v1::ListImagesRequest { filter: None };
        let answer = self.query("ListImages", "", self.image_service().list_images(request)).await?;
        let mut images: Vec<CriImage> = answer.images.into_iter().map(Into::into).collect();
        images.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(images)
    }

    /// Returns an image by name, digest or id, or `None` if it is not on the machine.
    pub async fn image_status(&self, image: &str) -> Result<Option<CriImage>, CriError> {
        let request = v1::ImageStatusRequest { image: Some(wire::image_spec(image)), verbose: false };
        let answer = self.query("ImageStatus", image, self.image_service().image_status(request)).await?;
        Ok(answer.image.map(Into::into))
    }

    /// Pulls an image from its registry, with `login` if the registry needs credentials. Returns the image's id or digest.
    pub async fn pull_image(&self, image: &str, login: Option<Login<'_>>) -> Result<String, CriError> {
        let auth = login.map(|login| v1::AuthConfig {
            username: login.username.to_owned(),
            password: login.password.to_owned(),
            ..Default::default()
        });
        let request = v1::PullImageRequest { image: Some(wire::image_spec(image)), auth, ..Default::default() };
        let operation = Operation::new("PullImage", image);
        let mut service = self.image_service();
        let call = within(self.deadlines.image, operation, Box::pin(service.pull_image(request)));
        Ok(call.await?.image_ref)
    }

    /// Removes an image with all of its names. `image` is one of the names, or the id. The runtime removes the image even if a container uses it.
    /// Succeeds if the image is gone.
    pub async fn remove_image(&self, image: &str) -> Result<(), CriError> {
        let request = v1::RemoveImageRequest { image: Some(wire::image_spec(image)) };
        let answer = self.change("RemoveImage", image, self.image_service().remove_image(request)).await;
        gone_is_fine(answer).map(|_| ())
    }

    /// Imports an image archive into containerd: a tar of `docker save` or of an OCI layout, plain or compressed. Returns the names of its images
    /// once CRI lists them. See [`images::import`].
    pub async fn import_images<R>(&self, archive: R) -> Result<Vec<String>, CriError>
    where
        R: AsyncRead + Unpin,
    {
        images::import(self, archive, self.deadlines.image).await
    }
}
