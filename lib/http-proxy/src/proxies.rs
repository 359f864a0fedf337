//! Which connections use which proxy.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::net::TcpStream;

use crate::{connect::HttpProxy, settings::ProxySettings};

/// A variable of the environment does not name a proxy that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHttpProxy {
    /// The value is no URL.
    #[error("{0} is not the URL of a proxy; set it to http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, or unset it")]
    Url(&'static str),
    /// The protocol of the proxy is unknown.
    #[error("{0} names a proxy that is not reached over plain HTTP; set it to http://HOST:PORT, or unset it")]
    Protocol(&'static str),
}

/// The proxies of an environment. Without any, all connections are direct.
#[derive(Clone, Default)]
pub struct HttpProxies {
    https: Option<HttpProxy>,
    http: Option<HttpProxy>,
    no_proxy: String,
}

impl HttpProxies {
    /// Parses the settings.
    pub fn parse(settings: &ProxySettings) -> Result<Self, InvalidHttpProxy> {
        Ok(Self {
            https: parse("HTTPS_PROXY", &settings.https_proxy)?,
            http: parse("HTTP_PROXY", &settings.http_proxy)?,
            no_proxy: settings.no_proxy.clone(),
        })
    }

    /// Returns one proxy that is used for all connections.
    pub(crate) fn always(name: &'static str, url: &str) -> Result<Option<HttpProxy>, InvalidHttpProxy> {
        parse(name, url)
    }

    /// Returns the proxy for connections to the host of this URL. Connections to this machine itself are direct, as in Kubernetes' own programs.
    #[must_use]
    pub fn of(&self, url: &Uri) -> Option<&HttpProxy> {
        let proxy = if url.scheme_str() == Some("http") { &self.http } else { &self.https }.as_ref()?;
        let host = url.host()?;
        (!is_own(host) && !self.is_exempt(host)).then_some(proxy)
    }

    /// Returns the proxy for TLS connections to this address.
    #[must_use]
    pub fn of_address(&self, address: SocketAddr) -> Option<&HttpProxy> {
        let proxy = self.https.as_ref()?;
        let host = SocketAddr::new(address.ip(), 0).to_string();
        let host = host.strip_suffix(":0").unwrap_or(&host);
        (!address.ip().is_loopback() && !self.is_exempt(host)).then_some(proxy)
    }

    /// Connects to this address for TLS, through the proxy if there is one for it. The caller limits the time.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let Some(proxy) = self.of_address(address) else { return TcpStream::connect(address).await };
        proxy.connect(&address.to_string()).await.map_err(io::Error::other)
    }

    /// Whether `NO_PROXY` has this host.
    fn is_exempt(&self, host: &str) -> bool {
        let any = Matcher::builder().all("http://proxy").no(&self.no_proxy).build();
        Uri::builder()
            .scheme("https")
            .authority(host)
            .path_and_query("/")
            .build()
            .is_ok_and(|url| any.intercept(&url).is_none())
    }
}

impl fmt::Debug for HttpProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { https, http, no_proxy } = self;
        f.debug_struct("HttpProxies").field("https", https).field("http", http).field("no_proxy", no_proxy).finish()
    }
}

fn parse(name: &'static str, url: &str) -> Result<Option<HttpProxy>, InvalidHttpProxy> {
    if url.is_empty() {
        return Ok(None);
    }
    let any = Uri::from_static("https://any");
    let parsed = Matcher::builder().https(url).build().intercept(&any).ok_or(InvalidHttpProxy::Url(name))?;
    if parsed.uri().scheme_str() != Some("http") {
        return Err(InvalidHttpProxy::Protocol(name));
    }
    HttpProxy::new(parsed.uri(), parsed.basic_auth().cloned()).map(Some).ok_or(InvalidHttpProxy::Url(name))
}

/// Whether this is a name or an address of this machine itself.
fn is_own(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(no_proxy: &str) -> HttpProxies {
        HttpProxies::parse(&ProxySettings {
            https_proxy: "http://user:hid%40den@proxy.test:3128".to_owned(),
            http_proxy: "other.test:8080".to_owned(),
            no_proxy: no_proxy.to_owned(),
        })
        .unwrap()
    }

    fn chosen(no_proxy: &str, url: &str) -> String {
        proxies(no_proxy).of(&url.parse().unwrap()).map_or("direct".to_owned(), ToString::to_string)
    }

    #[test]
    fn the_scheme_and_no_proxy_decide() {
        let table = [
            ("", "https://203.0.113.7:6443", "http://proxy.test:3128"),
            ("", "http://203.0.113.7:6443", "http://other.test:8080"),
            ("", "https://localhost:6443", "direct"),
            ("", "https://127.0.0.2:6443", "direct"),
            ("", "https://[::1]:6443", "direct"),
            ("203.0.113.0/24", "https://203.0.113.7:6443", "direct"),
            ("10.0.0.1, 203.0.113.7", "https://203.0.113.7:6443", "direct"),
            ("203.0.113.8", "https://203.0.113.7:6443", "http://proxy.test:3128"),
            ("2001:db8::/32", "https://[2001:db8::7]:6443", "direct"),
            ("2001:db9::/32", "https://[2001:db8::7]:6443", "http://proxy.test:3128"),
            ("example.com", "https://api.example.com", "direct"),
            (".example.com", "https://api.EXAMPLE.com", "direct"),
            ("example.com", "https://notexample.com", "http://proxy.test:3128"),
            ("*", "https://203.0.113.7", "http://proxy.test:3128"),
            ("*", "https://api.example.com", "direct"),
            ("proxy.test", "https://203.0.113.7:6443", "http://proxy.test:3128"),
        ];
        for (no_proxy, url, expected) in table {
            assert_eq!(chosen(no_proxy, url), expected, "NO_PROXY={no_proxy} {url}");
        }
    }

    #[test]
    fn an_address_is_decided_as_its_url() {
        for address in ["203.0.113.7:6443", "[2001:db8::7]:6443", "127.0.0.1:6443", "[::1]:6443"] {
            for no_proxy in ["", "203.0.113.0/24", "2001:db8::7"] {
                let of_url = chosen(no_proxy, &format!("https://{address}"));
                let proxies = proxies(no_proxy);
                let of_address = proxies.of_address(address.parse().unwrap());
                assert_eq!(of_address.map_or("direct".to_owned(), ToString::to_string), of_url, "{no_proxy} {address}");
            }
        }
    }

    #[test]
    fn an_unusable_proxy_is_refused_without_its_text() {
        let table = [
            ("http://user:hidden@", InvalidHttpProxy::Url("HTTPS_PROXY")),
            ("http:// hidden", InvalidHttpProxy::Url("HTTPS_PROXY")),
            ("ftp://hidden", InvalidHttpProxy::Url("HTTPS_PROXY")),
            ("https://user:hidden@proxy.test", InvalidHttpProxy::Protocol("HTTPS_PROXY")),
            ("socks5://hidden:1080", InvalidHttpProxy::Protocol("HTTPS_PROXY")),
        ];
        for (url, expected) in table {
            let settings = ProxySettings { https_proxy: url.to_owned(), ..ProxySettings::default() };
            let refused = HttpProxies::parse(&settings).unwrap_err();
            assert_eq!(refused, expected, "{url}");
            assert!(!refused.to_string().contains("hidden"));
        }
        assert!(!format!("{:?}", proxies("")).contains("hid"));
    }
}
