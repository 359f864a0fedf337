//! The HTTP proxy of a worker, which its settings keep from the environment of a join.

use keelway_http_proxy::{HttpProxies, InvalidHttpProxy, ProxySettings};

use crate::{
    files::NodeFileError,
    settings::{Layout, NodeOptions},
};

/// Returns the proxy of an environment. `None` if it has no variable for one: a further join then keeps the proxy. An empty variable removes it.
#[must_use]
pub fn proxy_of_environment(variable: impl Fn(&str) -> Option<String>) -> Option<ProxySettings> {
    let is_set = ["HTTPS_PROXY", "https_proxy"].into_iter().any(|name| variable(name).is_some());
    // A worker has no connections without TLS.
    is_set.then(|| ProxySettings { http_proxy: String::new(), ..ProxySettings::from_variables(variable) })
}

impl NodeOptions {
    /// Returns the proxies of the worker's connections to its cluster.
    pub(crate) fn proxies(&self) -> Result<HttpProxies, InvalidHttpProxy> {
        self.proxy.as_ref().map_or_else(|| Ok(HttpProxies::default()), HttpProxies::parse)
    }

    /// Keeps the proxy of an earlier join, if the environment of this one has no variable for it.
    pub(crate) fn keep_proxy(&mut self, layout: &Layout) -> Result<(), NodeFileError> {
        if self.proxy.is_none() {
            self.proxy = layout.read_options()?.and_then(|before| before.proxy);
        }
        self.proxy.take_if(|proxy| proxy.https_proxy.is_empty());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{files, samples::options};

    fn of(variables: &[(&str, &str)]) -> Option<ProxySettings> {
        proxy_of_environment(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    /// Joins twice, and returns the proxy that the worker then has.
    fn after(first: &[(&str, &str)], second: &[(&str, &str)]) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let join = |variables| {
            let mut joined = NodeOptions { proxy: of(variables), ..options() };
            joined.keep_proxy(&layout).unwrap();
            files::write_json(&layout.options(), &joined).unwrap();
        };
        join(first);
        join(second);
        let options = layout.read_options().unwrap().unwrap();
        let proxies = options.proxies().unwrap();
        proxies.of_address("203.0.113.7:6443".parse().unwrap()).map(ToString::to_string)
    }

    #[test]
    fn a_join_without_the_variables_keeps_the_proxy_and_an_empty_one_removes_it() {
        let first = [("HTTPS_PROXY", "http://user:secret@a.test:1"), ("HTTP_PROXY", "http://b.test:2")];
        assert_eq!(after(&first, &[]).as_deref(), Some("http://a.test:1"));
        assert_eq!(after(&first, &[("NO_PROXY", "*")]).as_deref(), Some("http://a.test:1"));
        assert_eq!(after(&first, &[("https_proxy", "http://c.test:3")]).as_deref(), Some("http://c.test:3"));
        assert_eq!(after(&first, &[("HTTPS_PROXY", "http://c.test:3"), ("NO_PROXY", "203.0.113.0/24")]), None);
        assert_eq!(after(&first, &[("HTTPS_PROXY", "")]), None);
        assert_eq!(after(&[("HTTP_PROXY", "http://b.test:2")], &[]), None);
    }

    #[test]
    fn debug_output_of_the_options_has_no_credentials() {
        let joined = NodeOptions { proxy: of(&[("HTTPS_PROXY", "http://user:secret@a.test:1")]), ..options() };
        assert!(!format!("{joined:?}").contains("secret"));
        assert!(serde_json::to_string(&joined).unwrap().contains("secret"), "the daemon needs them");
    }
}
