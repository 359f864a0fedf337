//! Disables huge pages for the daemon: it uses only a small part of a large program, and only a small part of each huge page.

use std::{
    env, io,
    os::unix::process::CommandExt,
    process::{Child, Command},
};

use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};

/// Restarts this program without huge pages, unless they are already disabled.
///
/// The allocator requests huge pages, and the daemon uses little of each. Pages that are already allocated stay until the program restarts.
/// If the restart fails, the daemon continues and needs more memory.
pub fn disable_huge_pages() {
    let begin_anew = || {
        if transparent_huge_pages_are_disabled()? {
            return Ok(());
        }
        disable_transparent_huge_pages(true)?;
        let mut words = env::args_os();
        let mut command = Command::new(env::current_exe()?);
        if let Some(name) = words.next() {
            command.arg0(name);
        }
        Err(command.args(words).exec())
    };
    if let Err(error) = begin_anew() {
        tracing::warn!(%error, "cannot disable huge pages; this process uses more memory");
    }
}

/// Starts a program that may use huge pages, whatever the setting of this process.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    spawn_with(command, false)
}

/// Starts a daemon without huge pages, so that it need not restart itself.
pub(crate) fn spawn_small(command: &mut Command) -> io::Result<Child> {
    spawn_with(command, true)
}

fn spawn_with(command: &mut Command, renounced: bool) -> io::Result<Child> {
    let own = transparent_huge_pages_are_disabled().unwrap_or(renounced);
    if own == renounced {
        return command.spawn();
    }
    // The child inherits this setting. It has executed its program when `spawn` returns.
    disable_transparent_huge_pages(renounced)?;
    let child = command.spawn();
    disable_transparent_huge_pages(own)?;
    child
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_do_not_depend_on_the_parent_process() {
        let renounced = |spawn: fn(&mut Command) -> io::Result<Child>| {
            let mut command = Command::new("cat");
            command.arg("/proc/self/status").stdout(std::process::Stdio::piped());
            let output = spawn(&mut command).unwrap().wait_with_output().unwrap();
            let status = String::from_utf8(output.stdout).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
            line.unwrap().trim() == "0"
        };
        for own in [false, true] {
            disable_transparent_huge_pages(own).unwrap();
            assert_eq!(renounced(Command::spawn), own, "it is inherited");
            assert_eq!((renounced(spawn), renounced(spawn_small)), (false, true));
            assert_eq!(transparent_huge_pages_are_disabled().unwrap(), own);
        }
        disable_transparent_huge_pages(false).unwrap();
    }
}
