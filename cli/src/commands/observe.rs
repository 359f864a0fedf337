//! `keelway observe`.

use keelway_reconciler::look;

use super::{
    print,
    session::{Session, runtime},
};
use crate::{
    args::Global,
    exit::{Code, Failure},
    input::Input,
};

pub(super) fn run(global: &Global) -> Result<Code, Failure> {
    let mut session = Session::new(global, Input::read(&global.files)?.world()?);
    let seen = runtime()?.block_on(look(&session.context, &mut session.minter)).map_err(Failure::other)?;
    drop(session.context);
    print(&seen.write())?;
    Ok(Code::Done)
}
