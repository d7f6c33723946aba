//! What must hold of a frame's body before a mapping looks at it. An absent value makes every comparison false.

use super::field::{Fields, Path};
use serde_json::Value;

/// One comparison.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The value compared.
    pub path: Path,
    /// With what.
    pub test: Test,
}

/// How a value is compared.
#[derive(Clone, Debug)]
pub enum Test {
    /// Equal to this.
    Eq(Value),
    /// There, and not equal to this.
    Ne(Value),
    /// One of these.
    OneOf(Vec<Value>),
    /// A number of at least this.
    AtLeast(f64),
    /// A number of at most this.
    AtMost(f64),
    /// There and not null, or not.
    Present(bool),
    /// There, and equal to what stands at the other path.
    SameAs(Path),
}

impl Condition {
    /// Whether it holds.
    #[must_use]
    pub fn holds(&self, body: &impl Fields) -> bool {
        let found = body.field(&self.path);
        if let Test::Present(wanted) = self.test {
            return found.is_some() == wanted;
        }
        let Some(value) = found else { return false };
        match &self.test {
            Test::Eq(other) => same(value, other),
            Test::Ne(other) => !same(value, other),
            Test::OneOf(others) => others.iter().any(|other| same(value, other)),
            Test::AtLeast(bound) => value.as_f64().is_some_and(|n| n >= *bound),
            Test::AtMost(bound) => value.as_f64().is_some_and(|n| n <= *bound),
            Test::SameAs(path) => body.field(path).is_some_and(|other| same(value, other)),
            Test::Present(_) => false,
        }
    }

    /// The paths that it reads.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let other = match &self.test {
            Test::SameAs(path) => Some(path),
            _ => None,
        };
        std::iter::once(&self.path).chain(other)
    }
}

/// Equality of JSON in which 100 and 100.0 are one number.
#[must_use]
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::{Condition, Test};
    use crate::modules::field::Path;
    use serde_json::json;

    #[test]
    fn an_absent_value_makes_every_comparison_false() {
        let path = || Path::parse("gone").unwrap();
        let body = json!({"here": 1, "gone": null});
        for test in [
            Test::Eq(json!(1)),
            Test::Ne(json!(1)),
            Test::OneOf(vec![json!(1)]),
            Test::AtLeast(0.0),
            Test::AtMost(0.0),
            Test::SameAs(Path::parse("here").unwrap()),
            Test::SameAs(path()),
            Test::Present(true),
        ] {
            let condition = Condition { path: path(), test };
            assert!(!condition.holds(&body), "{condition:?}");
        }
        let absent = Condition {
            path: path(),
            test: Test::Present(false),
        };
        assert!(absent.holds(&body));
    }

    #[test]
    fn comparisons_hold_of_what_is_there() {
        let body = json!({"base": 100, "cap": 100.0, "to": "IDOC", "n": 7.5});
        let holds = |path: &str, test| {
            Condition {
                path: Path::parse(path).unwrap(),
                test,
            }
            .holds(&body)
        };
        assert!(holds("base", Test::SameAs(Path::parse("cap").unwrap())));
        assert!(holds(
            "to",
            Test::OneOf(vec![json!("Greatly"), json!("IDOC")])
        ));
        assert!(holds("to", Test::Ne(json!("idoc"))));
        assert!(holds("n", Test::AtLeast(7.5)) && holds("n", Test::AtMost(7.5)));
        assert!(!holds("to", Test::AtLeast(0.0)));
        assert!(!holds("n", Test::Eq(json!("7.5"))));
    }
}
