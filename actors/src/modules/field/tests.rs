use super::{Fields, Path, Reader, as_key};
use proptest::prelude::*;
use serde_json::{Value, json};

fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

#[test]
fn a_path_is_names_and_dots() {
    for good in ["a", "a.b_c.d-e", "A1"] {
        assert_eq!(path(good).to_string(), good);
    }
    for bad in [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a[0]",
        "é",
        "a.b.c.d.e.f.g.h.i",
    ] {
        assert_eq!(Path::parse(bad), None, "{bad:?}");
    }
}

#[test]
fn null_is_nothing_and_a_key_is_a_scalar() {
    let body = json!({"a": null, "b": {"c": 7}, "d": [1]});
    assert_eq!(path("a").get(&body), None);
    assert_eq!(path("b.c").get(&body), Some(&json!(7)));
    assert_eq!(path("d.x").get(&body), None);
    assert_eq!(as_key(&json!(7)).as_deref(), Some("7"));
    for none in [json!(""), json!("a\0b"), json!([1]), json!({}), Value::Null] {
        assert_eq!(as_key(&none), None, "{none}");
    }
}

#[test]
fn a_path_above_another_answers_for_both() {
    for order in [["a", "a.b"], ["a.b", "a"]] {
        let reader = Reader::new(order.map(path));
        let seen = reader
            .read(r#"{"x": {"a": 1}, "a": {"b": 2, "c": 3}}"#)
            .unwrap();
        assert_eq!(seen.field(&path("a.b")), Some(&json!(2)), "{order:?}");
        assert_eq!(seen.field(&path("a")), Some(&json!({"b": 2, "c": 3})));
        assert_eq!(seen.field(&path("x")), None);
    }
}

#[test]
fn what_is_no_json_is_an_error_and_what_is_no_object_has_no_fields() {
    let reader = Reader::new([path("a")]);
    for bad in ["", "{", "{\"a\":1}x", "{\"b\":}"] {
        assert!(reader.read(bad).is_err(), "{bad}");
    }
    for bare in ["1", "-1", "1.5", "true", "null", "\"a\"", "[{\"a\":1}]"] {
        assert_eq!(reader.read(bare).unwrap().field(&path("a")), None, "{bare}");
    }
    let twice = reader.read(r#"{"a":1,"a":2}"#).unwrap();
    assert_eq!(twice.field(&path("a")), Some(&json!(2)));
    let below = Reader::new([path("a.b")]);
    let twice = below.read(r#"{"a":{"b":1},"a":2}"#).unwrap();
    assert_eq!(twice.field(&path("a.b")), None);
}

#[test]
fn what_is_null_is_spoken_of_and_what_is_absent_is_not() {
    let null = Some(Value::Null);
    for (body, want) in [
        (json!({"a": {"b": 1}}), Some(json!(1))),
        (json!({"a": {"b": null}}), null.clone()),
        // What it would stand in is null.
        (json!({"a": null}), null),
        (json!({"a": {}}), None),
        (json!({"a": 7}), None),
        (json!({}), None),
        (Value::Null, None),
    ] {
        for paths in [&["a.b"][..], &["a", "a.b"]] {
            let reader = Reader::new(paths.iter().map(|p| path(p)));
            let text = body.to_string();
            let seen = reader.read(&text).unwrap();
            assert_eq!(seen.said(&path("a.b")).cloned(), want, "{paths:?} {text}");
            assert_eq!(body.said(&path("a.b")).cloned(), want, "{text}");
            assert_eq!(seen.field(&path("a.b")), path("a.b").get(&body), "{text}");
        }
    }
    // Of a name that stands twice the last counts.
    let reader = Reader::new([path("a.b")]);
    for (text, want) in [
        (r#"{"a":null,"a":{"c":1}}"#, None),
        (r#"{"a":{"b":1},"a":null}"#, Some(&Value::Null)),
    ] {
        let seen = reader.read(text).unwrap();
        assert_eq!(seen.said(&path("a.b")), want, "{text}");
    }
}

fn body() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c\"\\\\é]{0,4}".prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map("[a-c]", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn reading_in_part_sees_what_reading_whole_sees(
        body in body(),
        paths in proptest::collection::vec("[a-c](\\.[a-c]){0,2}", 0..6),
    ) {
        let paths: Vec<Path> = paths.iter().map(|p| path(p)).collect();
        let reader = Reader::new(paths.clone());
        let text = body.to_string();
        let seen = reader.read(&text).unwrap();
        for p in &paths {
            prop_assert_eq!(seen.field(p), p.get(&body), "{} in {}", p, text);
            prop_assert_eq!(seen.said(p), body.said(p), "{} in {}", p, text);
        }
    }
}
