//! Paths into a frame's body, and reading only what they name.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use smallvec::SmallVec;

/// A dotted path of field names (`governor.acct`). Lists have no index in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path(Box<[Box<str>]>);

/// One value a path; most kinds need no more, and then nothing is allocated for the list.
type Values = SmallVec<[Option<Value>; 8]>;

/// Most steps of a path.
pub const MAX_STEPS: usize = 8;

impl Path {
    /// Reads a path: names of letters, digits, `_` and `-`, joined by dots. `None`: it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Path> {
        let name = |s: &str| {
            !s.is_empty()
                && s.len() <= 64
                && s.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
        };
        let steps: Vec<&str> = text.split('.').collect();
        if steps.len() > MAX_STEPS || !steps.iter().all(|s| name(s)) {
            return None;
        }
        Some(Path(steps.into_iter().map(Box::from).collect()))
    }

    /// The names, outermost first.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// What stands there in `body`; null is nothing.
    #[must_use]
    pub fn get<'a>(&self, body: &'a Value) -> Option<&'a Value> {
        self.said(body).filter(|v| !v.is_null())
    }

    /// What `body` says of it, null with it ([`Fields::said`]).
    fn said<'a>(&self, body: &'a Value) -> Option<&'a Value> {
        let mut at = body;
        for step in &self.0 {
            at = at.as_object()?.get(&**step)?;
            if at.is_null() {
                break;
            }
        }
        Some(at)
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// A scalar as the text that keys, subjects and parameters are made of; `None` for anything else.
#[must_use]
pub fn as_key(value: &Value) -> Option<std::borrow::Cow<'_, str>> {
    match value {
        Value::String(text) if !text.is_empty() && !text.contains('\0') => {
            Some(text.as_str().into())
        }
        Value::Number(n) => Some(n.to_string().into()),
        Value::Bool(b) => Some(if *b { "true" } else { "false" }.into()),
        _ => None,
    }
}

/// Where values of a body are asked for: the whole body, or what a [`Reader`] kept of it.
pub trait Fields {
    /// What the body says of the path: what stands there, or null where that is null, or something that it would stand in is
    /// (`governor: null` says that `governor.name` is null). `None`: the body does not speak of it.
    fn said(&self, path: &Path) -> Option<&Value>;

    /// What stands at the path; null is nothing.
    fn field(&self, path: &Path) -> Option<&Value> {
        self.said(path).filter(|v| !v.is_null())
    }
}

impl Fields for Value {
    fn said(&self, path: &Path) -> Option<&Value> {
        path.said(self)
    }
}

/// The paths of one kind of frame that its decisions need, as a tree: reading a body keeps these and skips the rest without
/// allocating for it.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    paths: Vec<Path>,
    root: Node,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// The place of the path that ends here.
    slot: Option<usize>,
    children: Vec<(Box<str>, Node)>,
}

impl Node {
    /// A name that stands twice counts as its last, with nothing left of what stood below the first.
    fn forget(&self, values: &mut Values) {
        for (_, child) in &self.children {
            if let Some(place) = child.slot.and_then(|slot| values.get_mut(slot)) {
                *place = None;
            }
            child.forget(values);
        }
    }

    /// It is null: so is all that would stand below it.
    fn is_null(&self, values: &mut Values) {
        for (_, child) in &self.children {
            if let Some(place) = child.slot.and_then(|slot| values.get_mut(slot)) {
                *place = Some(Value::Null);
            }
            child.is_null(values);
        }
    }
}

/// What a [`Reader`] kept of one body. It answers for the reader's paths alone.
#[derive(Debug)]
pub struct Seen<'r> {
    reader: &'r Reader,
    values: Values,
}

impl Reader {
    /// A reader of these paths.
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = Path>) -> Reader {
        let mut reader = Reader::default();
        for path in paths {
            if reader.paths.contains(&path) {
                continue;
            }
            let slot = reader.paths.len();
            let mut node = &mut reader.root;
            for step in path.steps() {
                let at = match node.children.iter().position(|(name, _)| &**name == step) {
                    Some(at) => at,
                    None => {
                        node.children.push((Box::from(step), Node::default()));
                        node.children.len() - 1
                    }
                };
                let Some((_, child)) = node.children.get_mut(at) else {
                    break;
                };
                node = child;
            }
            node.slot = Some(slot);
            reader.paths.push(path);
        }
        reader
    }

    /// Whether it reads nothing: then the body need not be looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Reads one body. Of a name that stands twice the last counts, as everywhere.
    ///
    /// # Errors
    /// It is no JSON. A body that is no object has none of the fields.
    pub fn read(&self, body: &str) -> Result<Seen<'_>, serde_json::Error> {
        let mut values: Values = SmallVec::new();
        values.resize(self.paths.len(), None);
        let mut de = serde_json::Deserializer::from_str(body);
        Walk {
            node: &self.root,
            values: &mut values,
            within: false,
        }
        .deserialize(&mut de)?;
        de.end()?;
        Ok(Seen {
            reader: self,
            values,
        })
    }
}

impl Fields for Seen<'_> {
    fn said(&self, path: &Path) -> Option<&Value> {
        let mut node = &self.reader.root;
        let mut within: Option<&Value> = None;
        for step in path.steps() {
            if let Some(value) = within {
                if value.is_null() {
                    break;
                }
                within = Some(value.as_object()?.get(step)?);
                continue;
            }
            node = node
                .children
                .iter()
                .find(|(name, _)| &**name == step)
                .map(|(_, n)| n)?;
            // A path that ends here holds everything below it.
            within = node
                .slot
                .and_then(|slot| self.values.get(slot))
                .and_then(Option::as_ref);
            if node.slot.is_some() && within.is_none() {
                return None;
            }
        }
        within
    }
}

struct Walk<'a> {
    node: &'a Node,
    values: &'a mut Values,
    /// Whether it is a member of the body, not the body itself: a body that is null has no fields, null ones neither.
    within: bool,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<(), D::Error> {
        if let Some(slot) = self.node.slot {
            let value = <Value as serde::Deserialize>::deserialize(de)?;
            if let Some(place) = self.values.get_mut(slot) {
                *place = Some(value);
            }
            return Ok(());
        }
        de.deserialize_any(self)
    }
}

/// A name of an object: only whether it is one of the wanted.
struct Name<'a>(&'a Node);

impl<'de, 'a> DeserializeSeed<'de> for Name<'a> {
    type Value = Option<&'a Node>;

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Self::Value, D::Error> {
        de.deserialize_str(self)
    }
}

impl<'de, 'a> Visitor<'de> for Name<'a> {
    type Value = Option<&'a Node>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self
            .0
            .children
            .iter()
            .find(|(n, _)| &**n == name)
            .map(|(_, node)| node))
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a frame's body")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(wanted) = map.next_key_seed(Name(self.node))? {
            match wanted {
                Some(node) => {
                    node.forget(self.values);
                    map.next_value_seed(Walk {
                        node,
                        values: &mut *self.values,
                        within: true,
                    })?;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        if self.within {
            self.node.is_null(self.values);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
