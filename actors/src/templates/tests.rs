use super::*;
use millrace_schemas::notification::{Action, Item};

fn brand() -> Brand {
    Brand {
        name: "Sosaria & Co".to_owned(),
        accent: "#aa3311".to_owned(),
        site: Some(Url::parse("https://site.example/app/").expect("a URL")),
    }
}

fn body() -> GenericBody {
    GenericBody {
        title: "A <b>house</b>\r\nfalls".to_owned(),
        intro: "First line\nsecond \"line\"".to_owned(),
        items: vec![
            Item {
                text: "one".to_owned(),
                url: Some("/items/1".to_owned()),
            },
            Item {
                text: "two & a half".to_owned(),
                url: Some("javascript:alert(1)".to_owned()),
            },
        ],
        action: Some(Action {
            label: "Look".to_owned(),
            url: "/houses?id=1&x=2".to_owned(),
        }),
    }
}

#[test]
fn both_parts_say_the_same_and_links_are_whole() {
    let out = mail(&body(), &brand(), Some("https://m.example/unsubscribe/t"));
    assert_eq!(out.subject, "A <b>house</b>  falls");
    for said in [
        "First line\nsecond \"line\"",
        "- one\n  https://site.example/items/1",
        "- two & a half",
        "Look:\nhttps://site.example/houses?id=1&x=2",
        "Sosaria & Co",
        "Unsubscribe: https://m.example/unsubscribe/t",
    ] {
        assert!(out.text.contains(said), "{said}\n{}", out.text);
    }
    for said in [
        "A &lt;b&gt;house&lt;/b&gt;  falls</h1>",
        "First line<br>\r\nsecond &quot;line&quot;",
        "<a href=\"https://site.example/items/1\"",
        "<li>two &amp; a half</li>",
        "<a href=\"https://site.example/houses?id=1&amp;x=2\"",
        "#aa3311",
        "Sosaria &amp; Co",
        "<a href=\"https://m.example/unsubscribe/t\"",
    ] {
        assert!(out.html.contains(said), "{said}\n{}", out.html);
    }
    assert!(!out.html.contains("javascript"), "{}", out.html);
    assert!(!out.text.contains("javascript"), "{}", out.text);
}

#[test]
fn without_a_site_a_path_leads_nowhere_and_transactional_mail_offers_no_end() {
    let bare = Brand {
        site: None,
        accent: "red;}".to_owned(),
        ..brand()
    };
    let out = mail(&body(), &bare, None);
    assert!(!out.html.contains("href"), "{}", out.html);
    assert!(!out.html.contains("red;}"));
    assert!(!out.text.contains("Unsubscribe"));
}

#[test]
fn an_inbox_item_is_text_and_leads_within_the_site() {
    let item = inbox(&body());
    assert_eq!(item.title, "A <b>house</b>  falls");
    assert_eq!(
        item.body,
        "First line\nsecond \"line\"\n\n- one\n- two & a half"
    );
    assert_eq!(item.url.as_deref(), Some("/houses?id=1&x=2"));
    let elsewhere = |url: &str| {
        let mut other = body();
        other.action = Some(Action {
            label: "x".to_owned(),
            url: url.to_owned(),
        });
        inbox(&other).url
    };
    for refused in [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "/a\tb",
        "houses",
        "",
    ] {
        assert_eq!(elsewhere(refused), None, "{refused}");
    }
}

#[test]
fn links_are_judged_where_they_are_put_in() {
    let site = Url::parse("https://site.example").expect("a URL");
    for (raw, whole) in [
        ("/a", Some("https://site.example/a")),
        ("https://other.example/x", Some("https://other.example/x")),
        ("//other.example/x", None),
        ("data:text/html,x", None),
        ("mailto:a@b.example", None),
        ("https://user:pw@other.example/", None),
        ("relative/path", None),
    ] {
        assert_eq!(absolute(raw, Some(&site)).as_deref(), whole, "{raw}");
    }
}
