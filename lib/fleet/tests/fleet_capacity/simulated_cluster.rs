//! Simulated clusters whose pods arrive in any order and on any node, agents whose reports are late, and a controller that decides by them.

use std::collections::BTreeMap;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use keelway_fleet::{
    CapacityReport, DecisionRequest, FleetState, InventoryNode, ObjectDemand, PlacementOutcome, PolicySet,
    ResourceAmounts, ResourceQuantities, capacity_report, decide, invariants::check_decision, placement_link,
};
use serde_json::{Value as Json, json};

use crate::world::{cluster, deployment, parsed, policy};

const CLUSTERS: [&str; 2] = ["a", "b"];

/// A bug in the code around the decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CapacityBug {
    /// Nothing is reserved for what was decided.
    ReservesNothing,
    /// A reservation ends when the pods exist, and not when a report counts them.
    ReleasesOnArrival,
    /// A reservation ends with the next report, also if it is older than the pods.
    ReleasesOnAnyReport,
    /// A report states more than there is.
    RoundsUp,
}

impl CapacityBug {
    pub(crate) const ALL: [Self; 4] =
        [Self::ReservesNothing, Self::ReleasesOnArrival, Self::ReleasesOnAnyReport, Self::RoundsUp];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Decided,
    /// The pods exist since this time.
    Arrived(i64),
}

#[derive(Debug, Clone)]
struct PlacedPods {
    manifest: Json,
    cluster: &'static str,
    pods: u32,
    cpu: u64,
    /// The nodes of the pods that exist.
    nodes: Vec<usize>,
    progress: Progress,
}

/// The free CPUs of each node, and a report that was not received yet.
#[derive(Debug, Default)]
struct SimulatedNodes {
    capacity: Vec<u64>,
    free: Vec<u64>,
    sent: Option<(i64, CapacityReport)>,
}

/// The simulation. All choices come from the seed.
pub(crate) struct CapacitySimulation {
    random: u64,
    bug: Option<CapacityBug>,
    clock: i64,
    fleet: FleetState,
    clusters: BTreeMap<&'static str, SimulatedNodes>,
    objects: BTreeMap<String, PlacedPods>,
    pub(crate) placed: usize,
    pub(crate) refused: usize,
}

impl CapacitySimulation {
    pub(crate) fn new(seed: u64, bug: Option<CapacityBug>) -> Self {
        let mut fleet = FleetState { policies: PolicySet::read([policy("all", json!({}))]), ..FleetState::default() };
        fleet.clusters.extend(CLUSTERS.map(|name| (name.to_owned(), cluster(name))));
        let mut simulation = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            bug,
            clock: 0,
            fleet,
            clusters: BTreeMap::new(),
            objects: BTreeMap::new(),
            placed: 0,
            refused: 0,
        };
        for name in CLUSTERS {
            let number = 1 + simulation.next(4);
            let capacity: Vec<u64> = (0..number).map(|_| 2 + simulation.next(14)).collect();
            let nodes = SimulatedNodes { free: capacity.clone(), capacity, sent: None };
            simulation.clusters.insert(name, nodes);
        }
        simulation
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % below
    }

    pub(crate) fn run(&mut self, steps: usize) -> Result<(), String> {
        for number in 0..steps {
            self.clock += 1;
            let name = CLUSTERS[usize::from(self.next(2) == 1)];
            match self.next(12) {
                0..=4 => self.submit(number)?,
                5..=7 => self.arrive()?,
                8 => self.delete(),
                9 => self.report(name),
                _ => self.receive(name),
            }
        }
        Ok(())
    }

    fn submit(&mut self, number: usize) -> Result<(), String> {
        let (pods, cpu) = (u32::try_from(1 + self.next(3)).unwrap(), 1 + self.next(5));
        let name = format!("o{number}");
        let mut manifest = deployment(&name, pods, json!({}), json!({}));
        let requests = json!({ "requests": { "cpu": cpu.to_string() } });
        manifest["spec"]["template"]["spec"] = json!({ "containers": [{ "name": "c", "resources": requests }] });
        let object = parsed(&manifest);
        let request = DecisionRequest { object: &object, is_autoscaled: false, current: None };
        let decision = decide(&self.fleet, &request);
        if let Some(violation) = check_decision(&self.fleet, &request, &decision).first() {
            return Err(violation.to_string());
        }
        let PlacementOutcome::Place(placement) = decision.outcome else { return Err("not decided".to_owned()) };
        let Some(chosen) = placement.clusters.first() else {
            self.refused += 1;
            return Ok(());
        };
        self.placed += 1;
        let cluster = CLUSTERS.into_iter().find(|name| *name == chosen.name).unwrap();
        if self.bug != Some(CapacityBug::ReservesNothing) {
            let demand = self.fleet.pod_kinds.demand(&manifest);
            self.reserve(&manifest, cluster, demand);
        }
        let placed = PlacedPods { manifest, cluster, pods, cpu, nodes: Vec::new(), progress: Progress::Decided };
        self.objects.insert(name, placed);
        Ok(())
    }

    fn reserve(&mut self, manifest: &Json, cluster: &str, demand: ObjectDemand) {
        let link = placement_link(&parsed(manifest).reference);
        self.fleet.capacity.reserve(&link, &[(cluster.to_owned(), demand)].into());
    }

    fn pick(&mut self, is: impl Fn(&PlacedPods) -> bool) -> Option<String> {
        let names: Vec<String> = self.objects.iter().filter(|(_, one)| is(one)).map(|(name, _)| name.clone()).collect();
        let index = if names.is_empty() { return None } else { self.next(names.len() as u64) };
        names.get(usize::try_from(index).unwrap()).cloned()
    }

    /// The pods of an object get nodes, each any node on which it fits.
    fn arrive(&mut self) -> Result<(), String> {
        let Some(name) = self.pick(|one| one.progress == Progress::Decided) else { return Ok(()) };
        let mut object = self.objects[&name].clone();
        for _ in 0..object.pods {
            let free = &self.clusters[object.cluster].free;
            let fitting: Vec<usize> = (0..free.len()).filter(|node| free[*node] >= object.cpu).collect();
            if fitting.is_empty() {
                return Err(format!(
                    "{} is overfilled: {free:?} are free, and a pod needs {}",
                    object.cluster, object.cpu
                ));
            }
            let node = fitting[usize::try_from(self.next(fitting.len() as u64)).unwrap()];
            self.clusters.get_mut(object.cluster).unwrap().free[node] -= object.cpu;
            object.nodes.push(node);
        }
        object.progress = Progress::Arrived(self.clock);
        if self.bug == Some(CapacityBug::ReleasesOnArrival) {
            self.reserve(&object.manifest, object.cluster, ObjectDemand::default());
        }
        self.objects.insert(name, object);
        Ok(())
    }

    fn delete(&mut self) {
        let Some(name) = self.pick(|one| matches!(one.progress, Progress::Arrived(_))) else { return };
        let object = self.objects.remove(&name).unwrap();
        let nodes = self.clusters.get_mut(object.cluster).unwrap();
        object.nodes.iter().for_each(|node| nodes.free[*node] += object.cpu);
        self.reserve(&object.manifest, object.cluster, ObjectDemand::default());
    }

    /// An agent sends a report. It may be received much later.
    fn report(&mut self, name: &'static str) {
        let clock = self.clock;
        let rounds_up = self.bug == Some(CapacityBug::RoundsUp);
        let nodes = self.clusters.get_mut(name).unwrap();
        if nodes.sent.is_some() {
            return;
        }
        let quantity = |cpu: u64| {
            ResourceQuantities::from([("cpu".to_owned(), cpu.to_string()), ("pods".to_owned(), "110".to_owned())])
        };
        let one = |(capacity, free): (&u64, &u64)| {
            let used = ResourceQuantities::from([("cpu".to_owned(), (capacity - free).to_string())]);
            let requested = if rounds_up { ResourceAmounts::default() } else { ResourceAmounts::available(&used) };
            InventoryNode { requested, ..InventoryNode::new(BTreeMap::new(), Vec::new(), &quantity(*capacity)) }
        };
        let inventory: Vec<InventoryNode> = nodes.capacity.iter().zip(&nodes.free).map(one).collect();
        let time = MicroTime(Timestamp::from_second(clock).unwrap());
        nodes.sent = Some((clock, capacity_report(&inventory, &[], Some(&time), 100_000)));
    }

    /// The controller receives a report.
    fn receive(&mut self, name: &'static str) {
        let Some((time, report)) = self.clusters.get_mut(name).unwrap().sent.take() else { return };
        self.fleet.capacity.report(name, Some(&report));
        let is_any = self.bug == Some(CapacityBug::ReleasesOnAnyReport);
        let counted = self.objects.values().filter(|object| match object.progress {
            Progress::Arrived(at) => object.cluster == name && (at <= time || is_any),
            Progress::Decided => false,
        });
        let counted: Vec<Json> = counted.map(|object| object.manifest.clone()).collect();
        for manifest in counted {
            self.reserve(&manifest, name, ObjectDemand::default());
        }
    }
}
