//! Reduces the resident memory of a daemon's own program, of which the daemon uses a small part.

use std::{fs, io, ops::Range};

use rustix::mm::{Advice, madvise};

/// The mappings of this program's code and constants.
///
/// Linux maps the pages around each page that is used, and everything that was needed once, such as at the start, stays mapped.
#[derive(Debug)]
pub struct MappedProgram(Vec<Range<usize>>);

impl MappedProgram {
    /// Reads the mappings of this process. Call it before anything is loaded that may be unloaded again.
    ///
    /// # Errors
    /// The kernel does not return them.
    pub fn of_this_process() -> io::Result<Self> {
        fs::read_to_string("/proc/self/smaps").map(|smaps| Self(only_of_files(&smaps)))
    }

    /// Releases all of it. What the program uses from then on is mapped again, mostly without reading the disk, because it is in the page cache.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn release(&self) -> io::Result<()> {
        for range in &self.0 {
            let start = std::ptr::without_provenance_mut(range.start);
            #[expect(
                unsafe_code,
                reason = "nothing can be written there, and no page of it is this process' own: each can be had again from its file"
            )]
            unsafe {
                madvise(start, range.len(), Advice::LinuxDontNeed)?;
            }
        }
        Ok(())
    }
}

/// Mappings of files that are read-only and of which no page was ever changed (proc_pid_smaps(5)). Relocated constants are not among them.
fn only_of_files(smaps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut last = None;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [range, "r--p" | "r-xp", _, _, _, path, ..] if path.starts_with('/') => last = range_of(range),
            // Pages of the process itself, in memory or swapped out.
            ["Anonymous:" | "Swap:", size, "kB"] if size != "0" => last = None,
            ["VmFlags:", ..] => found.extend(last.take()),
            [range, ..] if range_of(range).is_some() => last = None,
            _ => {}
        }
    }
    found
}

/// `START-END`, hexadecimal.
fn range_of(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Constants, code, relocated constants, relocated constants that are swapped out, data, and memory without a file.
    const SMAPS: &str = "\
1000-2000 r--p 00000000 fe:00 7                          /usr/bin/keelway
Size:                  4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me sd
2000-5000 r-xp 00001000 fe:00 7                          /usr/bin/keelway
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me sd
5000-6000 r--p 00004000 fe:00 7                          /usr/bin/keelway
Anonymous:             4 kB
Swap:                  0 kB
VmFlags: rd mr mw me ac sd
6000-7000 r--p 00005000 fe:00 7                          /usr/bin/keelway
Anonymous:             0 kB
Swap:                  4 kB
VmFlags: rd mr mw me ac sd
7000-8000 rw-p 00006000 fe:00 7                          /usr/bin/keelway
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me ac sd
8000-9000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me ac sd
9000-a000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me de sd
";

    #[test]
    fn only_what_a_file_holds_unchanged_is_given_back() {
        assert_eq!(only_of_files(SMAPS), [0x1000..0x2000, 0x2000..0x5000]);
    }

    #[test]
    fn what_is_given_back_is_resident_no_more_and_can_be_used() {
        let resident = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim_end_matches("kB").trim().parse::<u64>().unwrap()
        };
        let mapped = MappedProgram::of_this_process().unwrap();
        assert!(mapped.0.len() > 1, "{:?}", mapped.0);
        // None of the mappings is gone.
        for range in &mapped.0 {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            assert!(maps.contains(&format!("{:x}-{:x} r", range.start, range.end)), "{maps}");
        }
        let before = resident();
        mapped.release().unwrap();
        let after = resident();
        assert!(after < before, "{before} KiB, then {after}");
        assert_eq!(MappedProgram::of_this_process().unwrap().0, mapped.0);
    }
}
