//! Histories of objects that are created, deleted and listed.

use keelway_e2e::linearizability::ListAction::{self, Create, Delete, List, NotFound};

use crate::{accept, done, failed, refuse};

fn list(numbers: &[u64]) -> ListAction {
    List(numbers.iter().copied().collect())
}

#[test]
fn a_list_has_what_was_created() {
    accept(&[done(0, 1, list(&[])), done(2, 3, Create(1)), done(4, 5, Create(2)), done(6, 7, list(&[1, 2]))]);
    refuse(&[done(2, 3, Create(1)), done(4, 5, Create(2)), done(6, 7, list(&[2]))]);
    refuse(&[done(2, 3, Create(1)), done(6, 7, list(&[1, 2]))]);
}

#[test]
fn a_list_is_of_one_moment() {
    let created = [done(0, 9, Create(1)), done(0, 9, Create(2))];
    accept(&[&created[..], &[done(1, 2, list(&[1])), done(3, 4, list(&[1, 2]))]].concat());
    refuse(&[&created[..], &[done(1, 2, list(&[1])), done(3, 4, list(&[2]))]].concat());
}

#[test]
fn what_was_deleted_stays_deleted() {
    let deleted = [done(0, 1, Create(1)), done(2, 3, Delete(1))];
    accept(&[&deleted[..], &[done(4, 5, list(&[]))]].concat());
    accept(&[&deleted[..], &[done(4, 5, NotFound(1))]].concat());
    refuse(&[&deleted[..], &[done(4, 5, list(&[1]))]].concat());
    refuse(&[&deleted[..], &[done(4, 5, Delete(1))]].concat());
}

#[test]
fn what_was_created_is_found() {
    refuse(&[done(0, 1, Create(1)), done(2, 3, NotFound(1))]);
    accept(&[done(0, 1, Create(1)), failed(1, Delete(1)), done(2, 3, NotFound(1))]);
    refuse(&[done(0, 1, Create(1)), done(2, 3, NotFound(1)), failed(4, Delete(1))]);
}

#[test]
fn a_failed_create_takes_effect_at_any_time_or_never() {
    let lists = [done(1, 2, list(&[])), done(3, 4, list(&[1]))];
    accept(&[failed(0, Create(1)), lists[0].clone()]);
    accept(&[&[failed(0, Create(1))][..], &lists].concat());
    refuse(&[&[failed(0, Create(1))][..], &lists, &[done(5, 6, list(&[]))]].concat());
    refuse(&[&lists[..], &[failed(5, Create(1))]].concat());
}
