//! `keelway observe`.

use keelway_reconciler::look;

use super::{
    print,
    session::{Session, runtime_of_passes},
};
use crate::{
    args::Global,
    exit::{Code, Failure},
    input::Input,
};

pub(super) fn run(global: &Global) -> Result<Code, Failure> {
    let mut session = Session::new(global, Input::read_some(&global.files)?.world()?);
    let seen = runtime_of_passes()?.block_on(async {
        let seen = look(&session.context, &mut session.minter).await;
        session.context.machines.part().await;
        seen
    });
    drop(session.context);
    let seen = seen.map_err(Failure::other)?;
    print(&seen.write())?;
    Ok(Code::Done)
}
