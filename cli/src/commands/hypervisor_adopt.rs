//! `keelway hypervisor adopt`.

use std::io::Write;

use keelway_api::name::HypervisorName;

use super::{
    print_documents,
    session::{Session, runtime_of_passes},
};
use crate::{
    args::{AdoptArguments, Global},
    exit::{Code, Failure},
    input::Input,
};

pub(super) fn run(global: &Global, arguments: &AdoptArguments) -> Result<Code, Failure> {
    let input = Input::read_some(&global.files)?;
    let documents = input.documents().map_err(|failure| failure.echoing(&input))?;
    let mut session = Session::new(global, documents);
    let adopted = runtime_of_passes()?.block_on(async {
        let (from, names) = (&arguments.from, &arguments.names);
        let adopted = keelway_reconciler::adopt(&session.context, &mut session.minter, from, names).await;
        session.context.machines.part().await;
        adopted
    });
    drop(session.context);
    match adopted {
        Err(error) if session.pipe.saved() => {
            // A record may have been written: what was saved counts.
            print_documents(&session.pipe.documents())?;
            Err(Failure::other(error))
        }
        Err(error) => Err(Failure::other(error).echoing(&input)),
        Ok((documents, names)) => {
            print_documents(&documents)?;
            session.pipe.done();
            tell(global, &names);
            Ok(Code::Done)
        }
    }
}

fn tell(global: &Global, names: &[HypervisorName]) {
    if !global.quiet {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let _ = writeln!(std::io::stderr(), "taken over: {}", names.join(", "));
    }
}
