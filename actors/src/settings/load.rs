//! Reads the settings: defaults, then the file, then the environment. What is wrong is named with where it stands.

use super::Settings;
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use std::path::{Path, PathBuf};

/// The file that is read when none is named, if it is there.
pub const DEFAULT_FILE: &str = "config/millrace.toml";
const PREFIX: &str = "MILLRACE_";

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The named file is not there.
    #[error("there is no settings file {0}")]
    NoFile(PathBuf),
    /// A variable of the environment names no key.
    #[error("the variable {variable} names no setting: {reason}")]
    Variable {
        /// The variable.
        variable: String,
        /// What would be right.
        reason: String,
    },
    /// A key or value of the file is wrong.
    #[error("settings: {0}")]
    Invalid(String),
}

/// Loads from `file` (else [`DEFAULT_FILE`] if it exists) and the environment of this process.
///
/// # Errors
/// The file is missing or wrong, a key is unknown, a value does not fit.
pub fn load(file: Option<&Path>) -> Result<Settings, SettingsError> {
    let variables = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    load_from(file, variables)
}

/// As [`load`], with variables of the caller's.
///
/// # Errors
/// As [`load`].
pub fn load_from(
    file: Option<&Path>,
    mut variables: Vec<(String, String)>,
) -> Result<Settings, SettingsError> {
    if let Some(named) = file.filter(|f| !f.is_file()) {
        return Err(SettingsError::NoFile(named.to_owned()));
    }
    let file = file.unwrap_or(Path::new(DEFAULT_FILE));
    variables.sort();
    let mut figment = Figment::from(Serialized::defaults(Settings::default()));
    if file.is_file() {
        // Exactly that one: figment would look for it in the folders above too.
        figment = figment.merge(Toml::file_exact(file));
    }
    for (name, text) in &variables {
        if name == "DATABASE_URL" {
            if !text.is_empty() {
                let value = Value::from(text.clone());
                figment = figment.merge(Variable::new(name, &["database", "url"], value));
            }
            continue;
        }
        // `MILLRACE_SECRET_KEY` and the like are no settings: those have a section and two underscores.
        let Some((section, key)) = name.strip_prefix(PREFIX).and_then(|n| n.split_once("__"))
        else {
            continue;
        };
        let (path, value) =
            read(&section.to_lowercase(), &key.to_lowercase(), text).map_err(|reason| {
                SettingsError::Variable {
                    variable: name.clone(),
                    reason,
                }
            })?;
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        figment = figment.merge(Variable::new(name, &path, value));
    }
    figment
        .extract()
        .map_err(|errors| SettingsError::Invalid(say(errors)))
}

/// Finds the key that a variable means, and reads the text as that key's type, as the defaults show it. Two underscores lead
/// into a table within a section (`MILLRACE_DELIVERY__WEBHOOK__TIMEOUT_MS`).
fn read(section: &str, key: &str, text: &str) -> Result<(Vec<String>, Value), String> {
    let defaults =
        serde_json::to_value(Settings::default()).map_err(|e| format!("no defaults: {e}"))?;
    let names = |value: &serde_json::Value| {
        let keys = value.as_object().into_iter().flat_map(|o| o.keys());
        keys.map(|k| k.to_uppercase())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut known = defaults
        .get(section)
        .ok_or_else(|| format!("the sections are {}", names(&defaults)))?;
    let mut path = vec![section.to_owned()];
    let mut rest = key;
    loop {
        let (step, deeper) = match rest.split_once("__") {
            Some((step, deeper)) => (step, Some(deeper)),
            None => (rest, None),
        };
        let default = known
            .get(step)
            .ok_or_else(|| format!("the keys of that section are {}", names(known)))?;
        path.push(step.to_owned());
        match (default.as_object(), deeper) {
            // A table of free names. `MILLRACE_LOG__PROPERTIES__SASL_MECHANISM`: librdkafka's names have dots where a
            // variable cannot.
            (Some(table), Some(property)) if table.is_empty() => {
                path.push(property.replace('_', "."));
                return Ok((path, Value::from(text)));
            }
            (Some(_), Some(deeper)) => {
                known = default;
                rest = deeper;
            }
            (Some(_), None) => {
                return Err(
                    "it is a table; append two underscores and the name within it".to_owned(),
                );
            }
            (None, Some(_)) => return Err(format!("`{}` is no table", path.join("."))),
            (None, None) => return Ok((path, value_like(default, text)?)),
        }
    }
}

/// The text as a value of the default's type.
fn value_like(default: &serde_json::Value, text: &str) -> Result<Value, String> {
    Ok(match default {
        serde_json::Value::Bool(_) => Value::from(
            text.parse::<bool>()
                .map_err(|_| "it is `true` or `false`")?,
        ),
        serde_json::Value::Number(_) => Value::from(
            text.parse::<u64>()
                .map_err(|_| "it is a whole number, not negative")?,
        ),
        serde_json::Value::Array(_) => {
            let items = text.split(',').map(str::trim).filter(|t| !t.is_empty());
            Value::from(items.map(str::to_owned).collect::<Vec<String>>())
        }
        serde_json::Value::Null | serde_json::Value::String(_) | serde_json::Value::Object(_) => {
            Value::from(text)
        }
    })
}

/// One value of one variable.
struct Variable {
    name: String,
    data: Dict,
}

impl Variable {
    fn new(name: &str, path: &[&str], value: Value) -> Variable {
        let mut value = value;
        let mut data = Dict::new();
        for (depth, step) in path.iter().enumerate().rev() {
            let mut dict = Dict::new();
            dict.insert((*step).to_owned(), value);
            if depth == 0 {
                data = dict;
                break;
            }
            value = Value::from(dict);
        }
        Variable {
            name: name.to_owned(),
            data,
        }
    }
}

impl Provider for Variable {
    fn metadata(&self) -> Metadata {
        Metadata::named(format!("the variable {}", self.name))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.data.clone()))
    }
}

/// Every fault in one line each; values are not repeated, since they may be secrets.
fn say(errors: figment::Error) -> String {
    use figment::error::Kind;
    errors
        .into_iter()
        .map(|error| {
            let key = error.path.join(".");
            let what = match &error.kind {
                Kind::UnknownField(name, known) => {
                    let place = match key.trim_end_matches(name.as_str()).trim_end_matches('.') {
                        "" => "at the top".to_owned(),
                        section => format!("in [{section}]"),
                    };
                    format!(
                        "unknown key `{name}` {place}; there are {}",
                        known.join(", ")
                    )
                }
                Kind::InvalidType(_, expected) => format!("`{key}` must be {expected}"),
                Kind::InvalidValue(_, expected) => format!("`{key}` must be {expected}"),
                Kind::UnknownVariant(got, known) => {
                    format!("`{key}` is `{got}`; it may be {}", known.join(", "))
                }
                other if key.is_empty() => other.to_string(),
                other => format!("`{key}`: {other}"),
            };
            let place = error.metadata.as_ref().map(|m| match &m.source {
                Some(source) => source.to_string(),
                None => m.name.to_string(),
            });
            match place {
                Some(place) => format!("{what} (in {place})"),
                None => what,
            }
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests;
