//! Specs that do not run, and why.

/// Labels of specs that do not run, and why.
pub(crate) const LABELS: [(&str, &str); 3] = [
    ("Serial", "they must run alone, and change or fill Nodes that other specs use"),
    ("Slow", "they last for minutes each"),
    ("Disruptive", "they restart or take away what other specs use"),
];

/// Parts of the names of specs that do not run, and why.
pub(crate) const SPECS: [(&str, &str); 3] = [
    ("ImageVolume should succeed with pod and pull policy of Always", NEEDS_REGISTRY),
    // While a pull is in flight, a kubelet refuses the image that it has to all other pods.
    ("should allow server and client pods to establish an mTLS connection", NEEDS_REGISTRY),
    (
        "read only busybox container should not write to root filesystem",
        "it compares a message of busybox's shell; Debian's drops variables that other tests look for, so the image has bash",
    ),
];
const NEEDS_REGISTRY: &str =
    "they pull their image in any case, and the machines of the run have images from archives only";

/// Returns the label filter of ginkgo that selects what runs.
pub(crate) fn label_filter() -> String {
    let labels = LABELS.map(|(label, _)| label).join(" || ");
    format!("Conformance && !({labels})")
}

/// Returns the reason why a spec with this name does not run.
pub(crate) fn reason(name: &str) -> Option<String> {
    let label = || LABELS.iter().find(|(label, _)| name.contains(&format!("[{label}]")));
    let spec = || SPECS.iter().find(|(part, _)| name.contains(part));
    let of_label = label().map(|(label, reason)| format!("`[{label}]`: {reason}"));
    of_label.or_else(|| spec().map(|(_, reason)| (*reason).to_owned()))
}
