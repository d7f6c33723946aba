//! The manifests that this binary brings, and those of a folder that an operator names.

use super::compile::{Fault, Rule, compile};
use super::registry::Modules;
use std::path::Path;

/// Core's own declarations.
const CORE: (&str, &str) = ("core.toml", include_str!("core.toml"));

/// The manifests within this binary: file and text. The list stands beside them, so that no source of the program names a module.
pub const SHIPPED: &[(&str, &str)] = &include!("../../../config/modules/shipped.in");

/// The committed declarations of core and of [`SHIPPED`].
pub const FROZEN: &str = include_str!("../../../config/modules/manifest.json");

/// Every module that there is, by id: the manifests of `dir`, else those within this binary.
///
/// # Errors
/// The folder cannot be read.
pub fn ids(dir: Option<&Path>) -> Result<Vec<String>, Vec<Fault>> {
    let Some(dir) = dir else {
        let stems = SHIPPED
            .iter()
            .filter_map(|(file, _)| file.strip_suffix(".toml"));
        return Ok(stems.map(str::to_owned).collect());
    };
    let read = || -> std::io::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let name = entry?.file_name();
            ids.extend(
                name.to_str()
                    .and_then(|n| n.strip_suffix(".toml"))
                    .map(str::to_owned),
            );
        }
        ids.sort();
        Ok(ids)
    };
    read().map_err(|e| {
        vec![Fault {
            file: dir.display().to_string(),
            key: String::new(),
            rule: Rule::Unreadable(e.to_string()),
        }]
    })
}

/// Loads core's declarations and the enabled modules: of `dir` where there is one, else of this binary.
///
/// # Errors
/// Every fault of every manifest; an enabled module without a manifest.
pub fn load(enabled: &[String], dir: Option<&Path>) -> Result<Modules, Vec<Fault>> {
    let mut modules = Vec::new();
    let mut faults = Vec::new();
    let mut take = |file: &str, text: &str, faults: &mut Vec<Fault>| match compile(file, text) {
        Ok(module) => modules.push((file.to_owned(), module)),
        Err(found) => faults.extend(found),
    };
    take(CORE.0, CORE.1, &mut faults);
    for (place, id) in enabled.iter().enumerate() {
        let missing = |rule| Fault {
            file: "settings".to_owned(),
            key: format!("modules.enabled.{place}"),
            rule,
        };
        if !super::ids::is_module(id) || id == super::registry::CORE {
            faults.push(missing(Rule::ModuleId(id.clone())));
            continue;
        }
        if enabled.iter().take(place).any(|other| other == id) {
            faults.push(missing(Rule::Twice(id.clone())));
            continue;
        }
        let name = format!("{id}.toml");
        let Some(dir) = dir else {
            match SHIPPED.iter().find(|(file, _)| *file == name) {
                Some((file, text)) => take(file, text, &mut faults),
                None => faults.push(missing(Rule::NoManifest(id.clone()))),
            }
            continue;
        };
        let file = dir.join(&name);
        let shown = file.display().to_string();
        match std::fs::read_to_string(&file) {
            Ok(text) => take(&shown, &text, &mut faults),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                faults.push(missing(Rule::NoManifest(id.clone())));
            }
            Err(e) => faults.push(Fault {
                file: shown,
                key: String::new(),
                rule: Rule::Unreadable(e.to_string()),
            }),
        }
    }
    if faults.is_empty() {
        Modules::assemble(modules)
    } else {
        Err(faults)
    }
}

#[cfg(test)]
mod frames;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod words;
