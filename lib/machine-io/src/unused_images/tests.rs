use super::*;
use crate::fetched_images::FetchedImage;

const OLD: &str = "registry.k8s.io/etcd:3.6.8-0";
const NEW: &str = "registry.k8s.io/etcd:3.7.0-0";
const HOUR: MonotonicTime = Duration::from_secs(3600);

fn image(id: &str, tags: &[&str]) -> cri::CriImage {
    cri::CriImage {
        id: id.to_owned(),
        tags: tags.iter().map(ToString::to_string).collect(),
        digests: vec![format!("registry.k8s.io/etcd@sha256:{id}")],
        size: 1,
        pinned: false,
    }
}

fn record(images: &[(&str, Option<&str>)]) -> FetchRecord {
    let fetched = |id: Option<&str>| FetchedImage { id: id.map(str::to_owned) };
    FetchRecord { images: images.iter().map(|(name, id)| ((*name).to_owned(), fetched(*id))).collect() }
}

/// The agent fetched both images, and its config names the new one.
struct Case {
    idle: Idle,
    record: FetchRecord,
    wanted: Vec<&'static str>,
    seen: ImageUse,
}

impl Case {
    fn new() -> Self {
        Self {
            idle: Idle::default(),
            record: record(&[(OLD, Some("old")), (NEW, Some("new"))]),
            wanted: vec![NEW],
            seen: ImageUse { images: vec![image("old", &[OLD]), image("new", &[NEW])], used: BTreeSet::new() },
        }
    }

    fn decide(&mut self, now: MonotonicTime) -> ImageCleanupPlan {
        let wanted = self.wanted.iter().copied().map(Cow::from).collect();
        self.idle.decide((now, GRACE), (&self.record, &wanted), &self.seen)
    }

    /// Returns the ids that are removed if nothing changes for the grace period.
    fn removed(&mut self) -> Vec<String> {
        self.decide(MonotonicTime::ZERO);
        self.decide(GRACE).remove.into_iter().map(|image| image.id).collect()
    }

    #[track_caller]
    fn stays(&mut self) {
        assert_eq!(self.removed(), Vec::<String>::new());
    }
}

#[test]
fn an_image_that_nothing_uses_is_removed_after_the_grace() {
    let mut case = Case::new();
    assert_eq!(case.decide(HOUR), ImageCleanupPlan { next: Some(HOUR + GRACE), ..ImageCleanupPlan::default() });
    assert_eq!(case.decide(GRACE).remove, []);
    let verdict = case.decide(HOUR + GRACE);
    let old = UnusedImage { id: "old".to_owned(), tags: vec![OLD.to_owned()], names: [OLD.to_owned()].into() };
    assert_eq!(verdict, ImageCleanupPlan { remove: vec![old], ..ImageCleanupPlan::default() });
}

#[test]
fn the_grace_begins_anew_after_each_use() {
    let mut case = Case::new();
    case.decide(MonotonicTime::ZERO);
    case.idle.another_config(&[OLD.into()].into());
    case.idle.another_config(&[NEW.into()].into());
    assert_eq!(case.decide(GRACE).next, Some(GRACE + GRACE));
    case.seen.used = ["old".to_owned()].into();
    assert_eq!(case.decide(GRACE + HOUR), ImageCleanupPlan::default());
    case.seen.used.clear();
    assert_eq!(case.decide(GRACE + HOUR * 2).next, Some(GRACE + GRACE + HOUR * 2));
}

#[test]
fn a_failed_removal_is_retried_after_another_grace_period() {
    let mut case = Case::new();
    assert_eq!(case.removed(), ["old"]);
    case.idle.restart_age(&[OLD.to_owned()].into());
    assert_eq!(case.decide(GRACE).next, Some(GRACE + GRACE));
}

#[test]
fn an_image_that_a_container_uses_stays_however_the_container_names_it() {
    for name in ["old", OLD, "registry.k8s.io/etcd@sha256:old"] {
        let mut case = Case::new();
        case.seen.used = [name.to_owned()].into();
        case.stays();
    }
}

#[test]
fn an_image_that_the_config_names_stays_under_any_of_its_names() {
    let mut case = Case::new();
    let mirror = "mirror.example.com/etcd:3.6.8-0";
    case.record = record(&[(OLD, Some("old")), (mirror, Some("old"))]);
    case.seen.images = vec![image("old", &[OLD, mirror])];
    case.wanted = vec![mirror];
    case.stays();
    case.wanted.clear();
    assert_eq!(case.removed(), ["old"]);
}

#[test]
fn an_image_without_a_record_stays() {
    let mut case = Case::new();
    case.record = FetchRecord::default();
    case.stays();
    // An image without names cannot be attributed to the agent.
    case.record = record(&[("", None)]);
    case.seen.images = vec![cri::CriImage { tags: Vec::new(), digests: Vec::new(), ..image("old", &[]) }];
    case.stays();
}

#[test]
fn an_image_with_a_foreign_name_stays() {
    let mut case = Case::new();
    case.seen.images = vec![image("old", &[OLD, "example.com/mine:1"])];
    case.stays();
    case.seen.images = vec![image("old", &[OLD])];
    case.seen.images[0].digests.push("example.com/mine@sha256:old".to_owned());
    case.stays();
}

#[test]
fn an_image_that_the_runtime_needs_stays() {
    let mut case = Case::new();
    case.seen.images[0].pinned = true;
    case.stays();
}

#[test]
fn a_name_that_was_moved_to_another_image_is_forgotten() {
    let mut case = Case::new();
    case.seen.images = vec![image("built-here", &[OLD]), image("new", &[NEW])];
    assert_eq!(
        case.decide(MonotonicTime::ZERO),
        ImageCleanupPlan { forget: [OLD.to_owned()].into(), ..ImageCleanupPlan::default() }
    );
    case.stays();
}

#[test]
fn the_record_of_a_missing_image_is_removed_unless_the_config_names_it() {
    let mut case = Case::new();
    case.seen.images.clear();
    assert_eq!(case.decide(MonotonicTime::ZERO).forget, [OLD.to_owned()].into());
}

#[test]
fn a_fetch_whose_end_was_not_recorded_counts() {
    let mut case = Case::new();
    case.record = record(&[(OLD, None)]);
    assert_eq!(case.removed(), ["old"]);
}

#[test]
fn a_repository_is_a_name_without_tag_and_digest() {
    for name in ["r:5000/a/b", "r:5000/a/b:1", "r:5000/a/b@sha256:0", "r:5000/a/b:1@sha256:0"] {
        assert_eq!(repository_of(name), "r:5000/a/b", "{name}");
    }
}
