//! A topic that is deleted and made anew in Kafka behind the catalogue: partitions stop red, nobody starts on it, the doctor names
//! it, and it is adopted by a person's word.

use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::kafka;
use millrace_tests::process::eventually;
use millrace_topics::{catalogue, kafka::KafkaAdmin};

const SAID: &str = "was deleted and made anew";

#[tokio::test]
async fn a_topic_made_anew_stops_its_group_until_it_is_adopted() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let log = Log::Kafka {
        brokers: kafka.brokers().to_owned(),
        prefix: format!("remade-{}-", std::process::id()),
    };
    let deployment = Deployment::start("remade", log, 2).await.unwrap();
    let store = deployment.store().await;
    let known: i64 = store
        .query_one(
            "SELECT count(*) FROM topics WHERE length(topic_id) = 32",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(known as usize, catalogue::topic_names().len());
    let mut owner = deployment.attribution("owner").unwrap().spawn().unwrap();
    owner
        .wait_for_log("millrace is up", PATIENCE)
        .await
        .unwrap();
    let stopped = async |sql: &str| -> i64 { store.query_one(sql, &[]).await.unwrap().get(0) };
    const OWNED: &str = "SELECT count(*) FROM ownership WHERE owner <> ''";
    const RED: &str =
        "SELECT count(*) FROM ownership WHERE stopped_reason LIKE '%was deleted and made anew%'";
    eventually("both partitions are owned", PATIENCE, async || {
        Ok((stopped(OWNED).await == 2).then_some(()))
    })
    .await
    .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));

    let admin = KafkaAdmin::new(&kafka.settings());
    let name: String = store
        .query_one("SELECT log_name FROM topics WHERE name = 'clicks'", &[])
        .await
        .unwrap()
        .get(0);
    let before = admin.topic_ids(vec![name.clone()]).await.unwrap();
    admin.delete_topic(&name).await.unwrap();
    eventually("it is made anew", PATIENCE, async || {
        // Its deletion may still be under way.
        let made = admin.create_topic(&name, 2, 1).await.unwrap_or(false);
        Ok(made.then_some(()))
    })
    .await
    .unwrap();
    eventually("it has another id", PATIENCE, async || {
        let now = admin.topic_ids(vec![name.clone()]).await?;
        Ok((now[0].is_some() && now != before).then_some(()))
    })
    .await
    .unwrap();
    eventually("both partitions are stopped", PATIENCE, async || {
        Ok((stopped(RED).await == 2).then_some(()))
    })
    .await
    .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));
    assert_eq!(owner.terminate(PATIENCE).await.unwrap().code(), Some(0));

    // Nobody starts on it, and whoever asks is told.
    let mut again = deployment.attribution("again").unwrap().spawn().unwrap();
    assert_eq!(again.wait(PATIENCE).await.unwrap().code(), Some(1));
    assert!(again.log_text().contains(SAID), "{}", again.log_text());
    let mut doctor = deployment
        .launch("doctor")
        .unwrap()
        .arg("doctor")
        .spawn()
        .unwrap();
    doctor.wait(PATIENCE).await.unwrap();
    assert!(
        doctor.log_text().contains(SAID) && doctor.log_text().contains("topics adopt"),
        "{}",
        doctor.log_text()
    );

    let words = [
        "topics",
        "adopt",
        "--reason",
        "the cluster was set up again",
    ];
    let adopt = deployment.launch("adopt").unwrap().args(words);
    adopt.run(PATIENCE).await.unwrap();
    assert_eq!(stopped(RED).await, 0);
    let row = store
        .query_one(
            "SELECT topic_no, generation, log_name FROM topics WHERE name = 'clicks' AND retired_at IS NULL",
            &[],
        )
        .await
        .unwrap();
    let no: i32 = row.get(0);
    assert_eq!(
        (row.get::<_, i32>(1), row.get::<_, &str>(2)),
        (2, name.as_str())
    );
    let mut owner = deployment.attribution("adopted").unwrap().spawn().unwrap();
    owner
        .wait_for_log("millrace is up", PATIENCE)
        .await
        .unwrap();
    let begun = format!("SELECT count(*) FROM positions WHERE topic_no = {no} AND next_offset = 0");
    eventually("it is read from its beginning", PATIENCE, async || {
        Ok((stopped(&begun).await == 2).then_some(()))
    })
    .await
    .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));
    assert_eq!(owner.terminate(PATIENCE).await.unwrap().code(), Some(0));
    let mut nothing = deployment
        .launch("nothing")
        .unwrap()
        .args(words)
        .spawn()
        .unwrap();
    assert_eq!(nothing.wait(PATIENCE).await.unwrap().code(), Some(1));
}
