//! A stream while strangers send initiations.

use crate::report::{Report, Row};
use crate::streams::stream;
use crate::support::{Swarm, chain, public_key, v4};
use crate::{Plan, left, ours, right};

const SERVER: &str = "10.231.0.2:51820";
/// Initiations a second.
const RATE: u32 = 10_000;

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    let (mut calm, mut flooded) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let [a, b] = chain(1500);
        let _far = ours(&b, &right());
        let _near = ours(&a, &left());
        calm.push(stream(&a, &b, v4(2), plan.seconds));
        let flood = Swarm::new(200).initiations(SERVER, public_key(2)).flood(&a, SERVER, RATE);
        flooded.push(stream(&a, &b, v4(2), plan.seconds));
        flood.stop();
    }
    let what = "a stream under 10,000 strangers' handshakes a second, beside none";
    report.add(Row::ratio(what, "Gbit/s", &flooded, &calm, 0.8));
}
