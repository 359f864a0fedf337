//! The variables of an environment that name proxies.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The values of the variables. They may contain credentials: store them only where no other user can read them.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxySettings {
    /// The proxy of connections with TLS.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub https_proxy: String,
    /// The proxy of connections without TLS.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub http_proxy: String,
    /// The hosts that need no proxy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub no_proxy: String,
}

impl ProxySettings {
    /// Reads the settings. `variable` returns the value of a variable of the environment. As in Kubernetes' own programs, the upper-case name is
    /// preferred.
    #[must_use]
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let value = |names: [&str; 2]| {
            let mut values = names.into_iter().filter_map(&variable).map(|value| value.trim().to_owned());
            values.find(|value| !value.is_empty()).unwrap_or_default()
        };
        Self {
            https_proxy: value(["HTTPS_PROXY", "https_proxy"]),
            http_proxy: value(["HTTP_PROXY", "http_proxy"]),
            no_proxy: value(["NO_PROXY", "no_proxy"]),
        }
    }

    /// Reads the settings from the environment of this process.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }
}

impl fmt::Debug for ProxySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxySettings").field("no_proxy", &self.no_proxy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> ProxySettings {
        ProxySettings::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn both_cases_are_read_and_the_upper_case_is_preferred() {
        let lower = of(&[("https_proxy", "http://a:1"), ("http_proxy", "http://b:2"), ("no_proxy", "c")]);
        let [of_https, of_http, none] = ["http://a:1", "http://b:2", "c"].map(str::to_owned);
        assert_eq!(lower, ProxySettings { https_proxy: of_https, http_proxy: of_http, no_proxy: none });
        assert_eq!(of(&[("HTTPS_PROXY", "http://a:1"), ("https_proxy", "http://b:2")]).https_proxy, "http://a:1");
        assert_eq!(of(&[("HTTPS_PROXY", ""), ("https_proxy", "http://b:2")]).https_proxy, "http://b:2");
    }

    #[test]
    fn debug_output_has_no_credentials() {
        let settings = of(&[("HTTPS_PROXY", "http://user:hidden@a:1"), ("HTTP_PROXY", "http://user:hidden@a:1")]);
        assert!(!format!("{settings:?}").contains("hidden"));
    }
}
