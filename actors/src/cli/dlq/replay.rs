//! `millrace dlq replay`.

use super::Select;
use crate::cli::Context;
use std::process::ExitCode;

pub(super) async fn run(_: &Context, _: &Select) -> anyhow::Result<ExitCode> {
    anyhow::bail!("replay needs a producer")
}
