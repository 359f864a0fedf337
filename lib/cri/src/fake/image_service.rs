use k8s_cri::v1::{self, image_service_server::ImageService};
use tonic::{Request, Response, Status};

use super::{Fake, change::caller};

#[tonic::async_trait]
impl ImageService for Fake {
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        self.record_query("ListImages", "");
        let filter = request.into_inner().filter.unwrap_or_default();
        let wanted = filter.image.unwrap_or_default().image;
        let state = self.state();
        let images = if wanted.is_empty() {
            state.images.values().cloned().collect()
        } else {
            state.image(&wanted).cloned().into_iter().collect()
        };
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let name = request.into_inner().image.unwrap_or_default().image;
        let image = self.state().image(&name).cloned();
        self.record_query("ImageStatus", name);
        Ok(Response::new(v1::ImageStatusResponse { image, ..Default::default() }))
    }

    /// Pulls an image that is on the machine, or in the registry that tests fill.
    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        let caller = caller(&request);
        let name = request.into_inner().image.unwrap_or_default().image;
        self.change("PullImage", name.clone(), caller, async {
            let image_ref = self
                .state()
                .pull(&name)
                .ok_or_else(|| Status::not_found(format!("failed to pull and unpack image {name:?}: not found")))?;
            Ok(v1::PullImageResponse { image_ref })
        })
        .await
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let caller = caller(&request);
        let name = request.into_inner().image.unwrap_or_default().image;
        self.change("RemoveImage", name.clone(), caller, async {
            self.state().remove_image(&name);
            Ok(v1::RemoveImageResponse {})
        })
        .await
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        Err(Status::unimplemented("image_fs_info"))
    }
}
