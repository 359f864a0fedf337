//! Folds similar Events of one document into one Event: what a pass reports of eight components is one sentence for the user, and one object for
//! the API server.

use keelway_api::event::DocumentEvent;

use super::LONGEST_NOTE;

/// Folds Events that have the same reason, are of the same document and concern its components, if no other Event of that document is between
/// them. Warnings are not folded, so that repeated ones are counted.
pub(super) fn fold(events: Vec<DocumentEvent>) -> Vec<DocumentEvent> {
    let mut folded: Vec<DocumentEvent> = Vec::with_capacity(events.len());
    for event in events {
        let last = folded.iter_mut().rfind(|folded| folded.regarding == event.regarding);
        match last.filter(|last| are_alike(last, &event)) {
            Some(last) => {
                last.note = format!("{}; {}", last.note, event.note);
                last.related = last.related.take().filter(|related| Some(related) == event.related.as_ref());
            }
            None => folded.push(event),
        }
    }
    folded
}

fn are_alike(one: &DocumentEvent, other: &DocumentEvent) -> bool {
    let kind = |event: &DocumentEvent| (event.regarding.clone(), event.uid.clone(), event.reason);
    // A folded Event concerns several components, so it names none of them.
    let is_of_components = other.related.is_some();
    let is_short = one.note.len() + other.note.len() + 2 <= LONGEST_NOTE;
    is_of_components && is_short && !one.warning && !other.warning && kind(one) == kind(other)
}

#[cfg(test)]
mod tests {
    use keelway_api::document::DocumentName;

    use super::*;

    fn event(reason: &'static str, component: Option<&str>, note: &str) -> DocumentEvent {
        let id = "aaaaaaaaaaaaaaaa";
        let pod = |component: &str| DocumentName::Component(format!("{id}/{component}").parse().unwrap());
        DocumentEvent {
            regarding: DocumentName::Hypervisor("hv-1".parse().unwrap()),
            uid: None,
            related: component.map(pod),
            warning: false,
            reason,
            note: note.to_owned(),
        }
    }

    #[test]
    fn adjacent_events_of_one_kind_are_folded() {
        let folded = fold(vec![
            event("ComponentPlaced", Some("etcd-0"), "etcd-0 is placed on hv-1"),
            event("ComponentPlaced", Some("kube-apiserver-0"), "kube-apiserver-0 is placed on hv-2"),
            event("ComponentPlaced", Some("haproxy-0"), "haproxy-0 is placed on hv-3"),
            event("ComponentJoined", Some("etcd-0"), "etcd-0 is ready"),
            event("ComponentPlaced", Some("etcd-1"), "etcd-1 is placed on hv-2"),
        ]);
        let expected = [
            event(
                "ComponentPlaced",
                None,
                "etcd-0 is placed on hv-1; kube-apiserver-0 is placed on hv-2; haproxy-0 is placed on hv-3",
            ),
            event("ComponentJoined", Some("etcd-0"), "etcd-0 is ready"),
            event("ComponentPlaced", Some("etcd-1"), "etcd-1 is placed on hv-2"),
        ];
        assert_eq!(folded, expected);
    }

    #[test]
    fn counted_events_are_not_folded() {
        let plain = vec![event("Blocked", None, "a"), event("Blocked", None, "a")];
        assert_eq!(fold(plain.clone()), plain);
        let warnings =
            ["a", "b"].map(|note| DocumentEvent { warning: true, ..event("Unhealthy", Some("etcd-0"), note) });
        assert_eq!(fold(warnings.to_vec()), warnings);
        let long = "x".repeat(LONGEST_NOTE - 1);
        let long = vec![event("ComponentPlaced", Some("etcd-0"), &long), event("ComponentPlaced", Some("etcd-1"), "y")];
        assert_eq!(fold(long.clone()), long);
    }
}
