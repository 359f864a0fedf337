//! Events of one kind that wait one after the other of a document, as one: what a pass tells of eight components is read as one sentence, and asks an
//! API server for one object.

use keelway_api::event::DocumentEvent;

use super::LONGEST_NOTE;

/// Makes one of those that tell the same of components of one cluster, with nothing else of that cluster between them. Warnings stay alone,
/// so that what comes again is counted.
pub(super) fn fold(events: Vec<DocumentEvent>) -> Vec<DocumentEvent> {
    let mut told: Vec<DocumentEvent> = Vec::with_capacity(events.len());
    for event in events {
        let last = told.iter_mut().rfind(|told| told.regarding == event.regarding);
        match last.filter(|last| are_alike(last, &event)) {
            Some(last) => {
                last.note = format!("{}; {}", last.note, event.note);
                last.related = last.related.take().filter(|related| Some(related) == event.related.as_ref());
            }
            None => told.push(event),
        }
    }
    told
}

fn are_alike(one: &DocumentEvent, other: &DocumentEvent) -> bool {
    let kind = |event: &DocumentEvent| (event.regarding.clone(), event.uid.clone(), event.reason);
    // One that has been made of several is of no single component.
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
    fn neighbours_of_one_kind_are_one() {
        let told = fold(vec![
            event("ComponentPlaced", Some("etcd-0"), "etcd-0 goes to hv-1"),
            event("ComponentPlaced", Some("kube-apiserver-0"), "kube-apiserver-0 goes to hv-2"),
            event("ComponentPlaced", Some("haproxy-0"), "haproxy-0 goes to hv-3"),
            event("ComponentJoined", Some("etcd-0"), "etcd-0 is ready"),
            event("ComponentPlaced", Some("etcd-1"), "etcd-1 goes to hv-2"),
        ]);
        let expected = [
            event(
                "ComponentPlaced",
                None,
                "etcd-0 goes to hv-1; kube-apiserver-0 goes to hv-2; haproxy-0 goes to hv-3",
            ),
            event("ComponentJoined", Some("etcd-0"), "etcd-0 is ready"),
            event("ComponentPlaced", Some("etcd-1"), "etcd-1 goes to hv-2"),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_to_be_counted_stays_alone() {
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
