//! Requests for deprecated APIs, from the metric of API servers
//! (<https://kubernetes.io/docs/reference/using-api/deprecation-policy/#request-metrics-for-deprecated-apis>).

use futures::{AsyncBufReadExt, TryStreamExt};
use keelway_base::error_chain::root_cause;
use keelway_planner::DeprecatedApi;

const METRIC: &str = "apiserver_requested_deprecated_apis{";

/// Returns the deprecated APIs that clients requested from an API server. The error is text for users. The response is read line by line: the metrics of an
/// API server with many kinds have some ten megabytes.
pub(super) async fn requested(server: &kube::Client) -> Result<Vec<DeprecatedApi>, String> {
    let request = http::Request::get("/metrics").body(Vec::new()).map_err(|error| error.to_string())?;
    let lines = server.request_stream(request).await.map_err(|error| root_cause(&error))?.lines();
    let found = lines.try_filter_map(|line| std::future::ready(Ok(api(&line))));
    found.try_collect().await.map_err(|error| error.to_string())
}

/// Returns the API of a line of metrics, if it is one that some release removes.
fn api(line: &str) -> Option<DeprecatedApi> {
    let (labels, value) = line.strip_prefix(METRIC)?.split_once('}')?;
    let label = |name: &str| {
        let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|(found, _)| *found == name).map(|(_, value)| value.trim_matches('"'))
    };
    let removed_in = label("removed_release")?.strip_prefix("1.")?.parse().ok()?;
    let (group, version, resource) = (label("group")?, label("version")?, label("resource")?);
    let name = [resource, version, group].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
    (value.trim() != "0").then_some(DeprecatedApi { resource: name, removed_in })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_an_api_and_the_release_that_removes_it() {
        let line = r#"apiserver_requested_deprecated_apis{group="storage.k8s.io",removed_release="1.37",resource="volumeattributesclasses",subresource="",version="v1beta1"} 1"#;
        let found =
            DeprecatedApi { resource: "volumeattributesclasses.v1beta1.storage.k8s.io".to_owned(), removed_in: 37 };
        assert_eq!(api(line), Some(found));
    }

    #[test]
    fn other_lines_name_none() {
        let stays = r#"apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1"#;
        let comment = "# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs";
        for line in [stays, comment, "", "apiserver_requested_deprecated_apis{", "process_start_time_seconds 1"] {
            assert_eq!(api(line), None, "{line}");
        }
    }
}
