//! Tests against a model: written next.
