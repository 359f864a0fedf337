use std::{fs, io::Write, os::fd::AsFd, path::PathBuf, sync::mpsc, thread, time::Duration};

use keelway_api::name::PodName;
use keelway_machine::layout::log_directory;

use super::*;
use crate::files::MachineFiles;

const LINES: &str = "\
2026-01-01T00:00:00.1Z stdout F one
2026-01-01T00:00:01.2Z stderr P tw
2026-01-01T00:00:01.3Z stderr F o
2026-01-01T00:00:02.4Z stdout F
2026-01-01T00:00:03.5Z stdout F four and more
not a line of a log
2026-01-01T00:00:04.6Z stdout P cut o";

struct Machine {
    root: tempfile::TempDir,
    pod: PodName,
}

impl Machine {
    fn new() -> Self {
        let pod = PodName { cluster: "c0ffee00c0ffee00".parse().unwrap(), component: "etcd-0".parse().unwrap() };
        let machine = Self { root: tempfile::tempdir().unwrap(), pod };
        fs::create_dir_all(machine.path("")).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(log_directory(&self.pod).trim_start_matches('/')).join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let mut file = fs::File::options().create(true).append(true).open(self.path(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn logs(&self) -> PodLogs {
        let root = fs::File::open(self.root.path()).unwrap();
        MachineFiles::new(root.as_fd()).logs(&self.pod).unwrap().unwrap()
    }

    fn read(&self, wanted: &LogOptions) -> String {
        let logs = self.logs();
        let newest = logs.list().unwrap().pop().unwrap();
        let mut text = Vec::new();
        read(&logs, newest, wanted, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }
}

fn of_lines(wanted: &LogOptions) -> String {
    let machine = Machine::new();
    machine.write("etcd-0.log", LINES);
    machine.read(wanted)
}

#[test]
fn partial_lines_are_joined() {
    assert_eq!(of_lines(&LogOptions::default()), "one\ntwo\n\nfour and more\n");
}

#[test]
fn the_last_ones() {
    let tail = |tail| of_lines(&LogOptions { tail: Some(tail), ..LogOptions::default() });
    assert_eq!(tail(0), "");
    assert_eq!(tail(1), "four and more\n");
    assert_eq!(tail(3), "two\n\nfour and more\n");
    assert_eq!(tail(100), "one\ntwo\n\nfour and more\n");
}

#[test]
fn those_since_a_moment_with_their_times() {
    let wanted = LogOptions {
        since: Some("2026-01-01T00:00:01Z".parse().unwrap()),
        timestamps: true,
        tail: Some(2),
        ..LogOptions::default()
    };
    assert_eq!(of_lines(&wanted), "2026-01-01T00:00:02.4Z \n2026-01-01T00:00:03.5Z four and more\n");
}

#[test]
fn logs_are_found_by_container_and_attempt() {
    let machine = Machine::new();
    for name in ["etcd-10.log", "etcd-9.log", "side-car-0.log", "etcd-x.log", "other"] {
        machine.write(name, "");
    }
    let of = |container: &str, attempt| Log { container: container.to_owned(), attempt };
    assert_eq!(machine.logs().list().unwrap(), [of("etcd", 9), of("etcd", 10), of("side-car", 0)]);
}

fn numbered(range: std::ops::Range<u32>) -> String {
    let lines: Vec<_> = range.map(|number| format!("2026-01-01T00:00:00Z stdout F {number}\n")).collect();
    lines.concat()
}

#[test]
fn rotated_files_come_first() {
    let machine = Machine::new();
    for (name, lines) in [("etcd-0.log.2", 0..3), ("etcd-0.log.1", 3..6), ("etcd-0.log", 6..8)] {
        machine.write(name, &numbered(lines));
    }
    let tail = |tail| machine.read(&LogOptions { tail, ..LogOptions::default() }).replace('\n', " ");
    assert_eq!(tail(None), "0 1 2 3 4 5 6 7 ");
    assert_eq!(tail(Some(0)), "");
    assert_eq!(tail(Some(2)), "6 7 ");
    assert_eq!(tail(Some(4)), "4 5 6 7 ");
    assert_eq!(tail(Some(100)), "0 1 2 3 4 5 6 7 ");
    // A rotated log whose successor is not created yet.
    fs::rename(machine.path("etcd-0.log"), machine.path("etcd-0.log.3")).unwrap();
    let logs = machine.logs();
    let mut text = Vec::new();
    read(&logs, Log { container: "etcd".to_owned(), attempt: 0 }, &LogOptions::default(), &mut text).unwrap();
    assert_eq!(text.len(), 16);
}

#[test]
fn so_many_are_kept() {
    let machine = Machine::new();
    let logs = machine.logs();
    let log = Log { container: "etcd".to_owned(), attempt: 0 };
    let there = || {
        let mut names: Vec<_> =
            fs::read_dir(machine.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names.into_iter().map(|name| name.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    };
    for round in 0..6 {
        machine.write("etcd-0.log", &numbered(round..round + 1));
        assert!(!logs.is_due(&log, 1 << 10).unwrap());
        assert!(logs.is_due(&log, 8).unwrap());
        logs.rotate(&log, 3).unwrap();
        // Rotated, and not reopened.
        assert!(logs.is_due(&log, 1 << 10).unwrap());
    }
    assert_eq!(there(), "etcd-0.log.1 etcd-0.log.2");
    logs.rotate_back(&log).unwrap();
    assert_eq!(there(), "etcd-0.log etcd-0.log.2");
    assert_eq!(machine.read(&LogOptions::default()), "5\n");
    logs.rotate(&log, 3).unwrap();
    machine.write("etcd-0.log", &numbered(6..7));
    assert_eq!(machine.read(&LogOptions::default()), "5\n6\n");
    // Fewer files are kept than before.
    machine.write("etcd-0.log.2", &numbered(4..5));
    logs.rotate(&log, 2).unwrap();
    assert_eq!(there(), "etcd-0.log.1");
}

/// Lines that follow a notification, a rotation and a restart of the container arrive in this order, until the logs are removed.
#[test]
fn a_log_is_followed() {
    const PATIENCE: Duration = Duration::from_secs(60);
    struct Told(mpsc::Sender<u8>);
    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            for byte in bytes {
                self.0.send(*byte).unwrap();
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let machine = Machine::new();
    let line = |text: &str| format!("2026-01-01T00:00:00Z stdout F {text}\n");
    machine.write("etcd-0.log", &line("a"));
    let (sender, receiver) = mpsc::channel();
    let logs = machine.logs();
    let following = thread::spawn(move || {
        let wanted = LogOptions { follow: true, ..LogOptions::default() };
        read(&logs, Log { container: "etcd".to_owned(), attempt: 0 }, &wanted, &mut Told(sender)).unwrap();
    });
    let says = |text: &str| {
        let mut said = String::new();
        while said.len() < text.len() {
            said.push(receiver.recv_timeout(PATIENCE).unwrap().into());
        }
        assert_eq!(said, text);
    };
    says("a\n");
    let (half, rest) = ("2026-01-01T00:00:00Z std", "out F b\n");
    machine.write("etcd-0.log", half);
    machine.write("etcd-0.log", rest);
    says("b\n");
    fs::rename(machine.path("etcd-0.log"), machine.path("etcd-0.log.20260101")).unwrap();
    machine.write("etcd-0.log", &line("c"));
    says("c\n");
    machine.write("etcd-1.log", &line("d"));
    says("d\n");
    for name in ["etcd-0.log", "etcd-1.log"] {
        fs::remove_file(machine.path(name)).unwrap();
    }
    following.join().unwrap();
    assert!(receiver.recv().is_err());
}

#[test]
fn lines_written_during_a_read_are_not_selected() {
    let machine = Machine::new();
    machine.write("etcd-0.log", LINES);
    let wanted = LogOptions { tail: Some(2), ..LogOptions::default() };
    let logs = machine.logs();
    let open = || logs.open(&Log { container: "etcd".to_owned(), attempt: 0 }).unwrap().unwrap();
    let mut opened = OpenLog::new(open(), &wanted).unwrap();
    let mut printer = Printer { wanted: &wanted, open: false };
    opened.skip_to_last(2, &mut printer).unwrap();
    machine.write("etcd-0.log", "ff\n2026-01-01T00:00:05Z stdout F late\n");
    let mut text = Vec::new();
    while opened.one(&mut printer, &mut text).unwrap().is_some() {}
    assert_eq!(String::from_utf8(text).unwrap(), "\nfour and more\n");
}
