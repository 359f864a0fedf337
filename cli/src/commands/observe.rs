//! `keelway observe`.

use keelway_reconciler::observe_now;

use super::{
    print,
    session::{PipeSession, runtime_of_passes},
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
};

pub(super) fn run(global: &GlobalArguments) -> Result<Code, CommandFailure> {
    let mut session = PipeSession::new(global, Input::read_some(&global.files)?.world()?);
    let seen = runtime_of_passes()?.block_on(observe_now(&session.context, &mut session.minter));
    drop(session.context);
    let seen = seen.map_err(CommandFailure::other)?;
    print(&seen.write())?;
    Ok(Code::Done)
}
