use super::*;
use proptest::prelude::*;

fn go(query: &str) -> Result<Postback<'_>, &'static str> {
    read(query, 1, Micros(0), &NetworkRules::default())
}

fn why(query: &str) -> &'static str {
    go(query).err().unwrap_or("read")
}

#[test]
fn click_id_before_ct1_before_sub2() {
    assert_eq!(
        go("sub2=c&ct1=b&click_id=a").map(|p| p.click_id.into_owned()),
        Ok("a".into())
    );
    assert_eq!(
        go("sub2=c&ct1=b&click_id=").map(|p| p.click_id.into_owned()),
        Ok("b".into())
    );
    assert_eq!(
        go("sub2=c&ct1=+").map(|p| p.click_id.into_owned()),
        Ok("c".into())
    );
    assert_eq!(why("payout=1"), reason::CLICK_ID_MISSING);
    for q in [
        "sub2=c&ct1=b&click_id=a",
        "sub2=c&click_id=%20",
        "ct1=%2Bx",
        "",
    ] {
        assert_eq!(
            click_id_of(q),
            go(q).map(|p| p.click_id.into_owned()).unwrap_or_default(),
            "{q}"
        );
    }
}

#[test]
fn aliases_agree_or_are_refused() {
    assert_eq!(
        go("click_id=a&txid=1&transaction_id=1").map(|p| p.txid),
        Ok(Some("1".into()))
    );
    assert_eq!(
        why("click_id=a&txid=1&transaction_id=2"),
        reason::ALIAS_CONFLICT
    );
    assert_eq!(
        go("click_id=a&txid=&transaction_id=2").map(|p| p.txid),
        Ok(Some("2".into()))
    );
    assert_eq!(
        why("click_id=a&event_id=1&provider_event_id=2"),
        reason::ALIAS_CONFLICT
    );
    assert_eq!(why("click_id=a&event=x&event=y"), reason::ALIAS_CONFLICT);
}

#[test]
fn a_numeric_event_is_the_provider_event_too() {
    let p = go("click_id=a&event=007").expect("reads");
    assert_eq!(
        (p.event.as_deref(), p.provider_event.as_deref()),
        (Some("007"), Some("007"))
    );
    let p = go("click_id=a&event=7&event_id=9").expect("reads");
    assert_eq!(p.provider_event.as_deref(), Some("9"));
    assert_eq!(
        go("click_id=a&event=sale").map(|p| p.provider_event),
        Ok(None)
    );
    assert_eq!(
        why("click_id=a&event=7&event_id=x9"),
        reason::PROVIDER_EVENT_MALFORMED
    );
}

#[test]
fn payouts() {
    assert_eq!(go("click_id=a&payout=").map(|p| p.payout), Ok(None));
    assert_eq!(
        go("click_id=a&payout=0").map(|p| p.payout),
        Ok(Some(Decimal::ZERO))
    );
    assert_eq!(
        go("click_id=a&payout=&amount=2").map(|p| p.payout),
        Ok(Some(Decimal::TWO))
    );
    assert_eq!(why("click_id=a&payout=NaN"), reason::PAYOUT_MALFORMED);
    assert_eq!(why("click_id=a&payout=-1"), reason::PAYOUT_MALFORMED);
    assert!(go("click_id=a&payout=-1&status=rejected").is_ok());
    assert_eq!(why("click_id=a&payout=1,5"), reason::PAYOUT_MALFORMED);
}

#[test]
fn macros_in_what_books_are_refused_and_elsewhere_forgiven() {
    for q in [
        "click_id={sub2}",
        "click_id=a&txid=%7Btransaction_id%7D",
        "click_id=a&payout=[PAYOUT]",
        "click_id=a&status=%23s%23",
        "click_id=a&event=<e>",
        "click_id=a&event_id=${e}",
        "click_id=a&external_conversion_id={{x}}",
    ] {
        assert_eq!(why(q), reason::MACRO_UNSUBSTITUTED, "{q}");
    }
    let p = go("click_id=a&offer_id={offer_id}&email_hash={sub7}").expect("reads");
    assert_eq!((p.offer_id, p.email_hash), (None, None));
    assert_eq!(
        p.flags.as_slice(),
        [flag::HASH_DROPPED, flag::OFFER_ID_MACRO]
    );
}

#[test]
fn statuses() {
    assert_eq!(go("click_id=a").map(|p| p.status), Ok(Status::Approved));
    assert_eq!(
        go("click_id=a&status=PENDING").map(|p| p.status),
        Ok(Status::Pending)
    );
    let p = go("click_id=a&status=paid").expect("reads");
    assert_eq!(
        (p.status, p.flags.as_slice()),
        (Status::Pending, [flag::STATUS_UNKNOWN].as_slice())
    );
    let rules = NetworkRules {
        status_words: [("paid".to_owned(), Status::Approved)].into(),
        ..NetworkRules::default()
    };
    assert_eq!(
        read("click_id=a&status=Paid", 1, Micros(0), &rules).map(|p| p.status),
        Ok(Status::Approved)
    );
}

#[test]
fn long_or_dirty_fields_are_refused_not_cut() {
    let q = format!("click_id=a&txid={}", "9".repeat(MAX_FIELD + 1));
    assert_eq!(why(&q), reason::FIELD_MALFORMED);
    assert_eq!(why("click_id=a&txid=1%002"), reason::FIELD_MALFORMED);
    assert_eq!(why("click_id=a%00"), reason::CLICK_ID_MALFORMED);
    assert_eq!(why("click_id=a&sub9=%00"), reason::FIELD_MALFORMED);
    let p = go("click_id=a&offer_id=1%012").expect("reads");
    assert_eq!(
        (p.offer_id, p.flags.as_slice()),
        (None, &[flag::OFFER_ID_UNMATCHED][..])
    );
}

proptest! {
    #[test]
    fn any_query_is_read_or_refused(query in "\\PC{0,200}") {
        let _ = go(&query);
    }

    #[test]
    fn what_was_encoded_is_read_back(txid in "[^\\pC{}\\[\\]<>#%$ ]{1,40}") {
        let query = format!("click_id=a&txid={}", crate::macros::encode_query_value(&txid));
        let txid = txid.trim().to_owned();
        prop_assume!(!txid.is_empty());
        prop_assert_eq!(go(&query).map(|p| p.txid.map(|t| t.into_owned())), Ok(Some(txid)));
    }
}
