//! Where nothing may be sent to: addresses that are not public, unless the operator lists their network
//! (`delivery.allowed_networks`; DESIGN § Security).
//!
//! Whoever may name a URL could otherwise make this process talk to its own neighbours. A host name is judged by what it
//! resolves to, at the moment of connecting ([`GuardedResolver`]), so that a name cannot be harmless when it is looked at and
//! point inside when it is used. An address in the URL itself is never resolved: [`AddressGuard::check`] judges it before each
//! request. Redirects are not followed by any channel.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use url::{Host, Url};

/// The list of allowed networks cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("delivery.allowed_networks: `{0}` is neither a network such as 10.0.0.0/8 nor an address")]
pub struct BadNetwork(pub String);

/// Nothing may be sent there. Says which host, never which address it resolves to: that would tell outsiders about the
/// operator's network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is at no public address, nor within delivery.allowed_networks")]
pub struct AddressRefused(pub String);

/// What may be sent to.
#[derive(Clone, Debug, Default)]
pub struct AddressGuard {
    allowed: Arc<[IpNet]>,
}

impl AddressGuard {
    /// From the operator's list: networks (`10.0.0.0/8`, `fd00::/8`) or single addresses.
    ///
    /// # Errors
    /// [`BadNetwork`].
    pub fn new(networks: &[impl AsRef<str>]) -> Result<AddressGuard, BadNetwork> {
        let read = |text: &str| {
            text.parse::<IpNet>()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| BadNetwork(text.to_owned()))
        };
        Ok(AddressGuard {
            allowed: networks
                .iter()
                .map(|n| read(n.as_ref().trim()))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Whether something may be sent to this address.
    #[must_use]
    pub fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address) || self.allowed.iter().any(|n| n.contains(&address))
    }

    /// Judges the address that stands in the URL itself; a host name passes, since the resolver judges it later.
    ///
    /// # Errors
    /// [`AddressRefused`].
    pub fn check(&self, url: &Url) -> Result<(), AddressRefused> {
        let address = match url.host() {
            Some(Host::Ipv4(v4)) => IpAddr::V4(v4),
            Some(Host::Ipv6(v6)) => IpAddr::V6(v6),
            Some(Host::Domain(_)) => return Ok(()),
            None => return Err(AddressRefused("a URL without a host".to_owned())),
        };
        if self.admits(address) {
            Ok(())
        } else {
            Err(AddressRefused(address.to_string()))
        }
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

/// IANA's special-purpose registry for IPv4: everything there that is not globally reachable.
const NOT_PUBLIC_V4: [Ipv4Net; 16] = [
    v4(0, 0, 0, 0, 8),        // this network; 0.0.0.0 reaches this machine
    v4(10, 0, 0, 0, 8),       // private
    v4(100, 64, 0, 0, 10),    // shared by a carrier's customers (CGNAT)
    v4(127, 0, 0, 0, 8),      // loopback
    v4(169, 254, 0, 0, 16),   // link-local, and the metadata services of clouds
    v4(172, 16, 0, 0, 12),    // private
    v4(192, 0, 0, 0, 24),     // protocol assignments
    v4(192, 0, 2, 0, 24),     // documentation
    v4(192, 88, 99, 0, 24),   // relays of 6to4, withdrawn
    v4(192, 168, 0, 0, 16),   // private
    v4(198, 18, 0, 0, 15),    // benchmarking
    v4(198, 51, 100, 0, 24),  // documentation
    v4(203, 0, 113, 0, 24),   // documentation
    v4(224, 0, 0, 0, 4),      // multicast
    v4(240, 0, 0, 0, 4),      // reserved, and broadcast
    v4(168, 63, 129, 16, 32), // the metadata service of one cloud, at a public address
];

const fn v6(segments: [u16; 8], bits: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), bits)
}

/// The only part of IPv6 from which public addresses are given out. Outside of it lie loopback, unspecified, IPv4-mapped and
/// IPv4-compatible, unique local (fc00::/7), link-local, site-local, multicast, discard, the local NAT64 prefix.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
/// Within [`GLOBAL_V6`] and yet not public.
const NOT_PUBLIC_V6: [Ipv6Net; 3] = [
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), // protocol assignments: Teredo, benchmarking, ORCHID
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), // documentation
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), // documentation
];
/// Translated to the IPv4 address in its last 32 bits.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
/// Tunnelled to the IPv4 address behind its first 16 bits.
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);

/// Whether an address can be reached by everybody: neither private, loopback, link-local, shared, multicast, unspecified,
/// reserved nor for documentation, in any form in which IPv6 wraps IPv4.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => !NOT_PUBLIC_V4.iter().any(|n| n.contains(&v4)),
        IpAddr::V6(v6) => {
            let [_, first, second, .., last_but_one, last] = v6.segments();
            if NAT64.contains(&v6) {
                return is_public(within(last_but_one, last));
            }
            if SIX_TO_FOUR.contains(&v6) {
                return is_public(within(first, second));
            }
            GLOBAL_V6.contains(&v6) && !NOT_PUBLIC_V6.iter().any(|n| n.contains(&v6))
        }
    }
}

fn within(high: u16, low: u16) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(
        (u32::from(high) << 16) | u32::from(low),
    ))
}

/// Resolves host names for an HTTP client, and hands out only addresses that the guard admits. Asynchronous, so that a name
/// whose server never answers holds no thread; answers are kept for as long as they say.
pub struct GuardedResolver {
    guard: AddressGuard,
    resolver: TokioResolver,
}

impl std::fmt::Debug for GuardedResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GuardedResolver({:?})", self.guard)
    }
}

impl GuardedResolver {
    /// One that asks the name servers of this machine, and its `hosts` file first.
    ///
    /// # Errors
    /// The resolver cannot be made.
    pub fn new(guard: AddressGuard) -> Result<GuardedResolver, String> {
        let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|error| {
            // Never somebody's default servers instead: then nothing but the hosts file and localhost resolves.
            tracing::warn!(%error, "this machine's name servers are unknown");
            TokioResolver::builder_with_config(
                ResolverConfig::from_name_servers(Vec::new()),
                TokioRuntimeProvider::default(),
            )
        });
        // Both families, so that the client can fall back from the one to the other.
        builder.options_mut().ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
        Ok(GuardedResolver {
            guard,
            resolver: builder.build().map_err(|e| e.to_string())?,
        })
    }
}

impl GuardedResolver {
    /// The addresses of a host that the guard admits; a host may be an address itself.
    ///
    /// # Errors
    /// [`AddressRefused`] where there is none; the resolver's.
    pub async fn addresses(
        &self,
        host: &str,
    ) -> Result<Vec<IpAddr>, Box<dyn std::error::Error + Send + Sync>> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let found: Vec<IpAddr> = match bare.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => self.resolver.lookup_ip(host).await?.iter().collect(),
        };
        let admitted: Vec<IpAddr> = found
            .into_iter()
            .filter(|a| self.guard.admits(*a))
            .collect();
        if admitted.is_empty() {
            return Err(AddressRefused(host.to_owned()).into());
        }
        Ok(admitted)
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, resolver) = (self.guard.clone(), self.resolver.clone());
        Box::pin(async move {
            let found = resolver.lookup_ip(name.as_str()).await?;
            let admitted: Vec<SocketAddr> = found
                .iter()
                .filter(|a| guard.admits(*a))
                .map(|a| SocketAddr::new(a, 0))
                .collect();
            if admitted.is_empty() {
                return Err(AddressRefused(name.as_str().to_owned()).into());
            }
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn what_is_public_and_what_is_not() {
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860:4860::8888",
            "2001:200::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert!(is_public(ip(public)), "{public}");
        }
        for inside in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "::",
            "::1",
            "::7f00:1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:8.8.8.8",
            "64:ff9b::127.0.0.1",
            "64:ff9b::10.1.2.3",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::",
            "3fff::1",
            "3fff:fff::1",
            "5f00::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
        ] {
            assert!(!is_public(ip(inside)), "{inside}");
        }
    }

    #[test]
    fn an_address_in_a_url_is_judged_in_every_spelling() {
        let guard = AddressGuard::default();
        for refused in [
            "http://127.0.0.1/",
            "https://10.0.0.1:8443/x",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://127.0.0.1./",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[::127.0.0.1]/",
            "http://[fe80::1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://0/",
            "http://169.254.169.254/latest/meta-data",
            "http://user:pw@192.168.1.1/",
            "http://0x7F000001",
            "http://①②⑦.0.0.1/",
        ] {
            let url = Url::parse(refused).unwrap_or_else(|e| panic!("{refused}: {e}"));
            assert!(guard.check(&url).is_err(), "{refused}");
        }
        for passes in [
            "http://1.1.1.1/",
            "https://[2606:4700::1111]/",
            "https://hooks.example.com/",
            "http://localhost/",
        ] {
            let url = Url::parse(passes).unwrap_or_else(|e| panic!("{passes}: {e}"));
            assert!(guard.check(&url).is_ok(), "{passes}");
        }
        assert!(
            guard
                .check(&Url::parse("data:text/plain,x").expect("a URL"))
                .is_err()
        );
    }

    #[test]
    fn what_the_operator_lists_passes_and_nothing_beside_it() {
        let guard = AddressGuard::new(&["10.0.0.0/8", " fd00::/8", "127.0.0.1"]).expect("networks");
        for (address, admitted) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("fd12::1", true),
            ("127.0.0.1", true),
            ("8.8.8.8", true),
            ("127.0.0.2", false),
            ("192.168.0.1", false),
            ("fc00::1", false),
            // Through a translator to that network: another way, to be listed by itself.
            ("64:ff9b::10.1.2.3", false),
        ] {
            assert_eq!(guard.admits(ip(address)), admitted, "{address}");
        }
        for bad in ["10.0.0.0/33", "internal", "", "10.0.0"] {
            let error = AddressGuard::new(&[bad]).expect_err("refused").to_string();
            assert!(error.contains("allowed_networks"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        let name = || "localhost".parse::<Name>().expect("a name");
        let closed = GuardedResolver::new(AddressGuard::default()).expect("a resolver");
        let refused = closed.resolve(name()).await.err().expect("refused");
        assert!(
            refused.downcast_ref::<AddressRefused>().is_some(),
            "{refused}"
        );
        assert!(!refused.to_string().contains("127."), "{refused}");
        let guard = AddressGuard::new(&["127.0.0.0/8"]).expect("a network");
        let open = GuardedResolver::new(guard).expect("a resolver");
        let found: Vec<SocketAddr> = open.resolve(name()).await.expect("resolved").collect();
        assert_eq!(found, ["127.0.0.1:0".parse().expect("an address")]);
    }
}
