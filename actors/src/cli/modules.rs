//! `millrace modules`: manifests of games, checked and shown. Needs no database.

use super::output::Listing;
use super::process::seeding::told;
use super::{Context, output};
use crate::modules::{Fault, Modules, Rule, frozen, shipped};
use anyhow::Context as _;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Read every manifest, and compare their declarations with the committed ones.
    #[command(after_help = "Examples:\n  \
        millrace modules check                     those within this program\n  \
        millrace modules check --dir config/modules\n  \
        millrace modules check --dir config/modules --write   commit what they declare now\n\
        Exit codes: 0 all is well, 1 a manifest is wrong or has drifted; each fault names file, key and rule.")]
    Check {
        /// The folder of the manifests, with `manifest.json` [default: modules.dir of the settings, else those within this program].
        #[arg(long)]
        dir: Option<PathBuf>,
        /// Write `manifest.json` instead of comparing with it. A version that had to be raised is still a fault.
        #[arg(long)]
        write: bool,
    },
    /// Every module, and whether it is enabled.
    #[command(after_help = "Examples:\n  \
        millrace modules list\n  \
        millrace --json modules list")]
    List,
    /// What a module declares, or one of its triggers.
    #[command(after_help = "Examples:\n  \
        millrace modules show MODULE\n  \
        millrace modules show MODULE.THE.TRIGGER       its variables\n\
        `millrace modules list` names the modules.")]
    Show {
        /// A module's id, or a trigger's.
        id: String,
    },
}

pub(super) fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    match args {
        Args::Check { dir, write } => check(context, dir, write),
        Args::List => list(context),
        Args::Show { id } => show(context, &id),
    }
}

/// Everything there is, enabled or not.
fn all(dir: Option<&Path>) -> Result<Modules, Vec<Fault>> {
    shipped::load(&shipped::ids(dir)?, dir)
}

fn check(context: &Context, dir: Option<PathBuf>, write: bool) -> anyhow::Result<ExitCode> {
    let dir = dir.or_else(|| context.settings().modules.dir.clone());
    let (modules, mut faults) = match all(dir.as_deref()) {
        Ok(modules) => (modules, Vec::new()),
        Err(faults) => (Modules::default(), faults),
    };
    if faults.is_empty() {
        let file = dir.as_deref().map(|d| d.join(frozen::FILE));
        let (name, committed) = match &file {
            Some(file) => (
                file.display().to_string(),
                std::fs::read_to_string(file).ok(),
            ),
            None => (frozen::FILE.to_owned(), Some(shipped::FROZEN.to_owned())),
        };
        faults = match committed {
            Some(text) => frozen::drift(&name, &text, &modules),
            None if write => Vec::new(),
            None => vec![Fault {
                file: name,
                key: String::new(),
                rule: Rule::Unreadable("there is none; `--write` makes it".to_owned()),
            }],
        };
        if write {
            let file =
                file.context("--write needs --dir: what is within this program cannot be written")?;
            faults.retain(|f| matches!(f.rule, Rule::VersionNotRaised(_)));
            if faults.is_empty() {
                std::fs::write(&file, frozen::text(&frozen::freeze(&modules)))
                    .with_context(|| format!("writing {}", file.display()))?;
            }
        }
    }
    if faults.is_empty() {
        let count = modules.games().count();
        let triggers: usize = modules.games().map(|m| m.triggers.len()).sum();
        context.say(
            &format!("{count} modules, {triggers} triggers: all is well"),
            &json!({"modules": count, "triggers": triggers, "faults": []}),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    if context.json() {
        let each = faults
            .iter()
            .map(|f| json!({"file": f.file, "key": f.key, "rule": f.rule.to_string()}));
        context.answer_json(&json!({"faults": each.collect::<Vec<Value>>()}))?;
    } else {
        for fault in &faults {
            output::print(&fault.to_string());
        }
    }
    Ok(ExitCode::FAILURE)
}

fn list(context: &Context) -> anyhow::Result<ExitCode> {
    let settings = &context.settings().modules;
    let modules = all(settings.dir.as_deref()).map_err(|faults| told(&faults))?;
    let mut listing = Listing::new(&[
        "module", "enabled", "protocol", "frames", "triggers", "mappings", "rules", "label",
    ]);
    for module in modules.games() {
        let rules: usize = module.rule_groups.iter().map(|g| g.rules.len()).sum();
        listing.row(vec![
            json!(module.id),
            json!(settings.enabled.iter().any(|id| **id == *module.id)),
            json!(module.protocol),
            json!(module.kinds.len()),
            json!(module.triggers.len()),
            json!(module.mappings.len()),
            json!(rules),
            json!(module.label),
        ]);
    }
    answer(context, &listing)?;
    Ok(ExitCode::SUCCESS)
}

fn answer(context: &Context, listing: &Listing) -> anyhow::Result<()> {
    if context.json() {
        return context.answer_json(&listing.json());
    }
    output::print(&listing.table());
    Ok(())
}

fn show(context: &Context, id: &str) -> anyhow::Result<ExitCode> {
    let dir = context.settings().modules.dir.as_deref();
    let modules = all(dir).map_err(|faults| told(&faults))?;
    if let Some(trigger) = modules.trigger(id) {
        let mut listing = Listing::new(&["variable", "type", "required", "subject", "example"]);
        for (place, variable) in trigger.variables.iter().enumerate() {
            listing.row(vec![
                json!(variable.name),
                json!(variable.of),
                json!(variable.required),
                json!(place == trigger.subject),
                variable.example.clone(),
            ]);
        }
        if !context.json() {
            output::print(&format!(
                "{}: {}\n{}\naudience {}, ceiling {}, version {}",
                trigger.id,
                trigger.label,
                trigger.description,
                trigger.audience,
                trigger.ceiling,
                trigger.version
            ));
        }
        answer(context, &listing)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(module) = modules.iter().find(|m| &*m.id == id) else {
        anyhow::bail!(
            "there is no module and no trigger `{id}`; `millrace modules list` names the modules"
        );
    };
    let mut listing = Listing::new(&[
        "trigger", "audience", "ceiling", "subject", "from", "push", "label",
    ]);
    for (place, trigger) in module.triggers.iter().enumerate() {
        let mut from: Vec<&str> = Vec::new();
        for mapping in module.mappings.iter().filter(|m| m.trigger == place) {
            from.extend(mapping.frames.iter().map(|f| &**f));
        }
        from.dedup();
        listing.row(vec![
            json!(trigger.id),
            json!(trigger.audience),
            json!(trigger.ceiling),
            json!(trigger.subject_key()),
            json!(from),
            json!(modules.stream(&trigger.id).is_some()),
            json!(trigger.label),
        ]);
    }
    answer(context, &listing)?;
    Ok(ExitCode::SUCCESS)
}
