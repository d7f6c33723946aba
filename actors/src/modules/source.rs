//! Where a variable's value comes from: a path, or a text with expressions in it (`{{ … }}`, the expressions of minijinja), both
//! compiled when the manifest is loaded.
//!
//! An expression sees the body's fields by name, the frame's own facts under `frame` (`shard`, `boot`, `seq`, `kind`, `key`, `at`),
//! and, of a firing that a roster's change brought about, `member` (`slot`, `account`). These two names hide fields of the body of the same name. What is absent is
//! undefined and prints as nothing.

use super::field::Path;
use super::mapping::Scene;
use minijinja::{Environment, Expression, UndefinedBehavior};
use serde_json::Value;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::LazyLock;

/// How much one expression may compute, so that no manifest stalls a partition.
const FUEL: u64 = 10_000;

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_fuel(Some(FUEL));
    environment
});

/// Where a value comes from.
#[derive(Debug)]
pub enum Source {
    /// What stands at a path, with its type.
    Path(Path),
    /// A text; of one expression alone, that expression's value with its type.
    Text(Text),
}

/// A text with expressions.
#[derive(Debug)]
pub struct Text {
    parts: Vec<Part>,
}

enum Part {
    Literal(Box<str>),
    /// An expression that is a path needs no engine.
    Path(Path),
    Expression {
        source: Box<str>,
        compiled: Expression<'static, 'static>,
    },
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Literal(text) => write!(f, "{text:?}"),
            Part::Path(path) => write!(f, "{{{{ {path} }}}}"),
            Part::Expression { source, .. } => write!(f, "{{{{ {source} }}}}"),
        }
    }
}

impl Source {
    /// Reads a path; a text where there are braces, or a slash first (a link of the site, which no path can be).
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Source, String> {
        if text.starts_with('/')
            || text.contains("{{")
            || text.contains("{%")
            || text.contains("{#")
        {
            return Text::parse(text).map(Source::Text);
        }
        Path::parse(text).map(Source::Path).ok_or_else(|| {
            format!("`{text}` is no path (names joined by dots), nor a text with {{{{ … }}}}")
        })
    }

    /// The value in that scene; `None`: there is none.
    #[must_use]
    pub fn value(&self, view: &View<'_>) -> Option<Value> {
        match self {
            Source::Path(path) => view.get(path).map(Cow::into_owned),
            Source::Text(text) => text.value(view),
        }
    }

    /// The paths that it reads, as far as they can be told.
    #[must_use]
    pub fn paths(&self) -> Vec<Path> {
        match self {
            Source::Path(path) => vec![path.clone()],
            Source::Text(text) => text.paths(),
        }
    }
}

impl Text {
    /// Reads a text.
    ///
    /// # Errors
    /// A brace without its other, a statement (`{% … %}`), an expression that does not compile.
    pub fn parse(text: &str) -> Result<Text, String> {
        if text.contains("{%") || text.contains("{#") {
            return Err("statements and comments have no place here, expressions alone".to_owned());
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (inside, behind) = after
                .split_once("}}")
                .ok_or_else(|| "`{{` without its `}}`".to_owned())?;
            if !before.is_empty() {
                parts.push(Part::Literal(before.into()));
            }
            let inside = inside.trim();
            parts.push(match Path::parse(inside).filter(|_| !is_word(inside)) {
                Some(path) => Part::Path(path),
                None => Part::Expression {
                    source: inside.into(),
                    compiled: ENVIRONMENT
                        .compile_expression_owned(inside.to_owned())
                        .map_err(|e| {
                            format!("`{inside}`: {}", e.detail().unwrap_or("no expression"))
                        })?,
                },
            });
            rest = behind;
        }
        if rest.contains("}}") {
            return Err("`}}` without its `{{`".to_owned());
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.into()));
        }
        Ok(Text { parts })
    }

    /// The text in that scene. What is absent leaves nothing.
    #[must_use]
    pub fn render(&self, view: &View<'_>) -> String {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.push_str(text),
                Part::Path(path) => match view.get(path).as_deref() {
                    Some(Value::String(text)) => out.push_str(text),
                    Some(other) => out.push_str(&other.to_string()),
                    None => {}
                },
                Part::Expression { compiled, .. } => {
                    if let Ok(value) = compiled.eval(view.context()) {
                        out.push_str(&value.to_string());
                    }
                }
            }
        }
        out
    }

    /// The value: of one expression alone with its type, else the text; an empty text is none.
    #[must_use]
    pub fn value(&self, view: &View<'_>) -> Option<Value> {
        match self.parts.as_slice() {
            [Part::Path(path)] => view.get(path).map(Cow::into_owned),
            [Part::Expression { compiled, .. }] => {
                let value = compiled.eval(view.context()).ok()?;
                let value = serde_json::to_value(&value).ok()?;
                (!value.is_null()).then_some(value)
            }
            _ => Some(self.render(view))
                .filter(|t| !t.is_empty())
                .map(Value::from),
        }
    }

    /// The paths that it reads.
    #[must_use]
    pub fn paths(&self) -> Vec<Path> {
        let mut paths = Vec::new();
        for part in &self.parts {
            match part {
                Part::Literal(_) => {}
                Part::Path(path) => paths.push(path.clone()),
                Part::Expression { compiled, .. } => {
                    let names = compiled.undeclared_variables(true);
                    paths.extend(names.iter().filter_map(|n| Path::parse(n)));
                }
            }
        }
        paths
    }
}

/// Numbers and the words of the expression language look like names and are none.
fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        || text.contains('-')
        || matches!(text, "true" | "false" | "none" | "True" | "False" | "None")
}

/// A scene as sources see it. The engine's form of it is made once, and only when an expression asks.
pub struct View<'a> {
    scene: &'a Scene<'a>,
    context: OnceCell<minijinja::Value>,
}

impl<'a> View<'a> {
    /// A view of that scene.
    #[must_use]
    pub fn new(scene: &'a Scene<'a>) -> View<'a> {
        View {
            scene,
            context: OnceCell::new(),
        }
    }

    fn get(&self, path: &Path) -> Option<Cow<'a, Value>> {
        let mut steps = path.steps();
        let scene = self.scene;
        match steps.next() {
            Some("frame") => Some(Cow::Owned(match (steps.next()?, steps.next()) {
                ("shard", None) => scene.shard.into(),
                ("boot", None) => scene.boot.into(),
                ("seq", None) => scene.seq.into(),
                ("kind", None) => scene.kind.into(),
                ("key", None) => scene.key.into(),
                ("at", None) => scene.at.rfc3339().into(),
                _ => return None,
            })),
            Some("member") => {
                let member = scene.member?;
                Some(Cow::Owned(match (steps.next()?, steps.next()) {
                    ("slot", None) => member.slot.into(),
                    ("account", None) => member.account.into(),
                    _ => return None,
                }))
            }
            _ => path.get(scene.body).map(Cow::Borrowed),
        }
    }

    fn context(&self) -> &minijinja::Value {
        self.context.get_or_init(|| {
            let mut whole = match without_nulls(self.scene.body) {
                Value::Object(fields) => fields,
                _ => serde_json::Map::new(),
            };
            let scene = self.scene;
            whole.insert(
                "frame".to_owned(),
                serde_json::json!({
                    "shard": scene.shard, "boot": scene.boot, "seq": scene.seq,
                    "kind": scene.kind, "key": scene.key, "at": scene.at.rfc3339(),
                }),
            );
            whole.remove("member");
            if let Some(member) = scene.member {
                whole.insert(
                    "member".to_owned(),
                    serde_json::json!({"slot": member.slot, "account": member.account}),
                );
            }
            minijinja::Value::from_serialize(&whole)
        })
    }
}

/// Null is nothing here as everywhere.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, v)| !v.is_null());
            Value::Object(kept.map(|(k, v)| (k.clone(), without_nulls(v))).collect())
        }
        Value::Array(entries) => Value::Array(entries.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}
