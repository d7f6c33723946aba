//! What every command needs: settings, the database, a way to answer.

use super::output::Listing;
use crate::postgres::pool::Database;
use crate::postgres::{migrate, server};
use crate::sealing::{SealError, Seals};
use crate::settings::{self, Settings};
use anyhow::{Context as _, bail};
use std::path::{Path, PathBuf};
use tokio_postgres::Client;

/// Settings and the form of answers.
pub struct Context {
    settings: Settings,
    /// The file that they were read from, where one was named.
    file: Option<PathBuf>,
    json: bool,
}

impl Context {
    pub(super) fn new(settings: Settings, json: bool) -> Context {
        Context {
            settings,
            file: None,
            json,
        }
    }

    /// With the file that the settings were read from.
    pub(super) fn of_file(mut self, file: Option<&Path>) -> Context {
        self.file = file.map(Path::to_owned);
        self
    }

    /// Which modules the settings name now, read anew.
    ///
    /// # Errors
    /// As [`settings::load`].
    pub(super) fn modules_now(&self) -> anyhow::Result<settings::Modules> {
        Ok(settings::load(self.file.as_deref())?.modules)
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether to answer in JSON.
    #[must_use]
    pub fn json(&self) -> bool {
        self.json
    }

    /// The settings with the database that is there: the configured one, else that of the `millrace up` running here.
    #[must_use]
    pub fn settings_here(&self) -> Settings {
        let mut settings = self.settings.clone();
        if settings.database.url.is_none() {
            settings.database.url = server::running_url(&settings.database.data_dir);
        }
        settings
    }

    /// The keys of secrets: from the environment, else from the file of the `millrace up` that runs here, which is named then.
    ///
    /// # Errors
    /// A key is malformed, or the file cannot be read.
    pub fn seals(&self) -> (Result<Seals, SealError>, Option<PathBuf>) {
        let file = self.settings.database.data_dir.join("secret.key");
        match std::env::var_os("MILLRACE_SECRET_KEY").is_none() && file.is_file() {
            true => (Seals::from_environment_or_file(&file), Some(file)),
            false => (Seals::from_environment(), None),
        }
    }

    /// Where the database is.
    ///
    /// # Errors
    /// None is configured and no `millrace up` runs here.
    pub fn database(&self) -> anyhow::Result<Database> {
        let settings = self.settings_here();
        if settings.database.url.is_none() {
            bail!(
                "no database: DATABASE_URL is not set, and no `millrace up` runs on {}; set the one or start the other",
                settings.database.data_dir.display()
            );
        }
        Ok(Database::new(&settings.database, "cli")?)
    }

    /// A connection to a migrated database.
    ///
    /// # Errors
    /// The database is away or its schema is not there.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let database = self.database()?;
        let (client, _driver) = database.single().await.map_err(explain)?;
        let applied = migrate::applied(&client).await?;
        let missing = migrate::known().iter().any(|(v, _)| !applied.contains(v));
        if missing {
            bail!(
                "the schema of {} is not up to date; run `millrace migrate`",
                database.address()
            );
        }
        client.batch_execute("SET lock_timeout = '5s'").await?;
        Ok(client)
    }

    /// Answers with a table, or a JSON array.
    ///
    /// # Errors
    /// JSON cannot be written.
    pub(super) fn answer(&self, listing: &Listing) -> anyhow::Result<()> {
        if self.json {
            self.answer_json(&listing.json())
        } else {
            super::output::print(&listing.table());
            Ok(())
        }
    }

    /// Answers with one JSON value.
    ///
    /// # Errors
    /// JSON cannot be written.
    pub fn answer_json(&self, value: &serde_json::Value) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(value).context("writing JSON")?;
        super::output::print(&text);
        Ok(())
    }

    /// Answers with a sentence, or the JSON value that says the same.
    ///
    /// # Errors
    /// JSON cannot be written.
    pub fn say(&self, sentence: &str, value: &serde_json::Value) -> anyhow::Result<()> {
        if self.json {
            self.answer_json(value)
        } else {
            super::output::print(sentence);
            Ok(())
        }
    }
}

/// A connection error with its causes: the driver tells them in its source alone.
pub(super) fn explain(error: crate::postgres::pool::DatabaseError) -> anyhow::Error {
    match error {
        crate::postgres::pool::DatabaseError::Connect { at, source } => anyhow::anyhow!(
            "the database at {at} does not answer: {}; `millrace doctor` says more",
            crate::postgres::pool::chain(&source)
        ),
        other => other.into(),
    }
}

/// Fails with `what` where nothing was found.
pub(super) fn found<T>(value: Option<T>, what: impl FnOnce() -> String) -> anyhow::Result<T> {
    match value {
        Some(value) => Ok(value),
        None => bail!(what()),
    }
}
