//! Histories of one object that is written and read.

use keelway_e2e::linearizability::RegisterAction::{Read, Write};

use crate::{accept, done, failed, refuse};

#[test]
fn a_read_sees_the_write_before_it() {
    accept(&[done(0, 1, Read(None)), done(2, 3, Write(1)), done(4, 5, Read(Some(1)))]);
}

#[test]
fn an_acknowledged_write_is_not_lost() {
    let why = refuse(&[done(0, 1, Write(1)), done(2, 3, Write(2)), done(4, 5, Read(Some(1)))]);
    assert!(
        why.contains("2 of 3 operations leave Some(2)") && why.contains("4 to        5 ms: Read(Some(1))"),
        "{why}"
    );
    refuse(&[done(0, 1, Write(1)), done(2, 3, Read(None))]);
}

#[test]
fn concurrent_writes_have_either_order() {
    for read in [1, 2] {
        accept(&[done(0, 5, Write(1)), done(1, 4, Write(2)), done(6, 7, Read(Some(read)))]);
    }
}

#[test]
fn what_was_read_does_not_go_back() {
    accept(&[done(0, 1, Write(1)), done(2, 9, Write(2)), done(3, 4, Read(Some(1))), done(5, 6, Read(Some(2)))]);
    refuse(&[done(0, 1, Write(1)), done(2, 9, Write(2)), done(3, 4, Read(Some(2))), done(5, 6, Read(Some(1)))]);
}

#[test]
fn two_readers_see_concurrent_writes_in_one_order() {
    let writes = [done(0, 9, Write(1)), done(0, 9, Write(2))];
    let reads = [done(1, 2, Read(Some(1))), done(3, 4, Read(Some(2))), done(5, 6, Read(Some(1)))];
    refuse(&[&writes[..], &reads].concat());
}

#[test]
fn nothing_is_read_before_it_was_requested() {
    refuse(&[done(0, 1, Read(Some(1))), done(2, 3, Write(1))]);
    refuse(&[done(0, 1, Read(Some(1))), failed(2, Write(1))]);
}

#[test]
fn a_failed_write_takes_effect_at_any_time_or_never() {
    let read = |number| [failed(0, Write(1)), done(1, 2, Write(2)), done(3, 4, Read(Some(number)))];
    accept(&read(1));
    accept(&read(2));
    let late = [failed(0, Write(1)), done(1, 2, Write(2)), done(3, 4, Read(Some(2))), done(5, 6, Read(Some(1)))];
    accept(&late);
    refuse(&[&late[..], &[done(7, 8, Read(Some(2)))]].concat());
}
