//! Replaces replicas of a role one at a time, each while the others work.

use alloc::{collections::BTreeSet, vec::Vec};

use keelway_api::{
    component::ComponentSpec,
    machine::{Pod, ServerAdmin},
    name::{HypervisorName, PodName},
    role::Role,
    sleep::SleepPhase,
};

use crate::{
    ComponentRef, PassObservation, WaitBlocker, WaitKind, Waiting,
    component_set::are_colocated,
    haproxy_name::server_name,
    membership::{OutdatedServers, changed_before_servers, is_awaited},
    rebuild::rebuild_of,
    tenant::Tenant,
    waves::is_upgrading,
};

/// The pods that are held, and those that wait.
#[derive(Default)]
pub(crate) struct ReplacementTurns<'a> {
    held: BTreeSet<&'a PodName>,
    /// Components that wait for their turn to be replaced.
    pub(crate) waiting: Vec<Waiting>,
    /// API servers that are to be replaced before a member leaves their store.
    pub(crate) outdated: OutdatedServers,
}

impl<'a> ReplacementTurns<'a> {
    /// Holds all running replicas that a cluster relies on, except the one of each role whose turn it is. If the cluster is paused, or lacks an
    /// authority or key of its own, this holds all its components.
    ///
    /// The only replica of its role is not held, because no other replica can take over. API servers are all held while a member of their store is added
    /// or replaced, for some minutes and while one of them works.
    pub(crate) fn take(
        &mut self,
        tenant: &Tenant<'a>,
        seen: &PassObservation,
        wanted: impl Fn(&PodName, &ComponentSpec) -> Option<Pod>,
    ) {
        if tenant.is_frozen() {
            self.hold_unchanged(tenant, seen, wanted);
            return;
        }
        if tenant.cluster.paused || tenant.unusable_secrets.is_some() {
            self.held.extend(tenant.components.iter().map(|(name, _)| *name));
            return;
        }
        if !tenant.document.is_awake() {
            self.take_in_sleep(tenant, seen, wanted);
            return;
        }
        if is_awaited(tenant.document) {
            let outdated = Replicas::of(tenant, seen, Role::KubeApiserver, None).replaced(&wanted);
            self.outdated.extend(outdated.first().map(|name| (tenant.id.clone(), name.component.clone())));
        }
        // The machine of the ingress whose turn it is. A gateway on another machine must not stop at the same time.
        let mut public_turn: Option<&HypervisorName> = None;
        let is_rebuilt = rebuild_of(tenant.document).is_some();
        for role in Role::ALL {
            // One member runs, and the others are stopped.
            if role == Role::Etcd && is_rebuilt {
                continue;
            }
            let beside = public_turn.filter(|_| role == Role::Gateway);
            let replicas = Replicas::of(tenant, seen, role, beside);
            if let Some(member) = changed_before_servers(tenant.document)
                && role == Role::KubeApiserver
                && replicas.all.iter().any(|(name, _)| seen.healthy(name))
            {
                for name in replicas.replaced(&wanted) {
                    self.wait(tenant, name, WaitBlocker::ReplacedAfterMember(member.clone()));
                }
                self.held.extend(replicas.all.iter().map(|(name, _)| *name));
                continue;
            }
            if replicas.all.len() < 2 || !is_relied_on(role) {
                // A cluster reaches a release only after its last component was replaced.
                if is_upgrading(tenant.document) {
                    for name in replicas.replaced(&wanted) {
                        self.wait(tenant, name, WaitBlocker::Replacement);
                    }
                }
                continue;
            }
            let replaced = replicas.replaced(&wanted);
            let turn = replicas.turn(&replaced);
            if role == Role::Ingress {
                public_turn = turn.and_then(|name| replicas.machine(name));
            }
            for name in &replaced {
                if turn != Some(*name) {
                    self.wait(tenant, name, replicas.reason(name, turn));
                } else if is_upgrading(tenant.document) {
                    self.wait(tenant, name, WaitBlocker::Replacement);
                }
            }
            self.held.extend(replicas.all.iter().map(|(name, _)| *name).filter(|name| turn != Some(*name)));
        }
    }

    /// Holds the ingresses of a cluster that sleeps and that answer, except the one whose turn it is. A machine that does not respond is not awaited: a
    /// certificate may end first. None is held while the ingresses begin to answer, because the API servers wait for all of them, nor when they stop
    /// to answer, because no request could succeed before.
    fn take_in_sleep(
        &mut self,
        tenant: &Tenant<'a>,
        seen: &PassObservation,
        wanted: impl Fn(&PodName, &ComponentSpec) -> Option<Pod>,
    ) {
        let phase = tenant.document.sleep_phase();
        let are_all_replaced = matches!(phase, Some(SleepPhase::Answering | SleepPhase::StartingServers));
        if tenant.document.deleted() || are_all_replaced {
            return;
        }
        let mut ingresses = Replicas::of(tenant, seen, Role::Ingress, None);
        ingresses.all.retain(|(_, spec)| seen.machine(&spec.hypervisor).is_some());
        if ingresses.all.len() < 2 {
            return;
        }
        let replaced = ingresses.replaced(wanted);
        let turn = ingresses.turn(&replaced);
        for name in replaced.into_iter().filter(|name| turn != Some(*name) && seen.healthy(name)) {
            self.wait(tenant, name, ingresses.reason(name, turn));
            self.held.insert(name);
        }
    }

    fn wait(&mut self, tenant: &Tenant<'a>, name: &PodName, blocker: WaitBlocker) {
        let component = ComponentRef::of(&tenant.cluster.reference, name);
        self.waiting.push(Waiting::of_cluster(component, WaitKind::InProgress, blocker));
    }

    /// Holds what is held in every pass, so that configs stay the same, and what would be replaced.
    fn hold_unchanged(
        &mut self,
        tenant: &Tenant<'a>,
        seen: &PassObservation,
        wanted: impl Fn(&PodName, &ComponentSpec) -> Option<Pod>,
    ) {
        for role in Role::ALL {
            let replicas = Replicas::of(tenant, seen, role, None);
            if is_relied_on(role) && replicas.all.len() > 1 {
                self.held.extend(replicas.all.iter().map(|(name, _)| *name));
            } else {
                self.held.extend(replicas.replaced(&wanted));
            }
        }
    }

    /// Whether the running pod continues although it is to be replaced.
    pub(crate) fn is_held(&self, pod: &PodName) -> bool {
        self.held.contains(pod)
    }
}

/// Whether requests fail while no replica of a role works. One controller leads at a time, and the next leader catches up on missed work.
fn is_relied_on(role: Role) -> bool {
    match role {
        Role::Etcd | Role::KubeApiserver | Role::Ingress | Role::Gateway => true,
        Role::KubeControllerManager | Role::KubeScheduler | Role::ClusterController | Role::FleetController => false,
    }
}

/// All components of one role of a cluster. Those that are leaving but not stopping are included.
struct Replicas<'t, 'a> {
    tenant: &'t Tenant<'a>,
    seen: &'t PassObservation,
    role: Role,
    /// The only machine on which a replica may be replaced now. None: any machine.
    only_on: Option<&'a HypervisorName>,
    all: Vec<(&'a PodName, &'a ComponentSpec)>,
}

impl<'t, 'a> Replicas<'t, 'a> {
    fn of(tenant: &'t Tenant<'a>, seen: &'t PassObservation, role: Role, only_on: Option<&'a HypervisorName>) -> Self {
        let all = tenant.of_role(role).filter(|(_, component)| !component.is_stopping());
        let all = all.map(|(name, component)| (name, &component.spec)).collect();
        Self { tenant, seen, role, only_on, all }
    }

    fn machine(&self, name: &PodName) -> Option<&'a HypervisorName> {
        self.all.iter().find(|(other, _)| *other == name).map(|(_, spec)| &spec.hypervisor)
    }

    /// The running replicas that are to be replaced.
    fn replaced(&self, wanted: impl Fn(&PodName, &ComponentSpec) -> Option<Pod>) -> Vec<&'a PodName> {
        let is_replaced = |(name, spec): &&(&'a PodName, &'a ComponentSpec)| {
            let state = self.seen.machine(&spec.hypervisor);
            let wanted = state.and_then(|_| wanted(name, spec));
            wanted.zip(state).is_some_and(|(pod, state)| state.is_interrupted(name, (&pod, &pod.digests())))
        };
        self.all.iter().filter(is_replaced).map(|(name, _)| *name).collect()
    }

    /// The first replica that is to be replaced and can be spared. If a machine cannot be observed, the turn of a replica there may not be over. An
    /// immediate rotation does not wait for that, as long as another replica works; but the majority of a store may depend on it.
    fn turn(&self, replaced: &[&'a PodName]) -> Option<&'a PodName> {
        if self.awaited().is_some() {
            return None;
        }
        let is_here = |name: &PodName| self.only_on.is_none_or(|machine| self.machine(name) == Some(machine));
        replaced.iter().copied().find(|name| is_here(name) && self.can_spare(name))
    }

    /// The machine of a replica that cannot be observed.
    fn unseen(&self) -> Option<&'a HypervisorName> {
        let mut machines = self.all.iter().map(|(_, spec)| &spec.hypervisor);
        machines.find(|name| self.seen.machine(name).is_none())
    }

    /// The machine whose observation a turn waits for.
    fn awaited(&self) -> Option<&'a HypervisorName> {
        self.unseen().filter(|_| self.role == Role::Etcd || !self.tenant.document.has_immediate_rotation())
    }

    /// What a replica that is to be replaced waits for.
    fn reason(&self, name: &PodName, turn: Option<&PodName>) -> WaitBlocker {
        let ill = self.all.iter().find(|(other, _)| *other != name && !self.seen.healthy(other));
        match (turn, self.awaited(), ill, self.ingress_of_no_other(name)) {
            (Some(first), _, _, _) => WaitBlocker::ReplacedAfter(first.component.clone()),
            (None, Some(machine), _, _) => WaitBlocker::ReplacedOnceObserved(machine.clone()),
            (None, None, _, Some(ingress)) if self.healthy_others(name).next().is_some() => {
                WaitBlocker::ReplacedOnceUsed(ingress.component.clone())
            }
            (None, None, Some((other, _)), _) => WaitBlocker::ReplacedOnceReady(other.component.clone()),
            (None, None, None, _) => WaitBlocker::ReplacedOnceSpared,
        }
    }

    /// If no replica works, nothing is lost by a replacement, and the new replicas may work. A replica whose health check got no response may
    /// work: if it hangs, its agent's liveness check stops it, and a pod that does not run is not held.
    fn can_spare(&self, name: &PodName) -> bool {
        let spared = match self.role {
            Role::Etcd => self.all.iter().all(|(other, _)| *other == name || self.seen.healthy(other)),
            Role::KubeApiserver => {
                self.healthy_others(name).next().is_some() && self.ingress_of_no_other(name).is_none()
            }
            Role::Ingress | Role::Gateway => self.healthy_others(name).any(|other| self.is_whole(other)),
            Role::KubeControllerManager | Role::KubeScheduler | Role::ClusterController | Role::FleetController => {
                self.healthy_others(name).next().is_some()
            }
        };
        spared || !self.all.iter().any(|(name, _)| self.seen.healthy(name) || self.seen.may_be_working(name))
    }

    /// Whether an ingress or gateway is healthy, together with the one beside it if there is one. A gateway that is stopped in sleep does not count.
    fn is_whole(&self, name: &PodName) -> bool {
        let twin = if self.role == Role::Ingress { Role::Gateway } else { Role::Ingress };
        let own = self.all.iter().find(|(other, _)| *other == name);
        let twins = self.tenant.of_role(twin).filter(|_| !self.tenant.document.stops_in_sleep(twin));
        let mut twins = twins.filter(|(_, other)| own.is_some_and(|(_, own)| are_colocated(own, &other.spec)));
        self.seen.healthy(name) && twins.all(|(twin, _)| self.seen.healthy(twin))
    }

    /// The other replicas that are healthy. One that cannot be observed may be away for its own replacement, although it was just asked for its health.
    fn healthy_others(&self, name: &PodName) -> impl Iterator<Item = &'a PodName> {
        let observed = self.all.iter().filter(|(_, spec)| self.seen.machine(&spec.hypervisor).is_some());
        observed.map(|(other, _)| *other).filter(move |other| *other != name && self.seen.healthy(other))
    }

    /// The first ingress that sends connections to this API server and to no other healthy one. haproxy may find a server ready later than a pass does.
    fn ingress_of_no_other(&self, server: &PodName) -> Option<&'a PodName> {
        let mut ingresses = self.tenant.of_role(Role::Ingress).filter(|_| self.role == Role::KubeApiserver);
        let found = ingresses.find(|(ingress, component)| {
            let state = self.seen.machine(&component.spec.hypervisor);
            let Some(servers) = state.and_then(|state| state.servers.get(*ingress)) else { return false };
            // Agents of earlier releases do not report what is ready. An immediate rotation does not wait for a haproxy that reaches no other server.
            let are_checked = servers.values().any(|found| found.ready);
            let is_enough = !are_checked || self.tenant.document.has_immediate_rotation();
            let is_used = |server: &PodName| {
                let found = servers.get(&server_name(server));
                found.is_some_and(|found| found.serves() || (is_enough && found.admin == ServerAdmin::Serves))
            };
            is_used(server) && !self.healthy_others(server).any(is_used)
        });
        found.map(|(ingress, _)| ingress)
    }
}
