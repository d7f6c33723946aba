//! Affiliate networks, their postback secrets, and the callback URLs that carry them.

use crate::api::call::{Answer, Call, to_json};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::{ChangeError, Faults};
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::{input, output};
use crate::api::workspaces::check_name;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use tokio_postgres::Row;

/// Whether postbacks of it are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// They are.
    #[default]
    Active,
    /// They are not.
    Archived,
}

impl Status {
    /// The stored name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Status::Active => "active",
            Status::Archived => "archived",
        }
    }

    /// From the stored name.
    #[must_use]
    pub fn from_name(name: &str) -> Status {
        if name == "archived" {
            Status::Archived
        } else {
            Status::Active
        }
    }
}

/// What can be written of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub name: String,
    /// Its own words for a status, lower case.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub status_words: BTreeMap<String, millrace_schemas::postback::Status>,
    /// Reads payouts as `1,50`.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub comma_decimals: bool,
    /// Drops `$`, `EUR` and the like from payouts.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub currency_signs: bool,
    /// Allows negative payouts, and approved → rejected.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub reversals: bool,
    /// Whether its postbacks are taken.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub status: Status,
}

/// A network just made, or with a new secret: shown once.
#[derive(Serialize, JsonSchema)]
struct Shown {
    #[serde(flatten)]
    view: entity::View<Fields>,
    /// The postback secret; `GET /v1/postback-info` shows it within its URL again, where secrets are sealed.
    #[schemars(extend("x-class" = "secret"))]
    secret: Option<String>,
}

pub(crate) struct Networks;

impl Entity for Networks {
    type Fields = Fields;
    type Shown = entity::Bare;
    const PATH: &'static str = "/v1/networks";
    const PARAM: &'static str = "network_id";
    const ID_COLUMN: &'static str = "network_id";
    const PREFIX: &'static str = "nw_";
    const SOURCE: Source = Source {
        from: "networks",
        columns: "network_id AS id, name, status_words, comma_decimals, currency_signs, reversals, status, version, \
                  created_at, updated_at, updated_by",
        time: "created_at",
        id: "network_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields>, Problem> {
        let words: Value = row.try_get("status_words")?;
        let fields = Fields {
            name: row.try_get("name")?,
            status_words: crate::api::call::decode(&words)?,
            comma_decimals: row.try_get("comma_decimals")?,
            currency_signs: row.try_get("currency_signs")?,
            reversals: row.try_get("reversals")?,
            status: Status::from_name(row.try_get("status")?),
        };
        Ok(Stored::read(row, fields)?)
    }

    fn archive(fields: &mut Fields) {
        fields.status = Status::Archived;
    }

    async fn check(
        call: &Call<'_>,
        id: &str,
        before: Option<&Fields>,
        fields: &Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem> {
        check_name("/name", &fields.name, faults);
        if fields.status_words.len() > 100 {
            faults.add("/status_words", "too_long", "at most 100 words");
        }
        for word in fields.status_words.keys() {
            let good = !word.trim().is_empty()
                && word.len() <= 100
                && *word == word.to_lowercase()
                && word.trim() == word
                && !word.chars().any(char::is_control);
            if !good {
                faults.add(
                    format!("/status_words/{}", crate::api::json::pointer_part(word)),
                    "malformed",
                    "a word is lower case, without blanks around it, at most 100 bytes",
                );
            }
        }
        let archives =
            fields.status == Status::Archived && before.is_some_and(|b| b.status == Status::Active);
        if archives {
            let users: Vec<String> = call
                .tx
                .query(
                    "SELECT offer_id FROM offers WHERE workspace_id = $1 AND network_id = $2 AND status = 'active'
                     UNION ALL
                     SELECT campaign_id FROM campaigns WHERE workspace_id = $1 AND status <> 'archived'
                       AND routing @> jsonb_build_object('sidecar_offers', jsonb_build_array(jsonb_build_object('network', $2::text)))
                     LIMIT 10",
                    &[&call.workspace()?, &id],
                )
                .await?
                .iter()
                .map(|r| r.try_get(0))
                .collect::<Result<_, _>>()?;
            if !users.is_empty() {
                return Err(in_use(&users));
            }
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        // The secret follows in the same transaction; until then the row holds a digest of random bytes nobody has.
        let mut nobody = [0u8; 32];
        getrandom::fill(&mut nobody).map_err(ChangeError::from)?;
        call.tx
            .execute(
                "INSERT INTO networks (network_id, workspace_id, name, secret_digest, status_words, comma_decimals,
                        currency_signs, reversals, status, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                &[
                    &id,
                    &call.workspace()?,
                    &f.name,
                    &nobody.as_slice(),
                    &to_json(&f.status_words)?,
                    &f.comma_decimals,
                    &f.currency_signs,
                    &f.reversals,
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "UPDATE networks SET name = $3, status_words = $4, comma_decimals = $5, currency_signs = $6, reversals = $7,
                        status = $8, version = version + 1, updated_at = now(), updated_by = $9
                 WHERE workspace_id = $1 AND network_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &to_json(&f.status_words)?,
                    &f.comma_decimals,
                    &f.currency_signs,
                    &f.reversals,
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }
}

/// Refuses to archive what something refers to.
pub(super) fn in_use(users: &[String]) -> Problem {
    Problem::new("in_use", format!("still used by {}", users.join(", ")))
        .with("used_by", json!(users))
}

/// What a sealed network secret is bound to.
#[must_use]
pub fn seal_purpose(network_id: &str) -> String {
    format!("network-secret:{network_id}")
}

/// Gives a network a fresh secret of 24 random bytes; the one before is dead with the commit.
async fn renew_secret(call: &Call<'_>, id: &str) -> Result<String, Problem> {
    let mut bytes = [0u8; 24];
    getrandom::fill(&mut bytes).map_err(ChangeError::from)?;
    let secret = URL_SAFE_NO_PAD.encode(bytes);
    let digest: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
    let sealed = if call.state.seals.is_configured() {
        Some(
            call.state
                .seals
                .seal(&seal_purpose(id), secret.as_bytes())
                .map_err(ChangeError::from)?,
        )
    } else {
        None
    };
    call.tx
        .execute(
            "UPDATE networks SET secret_digest = $3, secret_sealed = $4 WHERE workspace_id = $1 AND network_id = $2",
            &[&call.workspace()?, &id, &digest.as_slice(), &sealed],
        )
        .await?;
    Ok(secret)
}

fn create<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let (id, mut answer) = entity::make::<Networks>(call).await?;
        let secret = renew_secret(call, &id).await?;
        if let Some(body) = answer.body.as_object_mut() {
            body.insert("secret".to_owned(), Value::from(secret));
        }
        Ok(answer)
    })
}

fn rotate_secret<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param(Networks::PARAM)?;
        let before = entity::load::<Networks>(call, id, "FOR UPDATE").await?;
        let secret = renew_secret(call, id).await?;
        Networks::update(call, id, &before.fields).await?;
        let after = entity::load::<Networks>(call, id, "").await?;
        let version = after.version;
        let mut body = entity::view(after)?;
        if let Some(body) = body.as_object_mut() {
            body.insert("secret".to_owned(), Value::from(secret));
        }
        let mut answer = Answer {
            body,
            ..Answer::default()
        }
        .version(version);
        answer.before = Some(entity::view(before)?);
        Ok(answer)
    })
}

/// Narrows the list of networks.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<Status>,
}

fn list_networks<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("status = $", filter.status.map(Status::name));
        entity::list_by::<Networks>(call, conditions).await
    })
}

const PARAMS: &[Param] = &[Param {
    name: "network_id",
    summary: "The network's id, `nw_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/networks/{network_id}";
    let read = |id, path, output, handler| Operation {
        scope: Some("entities:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let write = |id, method, path, output, handler| Operation {
        scope: Some("offers:write"),
        effect: Effect::Write,
        ..Operation::new(id, method, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "The workspace's networks, newest first, without their secrets.",
            ..read(
                "list_networks",
                "/v1/networks",
                entity::list_schema::<Networks>,
                list_networks,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One network, without its secret.",
            ..read(
                "get_network",
                one,
                entity::view_schema::<Networks>,
                entity::get::<Networks>,
            )
        },
        Operation {
            status: 201,
            step_up: true,
            reveals: true,
            body: Some(entity::create_schema::<Networks>),
            summary: "Make a network; its postback secret is shown once.",
            ..write(
                "create_network",
                Method::Post,
                "/v1/networks",
                output::<Shown>,
                create,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Networks>),
            summary: "Change a network.",
            ..write(
                "update_network",
                Method::Patch,
                one,
                entity::view_schema::<Networks>,
                entity::patch::<Networks>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Networks>),
            summary: "Replace what a network says.",
            ..write(
                "replace_network",
                Method::Put,
                one,
                entity::view_schema::<Networks>,
                entity::replace::<Networks>,
            )
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Archive a network that nothing uses: its postbacks are refused, its facts stay.",
            ..write(
                "delete_network",
                Method::Delete,
                one,
                entity::view_schema::<Networks>,
                entity::archive::<Networks>,
            )
        },
        Operation {
            effect: Effect::Destructive,
            step_up: true,
            reveals: true,
            params: PARAMS,
            summary: "Give a network a new postback secret, shown once; the old one is dead at once.",
            ..write(
                "rotate_network_secret",
                Method::Post,
                "/v1/networks/{network_id}/rotate-secret",
                output::<Shown>,
                rotate_secret,
            )
        },
    ]
}
