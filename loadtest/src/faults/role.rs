//! What the processes of a scene do.

use millrace_tests::process::Process;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Takes what is sent.
    Doors,
    /// Decides and books.
    Attribution,
    /// Sends messages.
    Delivery,
    /// Serves the admin API, where a kind starts it.
    Admin,
    /// Frames of shards to firings.
    Thresholds,
    /// Firings to notices.
    Engagement,
    /// Notices to the outbox.
    Recipients,
    /// Who there is.
    Directory,
}

impl Role {
    /// Those that every scene has at work.
    pub const ALL: [Role; 3] = [Role::Doors, Role::Attribution, Role::Delivery];
    /// Those that a scene with a harbour has, too.
    pub const OF_MODULES: [Role; 4] = [
        Role::Thresholds,
        Role::Engagement,
        Role::Recipients,
        Role::Directory,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::Doors => "doors",
            Role::Attribution => "attribution",
            Role::Delivery => "delivery",
            Role::Admin => "admin",
            Role::Thresholds => "thresholds",
            Role::Engagement => "engagement",
            Role::Recipients => "recipients",
            Role::Directory => "directory",
        }
    }
}

/// Whether a process that was told to stop ended as it should: in order, or by the signal itself where it had not begun yet.
pub fn obeyed(process: &mut Process) -> bool {
    let in_order = process.ended().is_some_and(|status| status.success());
    in_order
        || (process.killed_by() == Some(libc::SIGTERM)
            && !process.log_text().contains("millrace is up"))
}
