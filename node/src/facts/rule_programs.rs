//! Observes which programs write packet filter rules.

use std::path::{Path, PathBuf};

use crate::checks::RULE_PROGRAMS;

/// The directories in which containerd finds programs if nothing sets its `PATH` (`systemd.exec(5)`), which its plugins inherit.
const DIRECTORIES: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Returns the paths of the programs that are installed.
pub(crate) fn rule_programs() -> Vec<PathBuf> {
    installed(&DIRECTORIES.map(PathBuf::from))
}

fn installed(directories: &[PathBuf]) -> Vec<PathBuf> {
    let find = |program| directories.iter().map(|directory| directory.join(program)).find(|path| is_file(path));
    RULE_PROGRAMS.into_iter().filter_map(find).collect()
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_any_directory() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
        for path in [&first, &second] {
            std::fs::create_dir(path).unwrap();
        }
        let both = [first, second.clone()];
        assert_eq!(installed(&both), Vec::<PathBuf>::new());
        std::fs::write(second.join("nft"), "").unwrap();
        assert_eq!(installed(&both), [second.join("nft")]);
    }
}
