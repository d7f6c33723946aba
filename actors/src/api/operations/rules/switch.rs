//! The switch of a rule: one column, whatever else there is to say of it.

use super::Rules;
use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity};
use crate::api::problem::Problem;
use futures::future::LocalBoxFuture;

pub(super) fn enable<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(turn(call, true))
}

pub(super) fn disable<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(turn(call, false))
}

async fn turn(call: &Call<'_>, on: bool) -> Result<Answer, Problem> {
    let id = call.param(Rules::PARAM)?;
    let before = entity::load::<Rules>(call, id, "FOR UPDATE").await?;
    call.tx
        .execute(
            "UPDATE rules SET enabled = $3 WHERE workspace_id = $1 AND rule_id = $2",
            &[&call.workspace()?, &id, &on],
        )
        .await?;
    let mut answer = entity::answer(entity::load::<Rules>(call, id, "").await?)?;
    answer.before = Some(entity::view(before)?);
    Ok(answer)
}
