//! Payloads as they are frozen for Meta: an event of about a kilobyte.

use millrace::delivery::meta::event::{Occasion, freeze};
use rust_decimal::Decimal;

/// The token of all datasets.
pub const TOKEN: &str = "bench-token";

/// The dataset of the `i`th pixel.
#[must_use]
pub fn dataset(i: usize) -> String {
    format!("12345678901234{i:02}")
}

/// The `n`th purchase of now, for the dataset of the pixel `n` modulo `pixels`; each has an id, a click, a person and an amount
/// of its own.
#[must_use]
pub fn purchase(n: u32, now_secs: i64, pixels: usize) -> String {
    let dataset = dataset(n as usize % pixels.max(1));
    let id = format!("cv_{n:012}");
    let click = format!("{:022x}", u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let email = format!(
        "{:064x}",
        u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c)
    );
    let phone = format!(
        "{:064x}",
        u128::from(n).wrapping_mul(0xc2b2_ae3d_27d4_eb4f_1656)
    );
    let fbclid = format!("IwAR0{click}{click}{click}{click}{click}{click}");
    let order = format!("T{n:010}");
    let page = format!(
        "https://www.shop.example/collections/summer-sale/products/offer-{}/checkout/thank-you",
        n % 1_000
    );
    let ip = format!("203.0.{}.{}", (n >> 8) % 114, n % 256);
    let frozen = freeze(&Occasion {
        dataset: &dataset,
        event_id: &id,
        event_name: "Purchase",
        event_time: now_secs - 30,
        now: now_secs,
        action_source: "website",
        event_source_url: Some(&page),
        client_user_agent: Some(
            "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Mobile/15E148 Safari/604.1",
        ),
        client_ip: Some(&ip),
        fbp: Some("fb.1.1700000000000.1234567890"),
        fbclid: Some(&fbclid),
        clicked_ms: Some(now_secs * 1_000 - 600_000),
        email_hash: Some(&email),
        phone_hash: Some(&phone),
        click_id: Some(&click),
        value: Some(Decimal::new(i64::from(n % 10_000) + 100, 2)),
        currency: Some("USD"),
        order_id: Some(&order),
        ..Occasion::default()
    });
    frozen.payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_about_a_kilobyte_and_may_be_sent() {
        let payload = purchase(7, 1_800_000_000, 1);
        assert!((900..1_300).contains(&payload.len()), "{}", payload.len());
        assert!(payload.contains("\"fbc\":\"fb.1."), "{payload}");
        assert_ne!(payload, purchase(8, 1_800_000_000, 1));
    }
}
