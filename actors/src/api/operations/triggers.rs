//! Triggers and audiences, as the enabled modules declare them; and what rules of the workspace still name though nobody does.

use crate::api::call::{Answer, Call};
use crate::api::problem::Problem;
use crate::api::registry::{Method, Operation};
use crate::api::schema::output;
use crate::directory::audience::core_audience;
use crate::directory::conditions::operators_of;
use crate::modules::variable::VariableType;
use crate::modules::{Modules, Trigger, TriggerKind};
use futures::future::LocalBoxFuture;
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A variable of a trigger.
#[derive(Serialize, JsonSchema)]
struct VariableView {
    /// Its name.
    #[schemars(extend("x-class" = "open"))]
    name: String,
    /// Its type.
    #[serde(rename = "type")]
    #[schemars(extend("x-class" = "open"))]
    of: VariableType,
    /// A firing without it is rejected.
    #[schemars(extend("x-class" = "open"))]
    required: bool,
    /// What it may look like.
    #[schemars(extend("x-class" = "open", "x-free-because" = "the manifest's own example, of the variable's type"))]
    example: Value,
    /// How a condition may compare it.
    #[schemars(extend("x-class" = "open"))]
    operators: Vec<String>,
}

/// What a module declares of a trigger.
#[derive(Serialize, JsonSchema)]
struct Declared {
    /// The module.
    #[schemars(extend("x-class" = "open"))]
    module: String,
    /// For people.
    #[schemars(extend("x-class" = "open"))]
    label: String,
    /// For people.
    #[schemars(extend("x-class" = "open"))]
    description: String,
    /// What fires it.
    #[schemars(extend("x-class" = "open"))]
    kind: TriggerKind,
    /// The variable that names what it is about.
    #[schemars(extend("x-class" = "open"))]
    subject_key: String,
    /// The audience that a rule begins with.
    #[schemars(extend("x-class" = "open"))]
    audience: Ceiling,
    /// The widest audience that a rule may have.
    #[schemars(extend("x-class" = "open"))]
    ceiling: Ceiling,
    /// The plain audiences that the ceiling permits.
    #[schemars(extend("x-class" = "open"))]
    permits: Vec<Ceiling>,
    /// Raised when a variable is renamed or changes its type.
    #[schemars(extend("x-class" = "open"))]
    version: u32,
    /// How old a firing may be when it is sent, in seconds.
    #[schemars(extend("x-class" = "open"))]
    max_age_s: Option<u64>,
    /// What can be set of it.
    #[schemars(extend("x-class" = "open"))]
    modes: Vec<Mode>,
    /// By channel, what holds where nobody has said otherwise.
    #[schemars(extend("x-class" = "open"))]
    default_modes: BTreeMap<String, Mode>,
    /// Whether it has a stream, and so may be pushed.
    #[schemars(extend("x-class" = "open"))]
    pushable: bool,
    /// What a firing says.
    #[schemars(extend("x-class" = "open"))]
    variables: Vec<VariableView>,
}

/// A trigger.
#[derive(Serialize, JsonSchema)]
struct TriggerView {
    /// Its id.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// Nobody declares it any more; rules of the workspace still name it, and reach nobody.
    #[schemars(extend("x-class" = "open"))]
    dormant: bool,
    /// Rules of the workspace that answer it.
    #[schemars(extend("x-class" = "open"))]
    rules: i64,
    /// Those of them that are switched on.
    #[schemars(extend("x-class" = "open"))]
    enabled_rules: i64,
    /// What the module says of it; null: dormant.
    #[schemars(extend("x-class" = "open"))]
    declared: Option<Declared>,
}

/// A parameter of an audience.
#[derive(Serialize, JsonSchema)]
struct ParamView {
    /// Its name.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// `int` or `string`.
    #[serde(rename = "type")]
    #[schemars(extend("x-class" = "open"))]
    of: String,
    /// Whether it must be filled in.
    #[schemars(extend("x-class" = "open"))]
    required: bool,
}

/// An audience that a segment may name.
#[derive(Serialize, JsonSchema)]
struct AudienceView {
    /// Its id.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// The module; null: core's own.
    #[schemars(extend("x-class" = "open"))]
    module: Option<String>,
    /// For people.
    #[schemars(extend("x-class" = "open"))]
    label: String,
    /// The widest set that it can ever be.
    #[schemars(extend("x-class" = "open"))]
    ceiling: Ceiling,
    /// What is to be filled in.
    #[schemars(extend("x-class" = "open"))]
    params: Vec<ParamView>,
}

/// What modules declare.
#[derive(Serialize, JsonSchema)]
struct Catalogue {
    /// Triggers, by module; then those that nobody declares any more.
    #[schemars(extend("x-class" = "open"))]
    triggers: Vec<TriggerView>,
    /// Audiences.
    #[schemars(extend("x-class" = "open"))]
    audiences: Vec<AudienceView>,
}

fn declared(modules: &Modules, trigger: &Trigger) -> Declared {
    let variables = trigger.variables.iter().map(|v| VariableView {
        name: v.name.to_string(),
        of: v.of,
        required: v.required,
        example: v.example.clone(),
        operators: operators_of(v.of).into_iter().map(str::to_owned).collect(),
    });
    let permits = Ceiling::ALL
        .into_iter()
        .filter(|c| trigger.ceiling.permits(*c));
    Declared {
        module: trigger.module.to_string(),
        label: trigger.label.to_string(),
        description: trigger.description.to_string(),
        kind: trigger.kind,
        subject_key: trigger.subject_key().to_owned(),
        audience: trigger.audience,
        ceiling: trigger.ceiling,
        permits: permits.collect(),
        version: trigger.version,
        max_age_s: trigger.max_age_s,
        modes: Mode::ALL
            .into_iter()
            .filter(|m| trigger.allows(*m))
            .collect(),
        default_modes: Channel::ALL
            .into_iter()
            .map(|c| (c.word().to_owned(), trigger.default_mode(c)))
            .collect(),
        pushable: modules.stream(&trigger.id).is_some(),
        variables: variables.collect(),
    }
}

fn audiences(modules: &Modules) -> Vec<AudienceView> {
    let core = Ceiling::ALL
        .into_iter()
        .filter(|c| core_audience(c.word()).is_some())
        .map(|ceiling| AudienceView {
            id: ceiling.word().to_owned(),
            module: None,
            label: match ceiling {
                Ceiling::Staff => "Admins, editors and moderators",
                Ceiling::Admin => "Admins",
                _ => "Every active user",
            }
            .to_owned(),
            ceiling,
            params: Vec::new(),
        });
    let of_modules = modules.audiences().map(|(module, audience)| AudienceView {
        id: audience.id.to_string(),
        module: Some(module.id.to_string()),
        label: audience.label.to_string(),
        ceiling: audience.ceiling,
        params: audience
            .params
            .iter()
            .map(|p| ParamView {
                id: p.id.to_string(),
                of: if p.int { "int" } else { "string" }.to_owned(),
                required: p.required,
            })
            .collect(),
    });
    core.chain(of_modules).collect()
}

fn catalogue<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let rows = call
            .tx
            .query(
                "SELECT trigger_id, count(*), count(*) FILTER (WHERE enabled) FROM rules WHERE workspace_id = $1 GROUP BY 1",
                &[&call.workspace()?],
            )
            .await?;
        let mut used: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for row in &rows {
            used.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
        }
        let modules = call.modules;
        // Without a module nothing fires; core's own declarations are no news then.
        let known = modules.triggers().filter(|_| !modules.is_empty());
        let mut triggers: Vec<TriggerView> = known
            .map(|trigger| {
                let (rules, enabled_rules) = used.remove(&*trigger.id).unwrap_or_default();
                TriggerView {
                    id: trigger.id.to_string(),
                    dormant: false,
                    rules,
                    enabled_rules,
                    declared: Some(declared(modules, trigger)),
                }
            })
            .collect();
        triggers.extend(
            used.into_iter()
                .map(|(id, (rules, enabled_rules))| TriggerView {
                    id,
                    dormant: true,
                    rules,
                    enabled_rules,
                    declared: None,
                }),
        );
        Answer::of(&Catalogue {
            triggers,
            audiences: audiences(modules),
        })
    })
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    vec![Operation {
        scope: Some("entities:read"),
        summary: "What may fire, whom it may reach and what it says, and the audiences that segments are made of.",
        ..Operation::new(
            "get_triggers",
            Method::Get,
            "/v1/triggers",
            output::<Catalogue>,
            catalogue,
        )
    }]
}
