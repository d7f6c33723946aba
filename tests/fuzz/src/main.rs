#![no_main]
//! One program for all targets: `MILLRACE_FUZZ_TARGET` names the one to run. Each is an entry of the table that the replay of
//! the corpus walks too, so there is none that only one of the two knows.

use libfuzzer_sys::fuzz_target;
use millrace_tests::fuzzing::{Target, find};
use std::sync::OnceLock;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("MILLRACE_FUZZ_TARGET").unwrap_or_default();
        let target = find(&name).unwrap_or_else(|| panic!("MILLRACE_FUZZ_TARGET={name} names no target"));
        let _ = TARGET.set(target);
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.run)(data);
        }
    }
);
