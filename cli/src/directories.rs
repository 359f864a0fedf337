//! The directories for files of this program.

use std::path::PathBuf;

/// Returns `$XDG_STATE_HOME/keelway`, else `~/.local/state/keelway` (XDG Base Directory Specification).
pub(crate) fn state_directory() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(std::env::temp_dir)
        .join("keelway")
}

/// Returns `$KEELWAY_CACHE`, else `$XDG_CACHE_HOME/keelway`, else `~/.cache/keelway`: images and programs for local hypervisors.
pub(crate) fn cache_directory() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("KEELWAY_CACHE")
        .or_else(|| absolute("XDG_CACHE_HOME").map(|cache| cache.join("keelway")))
        .or_else(|| absolute("HOME").map(|home| home.join(".cache/keelway")))
        .unwrap_or_else(|| std::env::temp_dir().join("keelway"))
}
