//! Topics and groups by name, and what the store says of them.
//!
//! A topic's number stands for (name, generation): a topic made anew is another topic, and ids born of its records differ.

use crate::contract::TopicRef;
use tokio_postgres::GenericClient;

/// Visits, clicks, provider clicks (later identity and lead forms).
pub const CLICKS: &str = "clicks";
/// Network postbacks.
pub const POSTBACKS: &str = "postbacks";
/// Frames of shards, as their sidecars sent them.
pub const FRAMES: &str = "frames";
/// Triggers that fired, by subject.
pub const TRIGGERS: &str = "triggers";
/// What is to be told to whom, by user.
pub const NOTICES: &str = "notices";
/// Users, links and preferences, by user.
pub const DIRECTORY_TOPIC: &str = "directory";

/// A consumer group: topics that must meet in one actor.
#[derive(Clone, Copy, Debug)]
pub struct GroupSpec {
    /// The group's name.
    pub name: &'static str,
    /// Its topics, in the order in which a batch holds them.
    pub topics: &'static [&'static str],
}

/// Attribution: everything keyed by click id.
pub const ATTRIBUTION: GroupSpec = GroupSpec {
    name: "attribution",
    topics: &[CLICKS, POSTBACKS],
};

/// Thresholds: trackers over the frames of a shard's keys.
pub const THRESHOLDS: GroupSpec = GroupSpec {
    name: "thresholds",
    topics: &[FRAMES],
};

/// Engagement: gates 0 to 4, from a firing to the users it may reach.
pub const ENGAGEMENT: GroupSpec = GroupSpec {
    name: "engagement",
    topics: &[TRIGGERS],
};

/// Recipients: gates 5 to 8, from a notice to the outbox.
pub const RECIPIENTS: GroupSpec = GroupSpec {
    name: "recipients",
    topics: &[NOTICES],
};

/// The directory: everything keyed by user.
pub const DIRECTORY: GroupSpec = GroupSpec {
    name: "directory",
    topics: &[DIRECTORY_TOPIC],
};

/// Every group there is. A new stream with state gets a line here.
pub const GROUPS: &[GroupSpec] = &[ATTRIBUTION, THRESHOLDS, ENGAGEMENT, RECIPIENTS, DIRECTORY];

/// Groups that only a deployment with enabled modules has work for. Elsewhere nobody consumes them, and their topics stay empty.
pub const OF_MODULES: &[&str] = &[
    THRESHOLDS.name,
    ENGAGEMENT.name,
    RECIPIENTS.name,
    DIRECTORY.name,
];

/// Every topic there is, each once.
#[must_use]
pub fn topic_names() -> Vec<&'static str> {
    let mut names: Vec<&'static str> = GROUPS
        .iter()
        .flat_map(|g| g.topics.iter().copied())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What is wrong with the catalogue.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The store failed.
    #[error("the store: {0}")]
    Store(#[from] tokio_postgres::Error),
    /// A topic is not there.
    #[error("topic `{0}` does not exist yet; create it with `millrace topics create`")]
    Missing(String),
    /// Topics of one group differ in their partition counts.
    #[error(
        "topics of group `{group}` have unequal partition counts ({counts}); `millrace topics grow` makes them equal"
    )]
    Unequal {
        /// The group.
        group: String,
        /// `clicks 8, postbacks 4`.
        counts: String,
    },
}

/// The live generation of every topic in the catalogue.
///
/// # Errors
/// The store failed.
pub async fn load(client: &impl GenericClient) -> Result<Vec<TopicRef>, CatalogueError> {
    let rows = client
        .query(
            "SELECT topic_no, name, log_name, partitions FROM topics WHERE retired_at IS NULL ORDER BY name",
            &[],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|r| TopicRef {
            no: r.get(0),
            name: r.get(1),
            log_name: r.get(2),
            partitions: r.get(3),
        })
        .collect())
}

/// Enters a topic (generation 1) unless a live one has that name; answers the live one.
///
/// # Errors
/// The store failed.
pub async fn register(
    client: &impl GenericClient,
    name: &str,
    prefix: &str,
    partitions: i32,
) -> Result<TopicRef, CatalogueError> {
    client
        .execute(
            "INSERT INTO topics (name, generation, log_name, partitions)
             SELECT $1, coalesce(max(generation), 0) + 1,
                    $2 || $1 || CASE WHEN max(generation) IS NULL THEN '' ELSE '.' || (max(generation) + 1) END, $3
             FROM topics WHERE name = $1
             HAVING count(*) FILTER (WHERE retired_at IS NULL) = 0
             ON CONFLICT DO NOTHING",
            &[&name, &prefix, &partitions],
        )
        .await?;
    find(&load(client).await?, name)
}

/// A topic by name.
///
/// # Errors
/// [`CatalogueError::Missing`].
pub fn find(topics: &[TopicRef], name: &str) -> Result<TopicRef, CatalogueError> {
    topics
        .iter()
        .find(|t| t.name == name)
        .cloned()
        .ok_or_else(|| CatalogueError::Missing(name.to_owned()))
}

/// Whether the catalogue serves every group: topics are there and their counts equal. Topics of [`OF_MODULES`] may be missing
/// (a deployment that was made before there were any); who wants to use them asks [`group_topics`].
///
/// # Errors
/// [`CatalogueError::Missing`], [`CatalogueError::Unequal`].
pub fn serves_all_groups(topics: &[TopicRef]) -> Result<(), CatalogueError> {
    for group in GROUPS {
        match group_topics(topics, group) {
            Err(CatalogueError::Missing(_)) if OF_MODULES.contains(&group.name) => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// The topics of a group, in its order, after checking that their partition counts are equal.
///
/// # Errors
/// [`CatalogueError::Missing`], [`CatalogueError::Unequal`].
pub fn group_topics(
    topics: &[TopicRef],
    group: &GroupSpec,
) -> Result<Vec<TopicRef>, CatalogueError> {
    let found: Vec<TopicRef> = group
        .topics
        .iter()
        .map(|n| find(topics, n))
        .collect::<Result<_, _>>()?;
    if found
        .windows(2)
        .any(|w| matches!(w, [a, b] if a.partitions != b.partitions))
    {
        let counts = found
            .iter()
            .map(|t| format!("{} {}", t.name, t.partitions))
            .collect::<Vec<_>>()
            .join(", ");
        return Err(CatalogueError::Unequal {
            group: group.name.to_owned(),
            counts,
        });
    }
    Ok(found)
}
