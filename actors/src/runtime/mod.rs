//! Rules about commits, restarts and positions live here and nowhere else: clocks, failpoints, the partition-actor shell,
//! its claims on partitions, poison isolation, outcomes. What may not: anything that knows what a record means.

pub mod actor;
pub mod books;
pub mod clock;
pub mod connector;
pub mod core;
pub mod days;
pub mod failpoint;
pub mod host;
pub mod maintenance;
pub mod mount;
pub mod ownership;
pub mod poison;
pub mod retention;
pub mod session;
pub mod telemetry;
pub mod vertical;
