//! The client's address: the peer's, unless the peer is a proxy that the operator trusts.

use actix_web::HttpRequest;
use ipnet::IpNet;
use std::net::IpAddr;

/// Proxies whose `X-Forwarded-For` is believed.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// From settings: CIDR, or a bare address.
    ///
    /// # Errors
    /// The entry that is neither.
    pub fn parse(entries: &[String]) -> Result<TrustedProxies, String> {
        entries
            .iter()
            .map(|text| {
                let text = text.trim();
                text.parse::<IpNet>()
                    .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                    .map_err(|_| format!("`{text}` is neither an address nor a CIDR"))
            })
            .collect::<Result<_, _>>()
            .map(TrustedProxies)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|net| net.contains(&address))
    }

    /// The client's address of a request. `X-Forwarded-For` is walked from the right over trusted hops; the first hop that
    /// is not trusted is the client. An entry that is no address ends the walk at the hop before it.
    #[must_use]
    pub fn client_of(&self, request: &HttpRequest) -> Option<IpAddr> {
        let peer = request.peer_addr()?.ip().to_canonical();
        if self.0.is_empty() || !self.contains(peer) {
            return Some(peer);
        }
        let lines: Vec<&str> = request
            .headers()
            .get_all("x-forwarded-for")
            .filter_map(|v| v.to_str().ok())
            .collect();
        Some(self.walk(peer, &lines))
    }

    fn walk(&self, peer: IpAddr, lines: &[&str]) -> IpAddr {
        let mut last = peer;
        for entry in lines.iter().rev().flat_map(|line| line.rsplit(',')) {
            let Some(address) = parse_hop(entry) else {
                break;
            };
            last = address;
            if !self.contains(address) {
                break;
            }
        }
        last
    }
}

/// One entry of `X-Forwarded-For`, without port and brackets.
fn parse_hop(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    let bare = match entry.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => entry,
    };
    bare.parse::<IpAddr>()
        .ok()
        .or_else(|| bare.split_once(':')?.0.parse::<IpAddr>().ok())
        .map(|a| a.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(trusted: &[&str], peer: &str, lines: &[&str]) -> String {
        let trusted: Vec<String> = trusted.iter().map(|s| (*s).to_owned()).collect();
        TrustedProxies::parse(&trusted)
            .expect("parses")
            .walk(peer.parse().expect("address"), lines)
            .to_string()
    }

    #[test]
    fn trusted_hops_are_walked_from_the_right() {
        let t = &["10.0.0.0/8", "fd00::/8"][..];
        assert_eq!(
            walk(t, "10.0.0.1", &["1.1.1.1, 9.9.9.9, 10.2.2.2"]),
            "9.9.9.9"
        );
        assert_eq!(walk(t, "10.0.0.1", &["1.1.1.1", "9.9.9.9:4711"]), "9.9.9.9");
        assert_eq!(
            walk(t, "10.0.0.1", &["[2001:db8::1]:443, fd00::2"]),
            "2001:db8::1"
        );
        assert_eq!(walk(t, "10.0.0.1", &["10.1.1.1, 10.2.2.2"]), "10.1.1.1");
        assert_eq!(
            walk(t, "10.0.0.1", &["1.1.1.1, junk, 10.2.2.2"]),
            "10.2.2.2"
        );
        assert_eq!(walk(t, "10.0.0.1", &["::ffff:8.8.8.8"]), "8.8.8.8");
        assert_eq!(walk(t, "10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn a_setting_that_is_no_network_is_named() {
        assert!(TrustedProxies::parse(&["nonsense".into()]).is_err());
        assert!(TrustedProxies::parse(&["127.0.0.1".into()]).is_ok());
    }
}
