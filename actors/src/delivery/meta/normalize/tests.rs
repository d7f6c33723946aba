use super::*;
use proptest::prelude::*;

const VECTORS: &str = include_str!("../vectors.tsv");

#[test]
fn every_vector_holds() {
    let mut failed = Vec::new();
    let mut seen = 0;
    for line in VECTORS.lines().filter(|l| !l.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, raw, known, normalised, digest, ..] = columns.as_slice() else {
            panic!("{line}");
        };
        // The client's own: see there.
        if *name == "appsecret_proof" {
            continue;
        }
        seen += 1;
        let raw = raw
            .replace("\\t", "\t")
            .replace("\\n", "\n")
            .replace("\\r", "\r");
        let mut context = Context::default();
        match known.split_once('=') {
            Some(("country", c)) => context.country = Some(c),
            Some(("calling_code", c)) => context.calling_code = Some(c),
            Some(("clicked_ms", ms)) => context.clicked_ms = Some(ms.parse().unwrap()),
            _ => assert_eq!(*known, "", "{line}"),
        }
        let field: Field = name.parse().unwrap();
        let right = match normalize(field, &raw, &context) {
            Normalized::Hashed {
                normalised: form,
                sha256_hex,
            } => form == *normalised && sha256_hex == *digest,
            Normalized::Plain(value) => value == *normalised && *digest == "(do not hash)",
            Normalized::Omitted(_) => *normalised == "(omit)",
        };
        if !right {
            failed.push(format!(
                "{line}\n    {:?}",
                normalize(field, &raw, &context)
            ));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(seen > 260, "{seen}");
}

#[test]
fn an_unknown_field_names_those_that_are_known() {
    let error = "email".parse::<Field>().unwrap_err().to_string();
    assert!(
        error.contains("`email`") && error.contains("em, ph, fn"),
        "{error}"
    );
}

#[test]
fn five_letters_that_end_at_a_blank_are_four() {
    let sent = |value| normalize(Field::F5Last, value, &Context::default());
    assert_eq!(sent("Vand Damme"), sent("vand"));
}

fn contexts() -> impl Strategy<Value = (Option<String>, Option<String>, Option<i64>)> {
    (
        proptest::option::of("[a-zA-Z]{2}|\\PC{0,3}"),
        proptest::option::of("[0-9]{0,4}|\\PC{0,3}"),
        proptest::option::of(any::<i64>()),
    )
}

proptest! {
    #[test]
    fn any_text_is_normalised_and_nothing_empty_is_hashed(
        value in "\\PC*|[\\s\\S]{0,30}",
        (country, calling_code, clicked_ms) in contexts(),
    ) {
        let context = Context {
            country: country.as_deref(),
            calling_code: calling_code.as_deref(),
            clicked_ms,
        };
        for field in Field::ALL {
            match normalize(field, &value, &context) {
                Normalized::Hashed { normalised, sha256_hex } => {
                    prop_assert!(field.is_hashed());
                    prop_assert!(!normalised.is_empty());
                    prop_assert!(sha256_hex != DIGEST_OF_NOTHING || normalised == DIGEST_OF_NOTHING);
                    prop_assert_eq!(sha256_hex.len(), 64);
                }
                Normalized::Plain(sent) => {
                    prop_assert!(!field.is_hashed());
                    prop_assert!(!sent.is_empty());
                }
                Normalized::Omitted(why) => prop_assert!(!why.is_empty()),
            }
        }
    }

    #[test]
    fn a_digest_is_never_hashed_again(digest in "[0-9a-fA-F]{64}", field in proptest::sample::select(Field::ALL.to_vec())) {
        if field.is_hashed() {
            let once = normalize(field, &digest, &Context::default()).into_sent().unwrap();
            prop_assert_eq!(&once, &digest.to_lowercase());
            prop_assert_eq!(normalize(field, &once, &Context::default()).into_sent(), Some(once));
        }
    }

    #[test]
    fn what_is_in_its_form_stays_in_it(value in "\\PC{1,20}", field in proptest::sample::select(Field::ALL.to_vec())) {
        if let Normalized::Hashed { normalised, .. } = normalize(field, &value, &Context::default()) {
            let again = normalize(field, &normalised, &Context::default());
            if let Normalized::Hashed { normalised: second, .. } = again {
                prop_assert_eq!(second, normalised);
            }
        }
    }
}
