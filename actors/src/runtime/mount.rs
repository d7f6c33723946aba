//! Streams with state as a process mounts them: whatever they do, their groups, hosts and standing are alike.

use super::host::{GroupHost, HostConfig};
use super::vertical::Vertical;
use millrace_topics::catalogue::{CatalogueError, GroupSpec};
use millrace_topics::contract::{PartitionHost, TopicRef};
use std::sync::Arc;

/// A group's host, whatever its vertical.
pub trait AnyHost: PartitionHost {
    /// Partitions that are stopped, and why.
    fn stopped(&self) -> Vec<(i32, String)>;

    /// Partitions whose actors run.
    fn owned(&self) -> Vec<i32>;

    /// Ends its threads. Call after the consumer was shut down.
    fn close(&self);
}

impl<V: Vertical> AnyHost for GroupHost<V> {
    fn stopped(&self) -> Vec<(i32, String)> {
        GroupHost::stopped(self)
    }

    fn owned(&self) -> Vec<i32> {
        GroupHost::owned(self)
    }

    fn close(&self) {
        GroupHost::close(self);
    }
}

type Prepare = Box<
    dyn FnOnce(HostConfig, usize, &[TopicRef]) -> Result<Arc<dyn AnyHost>, CatalogueError> + Send,
>;

/// A stream with state that a process is to run.
pub struct Mount {
    group: GroupSpec,
    prepare: Prepare,
}

impl Mount {
    /// A vertical. `prepare` is given the catalogue once its topics exist, so that a vertical which emits knows its targets, and
    /// answers with the factory of the actors' slices.
    pub fn new<V, M>(
        prepare: impl FnOnce(&[TopicRef]) -> Result<M, CatalogueError> + Send + 'static,
    ) -> Mount
    where
        V: Vertical,
        M: Fn() -> V + Send + Sync + 'static,
    {
        Mount {
            group: V::GROUP,
            prepare: Box::new(move |config, arbiters, catalogue| {
                let make = prepare(catalogue)?;
                Ok(GroupHost::new(config, arbiters, make))
            }),
        }
    }

    /// Its group.
    #[must_use]
    pub fn group(&self) -> GroupSpec {
        self.group
    }

    /// Makes its host. Needs a running actix system.
    ///
    /// # Errors
    /// The catalogue lacks a topic that it emits to.
    pub fn host(
        self,
        config: HostConfig,
        arbiters: usize,
        catalogue: &[TopicRef],
    ) -> Result<Arc<dyn AnyHost>, CatalogueError> {
        (self.prepare)(config, arbiters, catalogue)
    }
}
