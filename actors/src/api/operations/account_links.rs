//! Links: which account of a game is which user's. (Links of campaigns are `campaigns`.)

use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::{input, output};
use crate::directory::operator;
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::directory::{Change, DirectoryRecord, link_id};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;

/// A link to make.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewLink {
    /// The module of the game.
    #[schemars(length(min = 1, max = 200))]
    module: String,
    /// The shard.
    #[schemars(length(min = 1, max = 200))]
    shard: String,
    /// The account there, opaque: leading zeros are kept.
    #[schemars(length(min = 1, max = 200))]
    account: String,
    /// Whose it is from now on, whoever had it.
    #[schemars(length(min = 1, max = 200))]
    user_id: String,
}

/// An account and a user.
#[derive(Serialize, JsonSchema)]
struct Link {
    /// The pair's id, `ln_…`.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// The module of the game.
    #[schemars(extend("x-class" = "open"))]
    module: String,
    /// The shard.
    #[schemars(extend("x-class" = "open"))]
    shard: String,
    /// The account there.
    #[schemars(extend("x-class" = "identity"))]
    account: String,
    /// The user.
    #[schemars(extend("x-class" = "open"))]
    user_id: String,
    /// Whether it is the user's now; what is not is kept, since some news is for whoever had it.
    #[schemars(extend("x-class" = "open"))]
    live: bool,
    /// When it was linked last.
    #[schemars(extend("x-class" = "open"))]
    linked_at: Option<String>,
    /// When it was unlinked last.
    #[schemars(extend("x-class" = "open"))]
    unlinked_at: Option<String>,
    /// Its version: the ETag, and what `If-Match` takes.
    #[schemars(extend("x-class" = "open"))]
    version: i64,
    /// When it was seen first.
    #[schemars(extend("x-class" = "open"))]
    created_at: String,
    /// When it was changed last.
    #[schemars(extend("x-class" = "open"))]
    updated_at: String,
    /// Who changed it last.
    #[schemars(extend("x-class" = "open"))]
    updated_by: String,
}

const SOURCE: Source = Source {
    from: "links",
    columns: "link_id AS id, module, shard, account, user_id, live, linked_at, unlinked_at, created_at, updated_at, updated_by",
    time: "created_at",
    id: "link_id",
    id_type: "text",
    ascending: false,
    windows: false,
};

fn read(row: &Row) -> Result<Link, Problem> {
    let updated_at: Tz = row.try_get("updated_at")?;
    let created_at: Tz = row.try_get("created_at")?;
    Ok(Link {
        id: row.try_get("id")?,
        module: row.try_get("module")?,
        shard: row.try_get("shard")?,
        account: row.try_get("account")?,
        user_id: row.try_get("user_id")?,
        live: row.try_get("live")?,
        linked_at: super::time_text(row.try_get("linked_at")?),
        unlinked_at: super::time_text(row.try_get("unlinked_at")?),
        version: updated_at.0.0,
        created_at: created_at.0.rfc3339(),
        updated_at: updated_at.0.rfc3339(),
        updated_by: row.try_get("updated_by")?,
    })
}

async fn load(call: &Call<'_>, id: &str, lock: &str) -> Result<Link, Problem> {
    let sql = format!(
        "SELECT {} FROM links WHERE workspace_id = $1 AND link_id = $2 {lock}",
        SOURCE.columns
    );
    let row = call
        .tx
        .query_opt(&sql, &[&call.workspace()?, &id])
        .await?
        .ok_or_else(Problem::not_found)?;
    read(&row)
}

/// Narrows the list of links.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one user.
    user_id: Option<String>,
    /// Those of one module.
    module: Option<String>,
    /// Those of one shard.
    shard: Option<String>,
    /// Those of one account.
    account: Option<String>,
    /// Those that stand, or those that ended.
    live: Option<bool>,
}

fn list_links<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("user_id = $", filter.user_id);
        conditions.and_some("module = $", filter.module);
        conditions.and_some("shard = $", filter.shard);
        conditions.and_some("account = $", filter.account);
        conditions.and_some("live = $", filter.live);
        list(call, SOURCE, conditions, |row| to_json(&read(row)?)).await
    })
}

fn get<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move { answer(load(call, call.param("link_id")?, "").await?) })
}

fn answer(link: Link) -> Result<Answer, Problem> {
    let version = link.version;
    Ok(Answer::of(&link)?.version(version))
}

async fn apply(call: &Call<'_>, record: DirectoryRecord) -> Result<(), Problem> {
    let now = call.state.clock.wall();
    let applied = operator::apply(call.tx, vec![record], now, &call.actor.key_id).await?;
    applied.map_err(|reason| {
        let mut faults = Faults::new();
        faults.add(
            "",
            reason,
            "module, shard and account are texts without control characters",
        );
        faults.into()
    })
}

fn create<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let new: NewLink = call.body()?;
        let ws = call.workspace()?;
        let known = call
            .tx
            .query_opt(
                "SELECT 1 FROM users WHERE workspace_id = $1 AND user_id = $2 AND status <> 'deleted' FOR SHARE",
                &[&ws, &new.user_id],
            )
            .await?;
        let mut faults = Faults::new();
        if known.is_none() {
            faults.add("/user_id", "unknown_user", "there is no user of this id");
        }
        if call.modules.get(&new.module).is_none() {
            faults.add("/module", "unknown_module", "no enabled module has this id");
        }
        if !faults.is_empty() {
            return Err(faults.into());
        }
        let id = link_id(ws, &new.module, &new.shard, &new.account, &new.user_id);
        let record = DirectoryRecord {
            ws,
            change: Change::Link,
            user: new.user_id,
            module: Some(new.module),
            shard: Some(new.shard),
            account: Some(new.account),
            ..DirectoryRecord::default()
        };
        apply(call, record).await?;
        let mut answer = answer(load(call, &id, "").await?)?;
        answer.location = Some(format!("/v1/account-links/{id}"));
        Ok(answer)
    })
}

fn delete<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param("link_id")?;
        let link = load(call, id, "FOR UPDATE").await?;
        let at = millrace_schemas::time::Micros(link.version);
        call.check_version(link.version, &link.updated_by, at)?;
        let record = DirectoryRecord {
            ws: call.workspace()?,
            change: Change::Unlink,
            user: link.user_id.clone(),
            module: Some(link.module.clone()),
            shard: Some(link.shard.clone()),
            account: Some(link.account.clone()),
            ..DirectoryRecord::default()
        };
        apply(call, record).await?;
        let mut answer = answer(load(call, id, "").await?)?;
        answer.before = Some(to_json(&link)?);
        Ok(answer)
    })
}

fn list_schema() -> Value {
    list_of(output::<Link>())
}

const PARAMS: &[Param] = &[Param {
    name: "link_id",
    summary: "The link's id, `ln_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/account-links/{link_id}";
    let of = |id, method, path, handler| Operation {
        scope: Some("people:read"),
        ..Operation::new(id, method, path, output::<Link>, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            output: list_schema,
            summary: "Links between accounts of games and users, newest first; those that ended too.",
            ..of(
                "list_account_links",
                Method::Get,
                "/v1/account-links",
                list_links,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One link.",
            ..of("get_account_link", Method::Get, one, get)
        },
        Operation {
            status: 201,
            scope: Some("people:write"),
            effect: Effect::Write,
            body: Some(input::<NewLink>),
            summary: "Say whose an account is; whoever had it before is remembered.",
            ..of(
                "create_account_link",
                Method::Post,
                "/v1/account-links",
                create,
            )
        },
        Operation {
            scope: Some("people:write"),
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "End a link. It stays as a trace of who had the account.",
            ..of("delete_account_link", Method::Delete, one, delete)
        },
    ]
}
