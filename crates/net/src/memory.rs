//! Memory that start-up or a burst needed and serving does not.

use rustix::mm::{Advice, madvise};
use std::ffi::{CStr, c_void};
use std::time::Duration;

/// Time between two looks at what can be given back.
pub const LOOK: Duration = Duration::from_secs(5);
/// Looks in a minute.
const MINUTE: u32 = 12;

/// Counts looks, and says at which of them code pages are given back: at all of the first minute, when what the start
/// needed falls free, then once a minute. Finding the mappings, and mapping again what is used, cost an idle sidecar
/// more than all else it does.
#[derive(Debug, Default)]
pub struct CodePages {
    looks: u32,
}

impl CodePages {
    /// Whether they are given back at this look.
    pub fn due(&mut self) -> bool {
        let look = self.looks;
        self.looks = look.wrapping_add(1);
        look < MINUTE || look.is_multiple_of(MINUTE)
    }
}

/// Gives back the pages of code and constants that are mapped from files, of the program and its
/// libraries; those still needed are mapped again when they are used, without reading the disk.
///
/// Parsing the configuration, making keys and certificates and setting up the control connection
/// touch several times the code that forwarding does, once. Without this it would stay part of
/// every sidecar's resident memory. Where `/proc` cannot be read nothing happens.
pub fn release_code_pages() {
    let Ok(map) = std::fs::read_to_string("/proc/self/smaps") else {
        return;
    };
    for (start, length) in clean_file_mappings(&map) {
        // SAFETY: the range is a mapping of a file without write permission, and no page of it differs from the file.
        // So the same content is mapped again.
        #[allow(unsafe_code)]
        let result = unsafe {
            madvise(
                std::ptr::with_exposed_provenance_mut::<c_void>(start),
                length,
                Advice::LinuxDontNeed,
            )
        };
        // A failure harms nobody: the kernel merely keeps the pages.
        let _ = result;
    }
}

/// Returns memory to the kernel that has been free for as long as the allocator keeps it. By itself the allocator
/// looks only after so many allocations, which a proxy with nothing to do does not make for minutes.
pub fn release_free() {
    // All arenas (`MALLCTL_ARENAS_ALL`).
    const DECAY: &CStr = c"arena.4096.decay";
    let none = std::ptr::null_mut();
    // SAFETY: the control takes no value and returns none; it may be used at any time.
    #[allow(unsafe_code)]
    let result =
        unsafe { tikv_jemalloc_sys::mallctl(DECAY.as_ptr(), none, std::ptr::null_mut(), none, 0) };
    debug_assert_eq!(result, 0);
}

/// Does the same where the system's allocator is in use. This also returns memory that other threads have freed,
/// which the allocator would keep for good.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no pointer, and may be called at any time and by any thread.
        #[allow(unsafe_code)]
        let trimmed = unsafe { libc::malloc_trim(0) };
        // Whether there was anything to give back.
        let _ = trimmed;
    }
}

/// Gives back the code that start-up ran and the memory that it has freed, where the system's allocator is in use. A
/// process that waits for most of its life calls this once it has nothing to do.
pub fn release_unused() {
    trim();
    release_code_pages();
}

/// Makes all threads allocate from one arena, where the system's allocator is in use: what a thread has freed another uses, rather
/// than memory of its own. For programs of a few threads that seldom allocate at the same time; call it before there are others.
pub fn use_one_arena() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no pointer, and nothing else of the program sets options of the allocator.
        #[allow(unsafe_code)]
        let set = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        debug_assert_eq!(set, 1);
    }
}

/// Start and length of each mapping of a file that cannot be written and has no page of its own.
/// The latter leaves out relocated constants, which look the same but are not the file's bytes.
fn clean_file_mappings(map: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in map.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some(range) = range(first) {
            let permissions = words.next().unwrap_or_default();
            let is_file = words.nth(3).is_some_and(|path| path.starts_with('/'));
            candidate = (is_file && permissions.starts_with("r-")).then_some(range);
        } else if first == "Anonymous:" {
            let own = words.next();
            found.extend(candidate.take().filter(|_| own == Some("0")));
        }
    }
    found
}

fn range(word: &str) -> Option<(usize, usize)> {
    let (start, end) = word.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    Some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unchanged_read_only_files_are_given_back() {
        let map = "\
1000-3000 r-xp 00000000 fe:00 11 /bin/tulle-proxy
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
3000-4000 r--p 00002000 fe:00 11 /bin/tulle-proxy
Anonymous:             4 kB
4000-5000 rw-p 00003000 fe:00 11 /bin/tulle-proxy
Anonymous:             0 kB
5000-6000 r--p 00000000 00:00 0
Anonymous:             0 kB
6000-7000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
7000-9000 r--s 00000000 fe:00 12 /lib/libc.so.6 (deleted)
Anonymous:             0 kB
";
        assert_eq!(
            clean_file_mappings(map),
            [(0x1000, 0x2000), (0x7000, 0x2000)]
        );
    }

    #[test]
    fn code_is_given_back_often_at_first_and_then_once_a_minute() {
        let mut pages = CodePages::default();
        let due: Vec<_> = (0..60).filter(|_| pages.due()).collect();
        let first: Vec<_> = (0..12).collect();
        assert_eq!(due, [first, vec![12, 24, 36, 48]].concat());
    }

    #[test]
    fn the_allocator_knows_the_control() {
        release_free();
    }

    #[test]
    fn code_runs_on_after_its_pages_were_given_back() {
        let resident = || {
            // Only pages of files count here: the other tests of this process allocate meanwhile.
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|l| l.starts_with("RssFile:")).unwrap();
            let word = line.split_ascii_whitespace().nth(1).unwrap();
            word.parse::<u64>().unwrap()
        };
        let before = resident();
        release_code_pages();
        let after = resident();
        assert!(after < before, "{after} KiB of {before} KiB are resident");
    }
}
