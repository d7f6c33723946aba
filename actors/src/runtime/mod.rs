//! Rules about commits, restarts and positions live here and nowhere else: clocks, failpoints, the partition-actor shell,
//! its claims on partitions, poison isolation, outcomes. What may not: anything that knows what a record means.

pub mod clock;
pub mod failpoint;
