//! Whose feed a bearer opens. Tokens are part of the configuration that doors hold: nothing is asked of the store here, and a
//! revoked one ends its feed within the second. For one that is not known the door looks for newer configuration, once a second
//! at most ([`super`]).

use crate::api::keys::ApiKey;
use crate::ingress::compile::Snapshot;
use crate::ingress::errors::Refusal;
use actix_web::HttpRequest;
use actix_web::http::StatusCode;
use actix_web::http::header::AUTHORIZATION;
use millrace_schemas::time::Micros;
use subtle::ConstantTimeEq;

/// What stands before a feed token's id.
pub const TOKEN_PREFIX: &str = "ft_";

/// A shard as doors hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The workspace's number.
    pub workspace: i32,
    /// Its id there.
    pub id: Box<str>,
    /// The module whose frames it sends.
    pub module: Box<str>,
    /// Their protocol.
    pub protocol: u32,
    /// Whether its feed is open.
    pub active: bool,
}

/// A feed token as doors hold it: a live one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedToken {
    /// The shard that it opens.
    pub shard: (i32, Box<str>),
    /// SHA-256 of its secret.
    pub digest: [u8; 32],
    /// The one before the last rotation, and until when it is good.
    pub previous: Option<([u8; 32], Micros)>,
}

impl FeedToken {
    fn admits(&self, digest: &[u8; 32], now: Micros) -> bool {
        let mut known = self.digest.ct_eq(digest);
        if let Some((previous, until)) = &self.previous {
            known |= previous.ct_eq(digest) & subtle::Choice::from(u8::from(now < *until));
        }
        bool::from(known)
    }
}

/// A bearer that was let in.
#[derive(Clone, Debug)]
pub(super) struct Admitted {
    pub shard: Shard,
    token: String,
    digest: [u8; 32],
}

impl Admitted {
    /// Whether it would be let in now, and to the same; the reason if not.
    pub fn still(&self, snapshot: &Snapshot, now: Micros) -> Result<(), Refusal> {
        let good = snapshot
            .feed_tokens
            .get(self.token.as_str())
            .is_some_and(|t| t.admits(&self.digest, now));
        if !good {
            return Err(unauthenticated());
        }
        let shard = find(snapshot, self.shard.workspace, &self.shard.id)?;
        if *shard == self.shard {
            Ok(())
        } else {
            Err(Refusal::new(
                StatusCode::CONFLICT,
                "shard_changed",
                "the shard's settings were changed; connect again",
            ))
        }
    }
}

/// The token that a request brings, if it has the form of one.
fn given(request: &HttpRequest) -> Option<ApiKey> {
    let (scheme, token) = request
        .headers()
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    ApiKey::parse_as(TOKEN_PREFIX, token.trim())
}

/// Whether a request brings what has the form of a token, so that the store may know it.
pub(super) fn may_be_token(request: &HttpRequest) -> bool {
    given(request).is_some()
}

/// Lets a request to a shard's feed in.
pub(super) fn admit(
    snapshot: &Snapshot,
    request: &HttpRequest,
    shard: &str,
    now: Micros,
) -> Result<Admitted, Refusal> {
    let given = given(request).ok_or_else(unauthenticated)?;
    let digest = given.digest();
    // A token that is not there is compared as well, so that both take the same time.
    let nobody = FeedToken {
        shard: (0, Box::from("")),
        digest: [0; 32],
        previous: None,
    };
    let held = snapshot.feed_tokens.get(given.id()).unwrap_or(&nobody);
    // Another shard's token is nobody's here: it is not said which shards there are.
    if !held.admits(&digest, now) || &*held.shard.1 != shard {
        return Err(unauthenticated());
    }
    let shard = find(snapshot, held.shard.0, shard)?;
    Ok(Admitted {
        shard: shard.clone(),
        token: given.id().to_owned(),
        digest,
    })
}

fn find<'a>(snapshot: &'a Snapshot, workspace: i32, id: &str) -> Result<&'a Shard, Refusal> {
    let forbidden = |code, detail: &'static str| Refusal::new(StatusCode::FORBIDDEN, code, detail);
    if !snapshot.workspaces.contains_key(&workspace) {
        return Err(forbidden("workspace_archived", "the workspace is archived"));
    }
    snapshot
        .shards
        .get(&(workspace, Box::from(id)))
        .filter(|s| s.active)
        .ok_or_else(|| forbidden("shard_archived", "the shard is archived"))
}

fn unauthenticated() -> Refusal {
    Refusal::new(
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "a valid token of this shard's feed is needed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::compile::Workspace;
    use actix_web::test::TestRequest;

    const NOW: Micros = Micros(1_000_000_000);

    #[test]
    fn a_token_opens_its_own_shard_until_its_overlap_ends() {
        let key = ApiKey::generate_as(TOKEN_PREFIX).expect("random bytes");
        let next = ApiKey::with_new_secret(key.id()).expect("random bytes");
        let mut snapshot = Snapshot::default();
        let workspace = Workspace {
            slug: "acme".into(),
            store_ip: false,
        };
        snapshot.workspaces.insert(1, workspace);
        for id in ["a", "b"] {
            let shard = Shard {
                workspace: 1,
                id: id.into(),
                module: "game".into(),
                protocol: 5,
                active: true,
            };
            snapshot.shards.insert((1, id.into()), shard);
        }
        let token = FeedToken {
            shard: (1, "a".into()),
            digest: next.digest(),
            previous: Some((key.digest(), NOW)),
        };
        snapshot.feed_tokens.insert(key.id().into(), token);
        let ask = |snapshot: &Snapshot, header: &str, shard: &str, now: i64| {
            let request = TestRequest::default()
                .insert_header(("authorization", header))
                .to_http_request();
            admit(snapshot, &request, shard, Micros(NOW.0 + now)).map_err(|r| r.code)
        };
        let bearer = |key: &ApiKey| format!("Bearer {}", key.reveal());
        let refused = Err("unauthenticated");
        let code = |r: Result<Admitted, &'static str>| r.map(|_| ());
        assert_eq!(code(ask(&snapshot, &bearer(&next), "a", 0)), Ok(()));
        assert_eq!(code(ask(&snapshot, &bearer(&key), "a", -1)), Ok(()));
        assert_eq!(code(ask(&snapshot, &bearer(&key), "a", 0)), refused);
        for (header, shard) in [
            (bearer(&next), "b"),
            (bearer(&next), "c"),
            (bearer(&next).replace("ft_", "rk_"), "a"),
            (bearer(&next).replace("Bearer", "Basic"), "a"),
            ("Bearer".to_owned(), "a"),
            (String::new(), "a"),
        ] {
            assert_eq!(code(ask(&snapshot, &header, shard, 0)), refused, "{shard}");
        }
        let open = ask(&snapshot, &bearer(&next), "a", 0).expect("open");
        let still = |snapshot: &Snapshot| open.still(snapshot, NOW).map_err(|r| r.code);
        assert_eq!(still(&snapshot), Ok(()));
        if let Some(shard) = snapshot.shards.get_mut(&(1, "a".into())) {
            shard.protocol = 6;
        }
        assert_eq!(still(&snapshot), Err("shard_changed"));
        if let Some(shard) = snapshot.shards.get_mut(&(1, "a".into())) {
            shard.active = false;
        }
        assert_eq!(still(&snapshot), Err("shard_archived"));
        snapshot.feed_tokens.clear();
        assert_eq!(still(&snapshot), refused);
    }
}
