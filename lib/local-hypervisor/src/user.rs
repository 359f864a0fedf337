//! Restricts an agent's process to a user of its own and to the capabilities that it needs.

use rustix::{
    fs::{Gid, Uid},
    io::{Errno, Result},
    thread::{
        CapabilitySet, CapabilitySets, capability_is_in_bounding_set, configure_capability_in_ambient_set,
        remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

/// The capabilities of an agent: files of components belong to other users. The shipped unit grants the same ones.
const RIGHTS: CapabilitySet = CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::FOWNER);

/// Switches this process to a user for good. Call it while the process has one thread.
pub(crate) fn become_user(user: u32) -> Result<()> {
    bound()?;
    set_keep_capabilities(true)?;
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    set_capabilities(None, CapabilitySets { effective: RIGHTS, permitted: RIGHTS, inheritable: RIGHTS })?;
    for right in RIGHTS.iter() {
        configure_capability_in_ambient_set(right, true)?;
    }
    set_no_new_privs(true)
}

/// Removes all capabilities from the bounding set, except for [`RIGHTS`].
fn bound() -> Result<()> {
    for right in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        match capability_is_in_bounding_set(right) {
            // This is the first capability that the kernel does not know.
            Err(Errno::INVAL) => break,
            Ok(true) if !RIGHTS.contains(right) => remove_capability_from_bounding_set(right)?,
            known => drop(known?),
        }
    }
    Ok(())
}
