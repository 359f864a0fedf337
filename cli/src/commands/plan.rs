//! `keelway plan`.

use std::fmt::Write;

use keelway_reconciler::{Preview, preview};

use super::{
    print,
    session::{Session, runtime},
};
use crate::{
    args::{Global, PlanArguments},
    exit::{Code, Failure},
    input::Input,
};

pub(super) fn run(global: &Global, arguments: &PlanArguments) -> Result<Code, Failure> {
    let input = Input::read(&global.files)?;
    let mut session = Session::new(global, input.world()?);
    let preview = runtime()?.block_on(preview(&session.context, &mut session.minter)).map_err(Failure::other)?;
    drop(session.context);
    print(&render(&preview))?;
    Ok(if arguments.exit_code && !preview.settled() { Code::SomethingToDo } else { Code::Done })
}

/// Headings over lists, in the order in which a pass works.
fn render(preview: &Preview) -> String {
    if preview.settled() {
        return "Nothing to do: the world is as the documents say.\n".to_owned();
    }
    let mut text = String::new();
    section(&mut text, "Decisions", preview.plan.decisions.iter().map(ToString::to_string));
    section(&mut text, "Keys", preview.plan.mint.iter().map(ToString::to_string));
    for (machine, refused) in &preview.refused {
        section(&mut text, &format!("On {machine}"), std::iter::once(format!("refused: {refused}")));
    }
    for (machine, actions) in &preview.machines {
        match actions {
            Ok(actions) => section(&mut text, &format!("On {machine}"), actions.iter().map(ToString::to_string)),
            Err(refusal) => {
                section(&mut text, &format!("On {machine}"), std::iter::once(format!("refused: {refusal}")));
            }
        }
    }
    let bindings = preview.plan.bindings.iter().map(|id| format!("apply the first bindings of cluster {id}"));
    section(&mut text, "In clusters", bindings);
    section(&mut text, "Waiting", preview.plan.waiting.iter().map(ToString::to_string));
    text
}

fn section(text: &mut String, heading: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{heading}:");
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}
