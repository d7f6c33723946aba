//! How a workspace mails: one server, one sender, a password that goes in and never comes out, and a test send.

mod fields;
mod test;

pub use fields::{Fields, Security};

use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::{ChangeError, Faults};
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, ExemptReason, Method, Operation, Param, Precondition, Tool};
use crate::api::schema::{input, output};
use crate::delivery::email::address;
use crate::delivery::email::settings::seal_purpose;
use crate::delivery::holds;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

/// What is shown beside the fields.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Held {
    /// Whether a password is there.
    #[schemars(extend("x-class" = "open"))]
    has_password: bool,
    /// What stands behind the @ of its Message-IDs: set once, so that a mail that is tried again keeps its id.
    #[schemars(extend("x-class" = "open"))]
    message_domain: String,
}

pub(crate) struct MailTransports;

impl Entity for MailTransports {
    type Fields = Fields;
    type Shown = Held;
    const PATH: &'static str = "/v1/mail-transports";
    const PARAM: &'static str = "transport_id";
    const ID_COLUMN: &'static str = "transport_id";
    const PREFIX: &'static str = "mt_";
    const SOURCE: Source = Source {
        from: "mail_transports",
        columns: "transport_id AS id, enabled, host, port, security, username, sender_name, sender_address, reply_to, brand_name, \
                  brand_accent, site_url, message_domain, password_sealed IS NOT NULL AS has_password, version, created_at, \
                  updated_at, updated_by",
        time: "created_at",
        id: "transport_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields, Held>, Problem> {
        let port: i32 = row.try_get("port")?;
        let fields = Fields {
            enabled: row.try_get("enabled")?,
            host: row.try_get("host")?,
            port: u16::try_from(port).unwrap_or_default(),
            security: Security::from_name(row.try_get("security")?),
            username: row.try_get("username")?,
            sender_name: row.try_get("sender_name")?,
            sender_address: row.try_get("sender_address")?,
            reply_to: row.try_get("reply_to")?,
            brand_name: row.try_get("brand_name")?,
            brand_accent: row.try_get("brand_accent")?,
            site_url: row.try_get("site_url")?,
        };
        let held = Held {
            has_password: row.try_get("has_password")?,
            message_domain: row.try_get("message_domain")?,
        };
        Ok(Stored::with(row, fields, held)?)
    }

    fn archive(fields: &mut Fields) {
        fields.enabled = false;
    }

    async fn check(
        call: &Call<'_>,
        id: &str,
        before: Option<&Fields>,
        fields: &Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem> {
        fields.check(faults);
        // A password goes to the server that it was set for, and to no other: see `update`.
        let elsewhere = before.is_some_and(|b| {
            (&b.host, b.port, b.security.name(), &b.username)
                != (
                    &fields.host,
                    fields.port,
                    fields.security.name(),
                    &fields.username,
                )
        });
        if fields.enabled && fields.username.is_some() && elsewhere {
            let why = "another server or user needs its password anew: save it off, set the password, then switch it on";
            faults.add("/enabled", "password_missing", why);
        } else if fields.enabled && fields.username.is_some() {
            let held = call
                .tx
                .query_opt(
                    "SELECT 1 FROM mail_transports WHERE workspace_id = $1 AND transport_id = $2 AND password_sealed IS NOT NULL",
                    &[&call.workspace()?, &id],
                )
                .await?;
            if held.is_none() {
                let why = "a user needs a password first: save it off, set the password, then switch it on";
                faults.add("/enabled", "password_missing", why);
            }
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        let sender = address::parse(&f.sender_address);
        let domain = sender.map(|s| s.domain().to_owned()).unwrap_or_default();
        call.tx
            .execute(
                "INSERT INTO mail_transports (workspace_id, transport_id, enabled, host, port, security, username, sender_name,
                        sender_address, reply_to, brand_name, brand_accent, site_url, message_domain, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
                &[
                    &call.workspace()?,
                    &id,
                    &f.enabled,
                    &f.host,
                    &i32::from(f.port),
                    &f.security.name(),
                    &f.username,
                    &f.sender_name,
                    &f.sender_address,
                    &f.reply_to,
                    &f.brand_name,
                    &f.brand_accent,
                    &f.site_url,
                    &domain,
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "UPDATE mail_transports SET enabled = $3, host = $4, port = $5, security = $6, username = $7, sender_name = $8,
                        sender_address = $9, reply_to = $10, brand_name = $11, brand_accent = $12, site_url = $13,
                        password_sealed = CASE WHEN host = $4 AND port = $5 AND security = $6 AND username IS NOT DISTINCT FROM $7
                                               THEN password_sealed END,
                        version = version + 1, updated_at = now(), updated_by = $14
                 WHERE workspace_id = $1 AND transport_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.enabled,
                    &f.host,
                    &i32::from(f.port),
                    &f.security.name(),
                    &f.username,
                    &f.sender_name,
                    &f.sender_address,
                    &f.reply_to,
                    &f.brand_name,
                    &f.brand_accent,
                    &f.site_url,
                    &call.actor.key_id,
                ],
            )
            .await?;
        holds::resume_mended(call.tx, call.workspace()?, id).await?;
        Ok(())
    }
}

fn list<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let conditions = Conditions::of_workspace(call.workspace()?);
        entity::list_by::<MailTransports>(call, conditions).await
    })
}

/// A password; null takes it away.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Password {
    /// Taken in, never shown.
    #[schemars(length(min = 1, max = 1_000), extend("writeOnly" = true))]
    password: Option<String>,
}

fn set_password<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param(MailTransports::PARAM)?;
        let before = entity::load::<MailTransports>(call, id, "FOR UPDATE").await?;
        let given: Password = call.body()?;
        let purpose = seal_purpose(id);
        let sealed = given
            .password
            .as_ref()
            .map(|p| call.state.seals.seal(&purpose, p.as_bytes()))
            .transpose()
            .map_err(ChangeError::from)?;
        call.tx
            .execute(
                "UPDATE mail_transports SET password_sealed = $3 WHERE workspace_id = $1 AND transport_id = $2",
                &[&call.workspace()?, &id, &sealed],
            )
            .await?;
        MailTransports::update(call, id, &before.fields).await?;
        let mut answer = entity::answer(entity::load::<MailTransports>(call, id, "").await?)?;
        answer.before = Some(entity::view(before)?);
        Ok(answer)
    })
}

const PARAMS: &[Param] = &[Param {
    name: "transport_id",
    summary: "The transport's id, `mt_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/mail-transports/{transport_id}";
    let view = entity::view_schema::<MailTransports>;
    let manage = |id, method, path, output, handler| Operation {
        scope: Some("deliverability:manage"),
        ..Operation::new(id, method, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            summary: "How the workspace mails, without its password; there is one at most.",
            ..manage(
                "list_mail_transports",
                Method::Get,
                MailTransports::PATH,
                entity::list_schema::<MailTransports>,
                list,
            )
        },
        Operation {
            params: PARAMS,
            summary: "The mail transport, without its password.",
            ..manage(
                "get_mail_transport",
                Method::Get,
                one,
                view,
                entity::get::<MailTransports>,
            )
        },
        Operation {
            status: 201,
            effect: Effect::Write,
            body: Some(entity::fields_schema::<MailTransports>),
            summary: "Set how the workspace mails; its password is set apart.",
            ..manage(
                "create_mail_transport",
                Method::Post,
                MailTransports::PATH,
                view,
                entity::create::<MailTransports>,
            )
        },
        Operation {
            effect: Effect::Write,
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<MailTransports>),
            summary: "Change how the workspace mails, switch it on or off; what waited for it is sent.",
            ..manage(
                "update_mail_transport",
                Method::Patch,
                one,
                view,
                entity::patch::<MailTransports>,
            )
        },
        Operation {
            effect: Effect::Write,
            step_up: true,
            // A password is no tool's argument.
            tool: Tool::Exempt(ExemptReason::HumanOnly),
            params: PARAMS,
            body: Some(input::<Password>),
            summary: "Give the mail transport a password (null takes it away); what waited for it is sent.",
            ..manage(
                "set_mail_password",
                Method::Post,
                "/v1/mail-transports/{transport_id}/password",
                view,
                set_password,
            )
        },
        Operation {
            effect: Effect::External,
            status: 202,
            params: PARAMS,
            body: Some(input::<test::To>),
            summary: "Send a test mail through the transport: a real one, recorded like any other.",
            ..manage(
                "test_mail_transport",
                Method::Post,
                "/v1/mail-transports/{transport_id}/verify",
                output::<test::Sent>,
                test::verify,
            )
        },
    ]
}
