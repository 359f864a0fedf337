//! Tests of the agent against the fake runtime. The machine's root is a temporary directory, and the API is on its own socket.
#![expect(clippy::unwrap_used, reason = "this is all test")]

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    sync::Mutex,
    time::Duration,
};

use futures::StreamExt;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use keelway_agent_api::{
    client::{AgentClientError, ConfigOutcome, DataRestoreOrder, HypervisorAgentClient},
    wire::encode_config,
};
use keelway_api::{
    machine::{
        ConfigFormat, Container, ContainerPhase, ContainerResources, FormatRange, MachineConfig, MachineState,
        OnChange, Pod, PodFile, Start, fetch_failure,
    },
    name::PodName,
};
use keelway_base::{
    error_chain::chain_text,
    root_socket::{RootSocket, RootSocketError},
};
use keelway_cri::{
    ContainerSpec, CriRuntime, Deadlines, SandboxSpec,
    fake::{CallFault, Fake, serve},
};
use keelway_hypervisor_agent::agent::{AgentLimits, ImageLimits, LogLimits, run_with_limits};
use keelway_machine::{converge::applied_by, leader::Leader};
use keelway_machine_io::{access::MachineAccess, local::LocalMachine};
use rustix::{fs::Uid, thread::set_thread_res_uid};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split},
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status, client::Grpc, transport::Endpoint};
use tonic_prost::ProstCodec;

const WITHIN: Duration = Duration::from_secs(60);
const CONFIG: &str = "var/lib/keelway/config";

/// A machine whose agent can be stopped and started again.
struct Machine {
    root: TempDir,
    fake: Fake,
    /// Whether responses of the runtime are held back.
    hung: watch::Sender<bool>,
    agent: Option<(CancellationToken, JoinHandle<()>)>,
}

/// Dials the runtime. Its responses arrive only while `hung` is false.
async fn dial(socket: PathBuf, mut hung: watch::Receiver<bool>) -> io::Result<DuplexStream> {
    let (mut answers, requests) = UnixStream::connect(socket).await?.into_split();
    let (ours, theirs) = duplex(1 << 16);
    let (mut from_client, mut to_client) = split(theirs);
    tokio::spawn(async move {
        let mut requests = requests;
        tokio::io::copy(&mut from_client, &mut requests).await
    });
    tokio::spawn(async move {
        let mut buffer = [0; 1 << 14];
        while let Ok(count @ 1..) = answers.read(&mut buffer).await {
            hung.wait_for(|hung| !hung).await.unwrap();
            to_client.write_all(&buffer[..count]).await.unwrap();
        }
    });
    Ok(ours)
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("keelway-agent-").tempdir().unwrap();
        for path in ["var/lib", "var/log"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let fake = Fake::new();
        for image in ["example.test/etcd:1", "example.test/pause:1"] {
            fake.add_image(image);
        }
        fs::create_dir(root.path().join("run")).unwrap();
        let listener = UnixListener::bind(root.path().join("run/cri.sock")).unwrap();
        tokio::spawn(serve(listener, fake.clone()));
        let mut machine = Self { root, fake, hung: watch::Sender::new(false), agent: None };
        machine.start(Deadlines::default());
        machine
    }

    fn socket(&self) -> PathBuf {
        self.root.path().join("run/agent.sock")
    }

    fn start(&mut self, deadlines: Deadlines) {
        self.start_within(deadlines, AgentLimits::default());
    }

    fn start_within(&mut self, deadlines: Deadlines, limits: AgentLimits) {
        let access = MachineAccess::of_root(fs::File::open(self.root.path()).unwrap().into());
        let (socket, hung) = (self.root.path().join("run/cri.sock"), self.hung.subscribe());
        let runtime = CriRuntime::dialled_by(move || dial(socket.clone(), hung.clone()), deadlines);
        let machine = LocalMachine::new(access, runtime, None);
        let listener = RootSocket::bind(&self.socket()).unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { run_with_limits(machine, listener, limits, stop).await.unwrap() }
        });
        self.agent = Some((stop, running));
    }

    async fn stop(&mut self) {
        let (stop, running) = self.agent.take().unwrap();
        stop.cancel();
        timeout(WITHIN, running).await.unwrap().unwrap();
    }

    fn client(&self) -> HypervisorAgentClient {
        HypervisorAgentClient::on_socket(&self.socket())
    }

    async fn apply(&self, config: &MachineConfig) -> Result<ConfigOutcome, AgentClientError> {
        timeout(WITHIN, self.client().apply(config, &|_| {})).await.unwrap()
    }

    async fn settle(&self, config: &MachineConfig) -> ConfigOutcome {
        let finished = self.apply(config).await.unwrap();
        assert_eq!(finished.failures, Vec::<String>::new());
        finished
    }

    async fn state(&self) -> MachineState {
        self.client().state(WITHIN).await.unwrap()
    }

    /// Waits, by means of the watch, until the state matches.
    async fn until(&self, seen: impl Fn(&MachineState) -> bool) -> MachineState {
        let waiting = async {
            let mut revisions = self.client().watch(WITHIN).await.unwrap();
            loop {
                let state = self.state().await;
                if seen(&state) {
                    return state;
                }
                revisions.next().await.unwrap();
            }
        };
        timeout(WITHIN, waiting).await.unwrap()
    }
}

fn name(component: &str) -> PodName {
    PodName { cluster: "0123456789abcdef".parse().unwrap(), component: component.parse().unwrap() }
}

fn pod(content: &str) -> Pod {
    Pod {
        user: 20_000,
        files: vec![PodFile { path: "key".to_owned(), content: content.into(), on_change: OnChange::PickedUp }],
        data: vec!["data".to_owned()],
        containers: vec![Container {
            name: "main".to_owned(),
            image: "example.test/etcd:1".to_owned(),
            command: vec!["etcd".to_owned()],
            mounts: Vec::new(),
            resources: ContainerResources {
                cpu_request_millis: 100,
                cpu_limit_millis: None,
                memory_limit_bytes: 1 << 28,
            },
            stop_seconds: 1,
            liveness: None,
        }],
        pause_image: "example.test/pause:1".to_owned(),
        servers: None,
        start: keelway_api::machine::Start::Always,
        hold: false,
        registries: std::collections::BTreeMap::new(),
        prefetch: std::collections::BTreeSet::new(),
    }
}

fn config(generation: u64, content: &str, components: &[&str]) -> MachineConfig {
    let pods: BTreeMap<_, _> = components.iter().map(|component| (name(component), pod(content))).collect();
    MachineConfig {
        format: keelway_api::machine::ConfigFormat::NEWEST,
        installation: "00000000000000ff".parse().unwrap(),
        term: 1,
        generation,
        pods,
        others: std::collections::BTreeSet::new(),
        removals: std::collections::BTreeMap::new(),
    }
}

fn running(state: &MachineState) -> Vec<&str> {
    let running = state.containers.iter().filter(|container| container.phase == ContainerPhase::Running);
    running.map(|container| container.id.as_str()).collect()
}

#[tokio::test]
async fn a_config_is_applied_and_its_progress_is_reported() {
    let machine = Machine::new();
    let config = config(1, "a", &["etcd-0", "etcd-1"]);
    let told = Mutex::new(Vec::new());
    let tell = |effect: &str| told.lock().unwrap().push(effect.to_owned());
    let finished = timeout(WITHIN, machine.client().apply(&config, &tell)).await.unwrap().unwrap();
    assert_eq!(finished.failures, Vec::<String>::new());
    let told = told.into_inner().unwrap();
    assert_eq!(u64::try_from(told.len()).unwrap(), finished.effects, "{told:?}");
    assert!(told.contains(&"record config 1.1 as applied".to_owned()), "{told:?}");
    let state = machine.state().await;
    assert_eq!(running(&state).len(), 2);
    assert_eq!(state.applied.map(|applied| (applied.term, applied.generation)), Some((1, 1)));
    assert_eq!(machine.settle(&config).await, ConfigOutcome::default(), "the same again is nothing to do");
}

#[tokio::test]
async fn the_config_is_sent_to_the_installation_that_the_machine_obeys_alone() {
    let mut machine = Machine::new();
    let config = config(3, "a key", &["etcd-0", "etcd-1"]);
    let (own, other) = (config.installation.clone(), "00000000000000ee".parse().unwrap());
    assert_eq!(machine.client().config(&own, WITHIN).await.unwrap(), None, "it holds none");
    machine.settle(&config).await;
    for restarted in [false, true] {
        if restarted {
            machine.stop().await;
            machine.start(Deadlines::default());
        }
        assert_eq!(machine.client().config(&own, WITHIN).await.unwrap().as_ref(), Some(&config));
        let refused = machine.client().config(&other, WITHIN).await.unwrap_err();
        assert!(matches!(refused, AgentClientError::Refused(_)), "{refused:?}");
        assert!(chain_text(&refused).contains("obeys installation 00000000000000ff"), "{}", chain_text(&refused));
    }
    fs::write(machine.root.path().join("var/lib/keelway/owner"), "00000000000000ee\n").unwrap();
    let refused = machine.client().config(&own, WITHIN).await.unwrap_err();
    assert!(matches!(refused, AgentClientError::Refused(_)), "another installation took the machine over: {refused:?}");
    let refused = machine.client().config(&other, WITHIN).await.unwrap_err();
    assert!(matches!(refused, AgentClientError::Refused(_)), "the config is not of that one: {refused:?}");
}

#[tokio::test]
async fn the_config_on_disk_is_roots_and_the_socket_too() {
    let machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0"])).await;
    for path in [machine.root.path().join(CONFIG), machine.socket()] {
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o600), "{}", path.display());
    }
    let taken = RootSocket::bind(&machine.socket()).unwrap_err();
    assert!(matches!(taken, RootSocketError::Taken { .. }), "{taken:?}");
}

#[tokio::test]
async fn only_root_is_let_in() {
    let machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0"])).await;
    // The permissions of the files allow every user to connect.
    for path in [machine.socket(), machine.root.path().join("run"), machine.root.path().to_owned()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    for (user, greeted) in [(Uid::ROOT, true), (Uid::from_raw(65534), false)] {
        let socket = machine.socket();
        let read = move || {
            // This sets the user of this thread alone, which ends after the connection.
            set_thread_res_uid(user, user, user).unwrap();
            let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
            stream.set_read_timeout(Some(WITHIN)).unwrap();
            // A server of HTTP/2 sends its settings first. The agent closes a connection that it refuses.
            std::io::Read::read(&mut stream, &mut [0]).is_ok_and(|count| count == 1)
        };
        let (done, result) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || done.send(read()).unwrap());
        assert_eq!(result.await.unwrap(), greeted, "{user:?}");
    }
}

#[tokio::test]
async fn an_exited_container_is_restarted_by_the_agent() {
    let machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0", "etcd-1"])).await;
    let before = machine.state().await;
    assert_eq!(machine.fake.exit_container("main", 137), 2);
    let new = |state: &MachineState| running(state).into_iter().filter(|id| !running(&before).contains(id)).count();
    let after = machine.until(|state| new(state) == 2).await;
    assert_eq!(after.sandboxes, before.sandboxes);
}

#[tokio::test]
async fn files_are_mended() {
    let machine = Machine::new();
    let config = config(1, "a", &["etcd-0"]);
    machine.settle(&config).await;
    let file = machine.root.path().join("var/lib/keelway/0123456789abcdef/etcd-0/files/key");
    fs::write(&file, "changed").unwrap();
    machine.settle(&config).await;
    assert_eq!(fs::read_to_string(file).unwrap(), "a");
}

#[tokio::test]
async fn a_restarted_agent_continues_from_its_disk_and_restarts_nothing() {
    let mut machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0", "etcd-1"])).await;
    let before = machine.state().await;
    machine.stop().await;
    machine.start(Deadlines::default());
    assert_eq!(running(&machine.until(|_| true).await), running(&before));

    // A container that exits while no agent runs is restarted by the next agent.
    machine.stop().await;
    assert_eq!(machine.fake.exit_container("main", 1), 2);
    machine.start(Deadlines::default());
    machine.until(|state| running(state).len() == 2).await;
}

/// The agent refuses configs of a driver with an earlier term, also after its own restart. Running containers are not restarted.
#[tokio::test]
async fn a_leader_before_the_newest_is_refused() {
    let mut machine = Machine::new();
    let led = |term| Leader { installation: config(1, "", &[]).installation, term };
    assert_eq!(machine.client().fence(&led(0), WITHIN).await.unwrap(), 0, "of none yet");
    let first = config(1, "a", &["etcd-0"]);
    machine.settle(&first).await;
    let before = machine.state().await;
    assert_eq!(machine.client().fence(&led(3), WITHIN).await.unwrap(), 3);
    for restarted in [false, true] {
        if restarted {
            machine.stop().await;
            machine.start(Deadlines::default());
        }
        let error = machine.apply(&config(2, "b", &["etcd-0"])).await.unwrap_err();
        assert!(chain_text(&error).contains("obeys the driver of term 3"), "{}", chain_text(&error));
        assert_eq!(machine.client().fence(&led(2), WITHIN).await.unwrap(), 3, "the newest leads");
        assert_eq!(machine.settle(&first).await.effects, 0, "what is in effect may be said again");
        let state = machine.state().await;
        assert_eq!((state.term, running(&state)), (3, running(&before)));
    }
    let another = Leader { installation: "00000000000000ee".parse().unwrap(), term: 9 };
    let error = machine.client().fence(&another, WITHIN).await.unwrap_err();
    assert!(chain_text(&error).contains("adopt --from 00000000000000ff"), "{}", chain_text(&error));
    machine.settle(&MachineConfig { term: 3, ..config(2, "b", &["etcd-0"]) }).await;
    // The agent removes all of its files once the machine has no pods. It refuses an earlier term even then.
    machine.settle(&MachineConfig { term: 3, ..config(3, "", &[]) }).await;
    assert!(!machine.root.path().join("var/lib/keelway").exists());
    assert!(machine.apply(&config(4, "c", &["etcd-0"])).await.is_err());
    assert_eq!(machine.client().fence(&led(4), WITHIN).await.unwrap(), 4);
    assert!(!machine.root.path().join("var/lib/keelway").exists());
}

#[tokio::test]
async fn older_changed_and_foreign_configs_are_refused() {
    let mut machine = Machine::new();
    machine.settle(&config(2, "a", &["etcd-0"])).await;
    let stranger = MachineConfig { installation: "00000000000000ee".parse().unwrap(), ..config(9, "a", &["etcd-0"]) };
    let invalid = {
        let mut config = config(9, "a", &["etcd-0"]);
        config.pods.get_mut(&name("etcd-0")).unwrap().user = 0;
        config
    };
    for _ in 0..2 {
        let cases = [
            (config(1, "a", &["etcd-0"]), "stale documents"),
            (config(2, "b", &["etcd-0"]), "with different content"),
            (stranger.clone(), "obeys installation 00000000000000ff"),
            (invalid.clone(), "must not run as root"),
        ];
        for (config, word) in cases {
            let refused = machine.apply(&config).await.unwrap_err();
            assert!(
                matches!(&refused, AgentClientError::Refused(words) if words.to_string().contains(word)),
                "{refused:?}"
            );
        }
        // The stored config is enough to refuse them, also without the record of the applied config.
        fs::remove_file(machine.root.path().join("var/lib/keelway/applied")).unwrap();
        machine.stop().await;
        machine.start(Deadlines::default());
        machine.settle(&config(2, "a", &["etcd-0"])).await;
    }
}

/// Sends a config as bytes, valid or not.
async fn apply_bytes(machine: &Machine, config: Vec<u8>) -> Result<(), Status> {
    let socket = machine.socket();
    let connector = tower::service_fn(move |_: http::Uri| {
        let dialling = UnixStream::connect(socket.clone());
        async { Ok::<_, io::Error>(TokioIo::new(dialling.await?)) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
    let mut agent = Grpc::new(channel);
    agent.ready().await.unwrap();
    // On the wire, `Vec<u8>` is a message with bytes as its first field, as `ApplyRequest` has for the config.
    let codec = ProstCodec::<Vec<u8>, ()>::default();
    let method = PathAndQuery::from_static("/keelway.agent.v1.Agent/Apply");
    let mut events = agent.server_streaming(Request::new(config), method, codec).await?.into_inner();
    while events.message().await?.is_some() {}
    Ok(())
}

#[tokio::test]
async fn a_config_of_a_newer_format_is_refused_and_the_one_before_stays() {
    let machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0"])).await;
    let before = machine.state().await;
    let newer = [encode_config(&config(2, "b", &["etcd-0"])), vec![0xc0, 2, 3]].concat();
    let refused = apply_bytes(&machine, newer).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("format 3, but this agent supports formats 1 to 2"), "{refused}");
    let after = machine.state().await;
    assert_eq!((after.applied, after.sandboxes), (before.applied, before.sandboxes));
    assert_eq!(after.formats, FormatRange::OWN);
}

/// The agent compares the digests of a config and never calculates them: another release can calculate them differently.
#[tokio::test]
async fn revisions_are_compared_and_never_made() {
    let mut machine = Machine::new();
    let made = config(1, "a", &["etcd-0"]).pods[&name("etcd-0")].digest();
    let of_another_release = |config: &MachineConfig| {
        let bytes = encode_config(config);
        let place = bytes.windows(made.len()).position(|window| window == made.as_bytes()).unwrap();
        [&bytes[..place], "r".repeat(made.len()).as_bytes(), &bytes[place + made.len()..]].concat()
    };
    apply_bytes(&machine, of_another_release(&config(1, "a", &["etcd-0"]))).await.unwrap();
    let before = machine.state().await;
    assert_eq!(before.sandboxes[0].digest, "r".repeat(made.len()));
    machine.stop().await;
    machine.start(Deadlines::default());
    apply_bytes(&machine, of_another_release(&config(2, "a", &["etcd-0"]))).await.unwrap();
    assert_eq!(machine.state().await.sandboxes, before.sandboxes);
    machine.settle(&config(3, "a", &["etcd-0"])).await;
    assert_eq!(machine.state().await.sandboxes[0].digest, made, "it is replaced for another value alone");
}

#[tokio::test]
async fn a_driver_of_v0_1_0_is_obeyed_and_its_upgrade_restarts_nothing() {
    let mut machine = Machine::new();
    let of_v0_1_0 = |generation| MachineConfig { format: ConfigFormat::One, ..config(generation, "a", &["etcd-0"]) };
    machine.settle(&of_v0_1_0(1)).await;
    let before = machine.state().await;
    assert_eq!(before.applied, Some(applied_by(&of_v0_1_0(1))));
    machine.stop().await;
    machine.start(Deadlines::default());
    machine.settle(&of_v0_1_0(2)).await;
    machine.settle(&config(2, "a", &["etcd-0"])).await;
    machine.settle(&config(3, "a", &["etcd-0"])).await;
    let after = machine.state().await;
    assert_eq!((&after.sandboxes, running(&after)), (&before.sandboxes, running(&before)));
}

/// A way in which the stored config is damaged between two runs of the agent.
type Loss = (&'static str, fn(&std::path::Path));

const LOSSES: [Loss; 4] = [
    ("damaged", |config| fs::write(config, "\u{1}no config").unwrap()),
    // A pod without a name: this release cannot read it, as if a newer one had written it.
    ("of a newer release", |config| {
        let bytes = fs::read(config).unwrap();
        fs::write(config, [bytes.as_slice(), &[0x22, 0]].concat()).unwrap();
    }),
    // Sets the number of the format to 3.
    ("of a newer format", |config| {
        let bytes = fs::read(config).unwrap();
        fs::write(config, [bytes.as_slice(), &[0xc0, 2, 3]].concat()).unwrap();
    }),
    ("removed", |config| fs::remove_file(config).unwrap()),
];

#[tokio::test]
async fn a_config_that_cannot_be_read_ends_nothing_and_is_sent_again() {
    for (how, lose) in LOSSES {
        let mut machine = Machine::new();
        let held = config(3, "a", &["etcd-0", "etcd-1"]);
        machine.settle(&held).await;
        let before = machine.state().await;
        machine.stop().await;
        lose(&machine.root.path().join(CONFIG));
        // The generation of the stored config counts, and not only the applied one.
        fs::remove_file(machine.root.path().join("var/lib/keelway/applied")).unwrap();
        machine.start(Deadlines::default());

        let state = machine.until(|_| true).await;
        assert_eq!((&state.applied, running(&before)), (&None, running(&state)), "{how}");
        assert!(state.failures[0].contains("cannot read the stored config"), "{how}: {:?}", state.failures);
        assert_eq!(machine.fake.exit_container("main", 137), 2);
        let new = |state: &MachineState| running(state).into_iter().filter(|id| !running(&before).contains(id)).count();
        let after = machine.until(|state| new(state) == 2).await;
        assert_eq!((&after.sandboxes, &after.files), (&before.sandboxes, &before.files), "{how}");

        let refused =
            [(config(2, "a", &["etcd-0"]), "stale documents"), (config(3, "b", &[]), "with different content")];
        for (config, word) in refused {
            let refused = machine.apply(&config).await.unwrap_err();
            assert!(chain_text(&refused).contains(word), "{how}: {}", chain_text(&refused));
        }
        machine.settle(&held).await;
        let state = machine.state().await;
        assert_eq!(state.applied.map(|applied| applied.generation), Some(3), "{how}");
        assert_eq!((state.failures, state.sandboxes), (Vec::new(), before.sandboxes), "{how}");
        machine.settle(&config(4, "a", &[])).await;
        assert!(!machine.root.path().join("var/lib/keelway").exists(), "{how}");
    }
}

/// The agent stores the term of a driver also while its stored config cannot be read.
#[tokio::test]
async fn a_leader_is_remembered_although_the_config_cannot_be_read() {
    let mut machine = Machine::new();
    let led = |term| Leader { installation: config(1, "", &[]).installation, term };
    machine.settle(&config(1, "a", &["etcd-0"])).await;
    machine.stop().await;
    fs::write(machine.root.path().join(CONFIG), "\u{1}no config").unwrap();
    machine.start(Deadlines::default());
    assert_eq!(machine.client().fence(&led(3), WITHIN).await.unwrap(), 3);
    machine.stop().await;
    machine.start(Deadlines::default());
    assert_eq!(machine.client().fence(&led(2), WITHIN).await.unwrap(), 3);
    let error = machine.apply(&config(2, "b", &["etcd-0"])).await.unwrap_err();
    assert!(chain_text(&error).contains("obeys the driver of term 3"), "{}", chain_text(&error));
    machine.settle(&config(1, "a", &["etcd-0"])).await;
}

/// Mounts a file system without free space over a directory, with the same content.
struct FullDisk(PathBuf);

impl FullDisk {
    fn on(directory: PathBuf) -> Self {
        const FILL: &str = "cp -a $1 $1.kept; mount -t tmpfs -o size=64k tmpfs $1; cp -a $1.kept/. $1; rm -r $1.kept
            head -c 1M /dev/zero > $1/filler 2> /dev/null || true";
        let filled = std::process::Command::new("sh").args(["-ec", FILL, "sh"]).arg(&directory).status().unwrap();
        let full = Self(directory);
        assert!(filled.success());
        full
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount").arg(&self.0).status();
        let unmounted = unmounted.is_ok_and(|status| status.success());
        assert!(unmounted || std::thread::panicking(), "{} stays full", self.0.display());
    }
}

#[tokio::test]
async fn a_config_that_cannot_be_kept_changes_nothing() {
    let machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0"])).await;
    let before = machine.state().await;
    let full = FullDisk::on(machine.root.path().join("var/lib/keelway"));
    let refused = machine.apply(&config(2, &"b".repeat(1 << 16), &["etcd-0"])).await;
    let held = machine.state().await;
    drop(full);
    assert_eq!((held.disk_pressure, machine.state().await.disk_pressure), (true, false));
    let refused = refused.unwrap_err();
    assert!(
        matches!(&refused, AgentClientError::Refused(words) if words.to_string().contains("No space left on device")),
        "{refused:?}"
    );
    assert_eq!((&held.applied, running(&held)), (&before.applied, running(&before)));
}

#[tokio::test]
async fn the_last_pod_leaves_the_machine_as_found() {
    let machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0"])).await;
    machine.settle(&config(2, "a", &[])).await;
    for directory in ["var/lib", "var/log"] {
        assert_eq!(fs::read_dir(machine.root.path().join(directory)).unwrap().count(), 0, "{directory}");
    }
    assert_eq!(machine.state().await.applied, None);
    // The machine obeys no installation now, so that it accepts another one.
    let next = MachineConfig { installation: "00000000000000ee".parse().unwrap(), ..config(1, "a", &["etcd-0"]) };
    machine.settle(&next).await;
}

#[tokio::test]
async fn a_log_that_grows_is_rotated_and_others_are_left() {
    let mut machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0", "etcd-1"])).await;
    machine.stop().await;
    let logs = |component: &str| machine.root.path().join("var/log/keelway/0123456789abcdef").join(component);
    let (large, small) = (logs("etcd-0"), logs("etcd-1"));
    let line = "2026-01-01T00:00:00Z stdout F x\n";
    fs::write(large.join("main-0.log"), line.repeat(100)).unwrap();
    fs::write(large.join("main-0.log.1"), line).unwrap();
    fs::write(small.join("main-0.log"), line).unwrap();
    let logs = LogLimits { max_size: 1000, max_files: 3, interval: Duration::from_millis(10) };
    machine.start_within(Deadlines::default(), AgentLimits { logs, ..AgentLimits::default() });
    // The agent asks the runtime to reopen the log. The fake runtime records the call and does not create the file.
    let reopened = || machine.fake.calls().iter().filter(|call| call.method == "ReopenContainerLog").count();
    let rotated = async {
        let mut looks = tokio::time::interval(Duration::from_millis(10));
        while reopened() == 0 {
            looks.tick().await;
        }
    };
    timeout(WITHIN, rotated).await.unwrap();
    machine.stop().await;
    let size = |path: PathBuf| fs::metadata(path).map(|found| found.len()).ok();
    assert_eq!(size(large.join("main-0.log.1")), Some(100 * line.len() as u64));
    assert_eq!(size(large.join("main-0.log.2")), Some(line.len() as u64));
    assert_eq!(size(small.join("main-0.log")), Some(line.len() as u64));
    assert_eq!(size(small.join("main-0.log.1")), None);
    assert!(!large.join("main-0.log").exists());
}

const FETCHED: &str = "var/lib/keelway/fetched";
/// The image of an earlier release. The agent pulls it.
const OLD: &str = "example.test/etcd:0";
const AGE: Duration = Duration::from_millis(300);

fn with_image(generation: u64, image: &str) -> MachineConfig {
    let mut config = config(generation, "a", &["etcd-0"]);
    config.pods.values_mut().for_each(|pod| image.clone_into(&mut pod.containers[0].image));
    config
}

impl Machine {
    /// Starts a machine on which the agent has pulled [`OLD`] for its config. It removes images that have been unused for [`AGE`].
    async fn with_fetched() -> Self {
        let mut machine = Self::new();
        machine.stop().await;
        machine.fake.add_to_registry(OLD);
        machine.start_with_age();
        machine.settle(&with_image(1, OLD)).await;
        machine
    }

    fn start_with_age(&mut self) {
        let images = ImageLimits { max_age: Some(AGE) };
        self.start_within(Deadlines::default(), AgentLimits { images, ..AgentLimits::default() });
    }

    /// Applies another config with other images again and again, for longer than [`AGE`], and checks that no image is removed.
    async fn keeps_images_after_an_upgrade(&self) {
        let began = tokio::time::Instant::now();
        while began.elapsed() < 4 * AGE {
            self.settle(&config(2, "a", &["etcd-0"])).await;
        }
        assert_eq!(self.removed(), Vec::<String>::new());
    }

    fn removed(&self) -> Vec<String> {
        let calls = self.fake.calls().into_iter().filter(|call| call.method == "RemoveImage");
        calls.map(|call| call.object).collect()
    }

    fn fetched(&self) -> PathBuf {
        self.root.path().join(FETCHED)
    }
}

#[tokio::test]
async fn an_image_that_the_agent_fetched_and_nothing_uses_is_removed() {
    let machine = Machine::with_fetched().await;
    let id = machine.fake.image_id(OLD).unwrap();
    let record = |path| fs::read_to_string(path).unwrap();
    assert_eq!(record(machine.fetched()), format!(r#"{{"images":{{"{OLD}":{{"id":"{id}"}}}}}}"#));
    assert_eq!(fs::metadata(machine.fetched()).unwrap().permissions().mode() & 0o7777, 0o600);
    machine.settle(&config(2, "a", &["etcd-0"])).await;
    let state = machine.until(|state| !state.images.contains(OLD)).await;
    // The agent does not remove images that it has not pulled.
    assert!(state.images.contains("example.test/etcd:1"), "{state:?}");
    assert_eq!(machine.removed(), [id]);
    assert_eq!(record(machine.fetched()), r#"{"images":{}}"#);
    let mut events = machine.client().events(false, WITHIN).await.unwrap();
    let told = async {
        loop {
            let event = events.next().await.unwrap().unwrap();
            if event.reason == "ImageRemoved" {
                return event.message;
            }
        }
    };
    let told = timeout(WITHIN, told).await.unwrap();
    assert_eq!(told, format!("removed image {OLD}: no config has named it and no container has used it for 300ms"));
}

/// The pod keeps running. What cannot be fetched is reported, and fetched once it is there.
#[tokio::test]
async fn images_of_the_next_version_are_fetched_while_the_pod_runs() {
    const NEXT: [&str; 2] = ["example.test/etcd:2", "example.test/pause:2"];
    let machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0"])).await;
    let before = machine.state().await;
    assert!(before.prefetches);
    machine.fake.add_to_registry(NEXT[0]);
    let mut next = config(2, "a", &["etcd-0"]);
    next.pods.values_mut().for_each(|pod| pod.prefetch = NEXT.map(str::to_owned).into());
    machine.apply(&next).await.unwrap();
    let is_reported = |state: &MachineState| {
        let failure = fetch_failure(NEXT[1], "");
        state.images.contains(NEXT[0]) && state.failures.iter().any(|found| found.starts_with(&failure))
    };
    let state = machine.until(is_reported).await;
    assert!(!state.images.contains(NEXT[1]));

    machine.fake.add_to_registry(NEXT[1]);
    let state = machine.until(|state| state.images.contains(NEXT[1]) && state.failures.is_empty()).await;
    assert_eq!(running(&state), running(&before), "the pod was touched");
    let pulls = machine.fake.calls().into_iter().filter(|call| call.method == "PullImage" && call.object == NEXT[0]);
    assert_eq!(pulls.count(), 1);
}

#[tokio::test]
async fn an_image_is_recorded_before_it_is_fetched() {
    let mut machine = Machine::with_fetched().await;
    machine.stop().await;
    machine.fake.add_to_registry("example.test/etcd:2");
    machine.start_with_age();
    // The next change that the agent requests of the runtime is the pull.
    machine.fake.inject(1, CallFault::Hang);
    let next = with_image(2, "example.test/etcd:2");
    let client = machine.client();
    let applying = tokio::spawn(async move { client.apply(&next, &|_| {}).await });
    let recorded = async {
        let mut turns = tokio::time::interval(Duration::from_millis(10));
        while !fs::read_to_string(machine.fetched()).unwrap().contains(r#""example.test/etcd:2":{}"#) {
            turns.tick().await;
        }
    };
    timeout(WITHIN, recorded).await.unwrap();
    assert_eq!(machine.fake.image_id("example.test/etcd:2"), None);
    applying.abort();
}

#[tokio::test]
async fn an_image_that_a_stranger_uses_stays_until_that_ends() {
    let machine = Machine::with_fetched().await;
    let runtime = machine.fake.runtime(Deadlines::default());
    let sandbox = SandboxSpec { name: "other".to_owned(), uid: "other".to_owned(), ..SandboxSpec::default() };
    let spec = ContainerSpec {
        name: "main".to_owned(),
        image: OLD.to_owned(),
        command: vec!["/keelway-test".to_owned()],
        args: vec!["exit".to_owned(), "0".to_owned()],
        ..ContainerSpec::default()
    };
    let pod = runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    machine.keeps_images_after_an_upgrade().await;
    runtime.remove_container(&id).await.unwrap();
    machine.until(|state| !state.images.contains(OLD)).await;
}

#[tokio::test]
async fn an_image_with_another_name_stays() {
    let machine = Machine::with_fetched().await;
    machine.fake.tag_image(OLD, "example.com/mine:1");
    machine.keeps_images_after_an_upgrade().await;
}

#[tokio::test]
async fn nothing_is_removed_without_a_record_that_can_be_read() {
    for record in [None, Some("{")] {
        let mut machine = Machine::with_fetched().await;
        machine.stop().await;
        match record {
            Some(text) => fs::write(machine.fetched(), text).unwrap(),
            None => fs::remove_file(machine.fetched()).unwrap(),
        }
        machine.start_with_age();
        machine.keeps_images_after_an_upgrade().await;
    }
}

#[tokio::test]
async fn nothing_is_removed_while_the_config_cannot_be_read() {
    let mut machine = Machine::with_fetched().await;
    machine.stop().await;
    machine.start(Deadlines::default());
    machine.settle(&config(2, "a", &["etcd-0"])).await;
    machine.stop().await;
    fs::write(machine.root.path().join(CONFIG), "damaged").unwrap();
    machine.start_with_age();
    let began = tokio::time::Instant::now();
    while began.elapsed() < 4 * AGE {
        machine.state().await;
    }
    assert_eq!(machine.removed(), Vec::<String>::new());
    machine.settle(&config(2, "a", &["etcd-0"])).await;
    machine.until(|state| !state.images.contains(OLD)).await;
}

/// The delay after the fifth exit is 8 s.
const ENDS: usize = 5;

#[tokio::test]
async fn a_container_that_keeps_exiting_is_restarted_with_a_delay() {
    let machine = Machine::new();
    let config = config(1, "a", &["etcd-0"]);
    machine.settle(&config).await;
    let mut last = String::new();
    let mut finished = ConfigOutcome::default();
    // The delay doubles with each exit, so that also a busy host observes one of them.
    for _ in 0..ENDS {
        let state = machine.until(|state| running(state).iter().any(|id| *id != last)).await;
        last = running(&state)[0].to_owned();
        assert_eq!(machine.fake.exit_container("main", 1), 1);
        machine.until(|state| running(state).iter().all(|id| *id != last)).await;
        finished = machine.settle(&config).await;
        if !finished.postponed.is_empty() {
            break;
        }
    }
    assert_eq!(finished.postponed.len(), 1, "{finished:?}");
    assert!(finished.postponed[0].contains("etcd-0: container main exited again"), "{finished:?}");
    machine.until(|state| running(state).iter().any(|id| *id != last)).await;
}

#[tokio::test]
async fn a_hung_runtime_is_reported_and_the_agent_recovers() {
    let mut machine = Machine::new();
    machine.settle(&config(1, "a", &["etcd-0"])).await;
    let before = machine.state().await;
    machine.stop().await;
    machine.start(Deadlines { look: Duration::from_millis(200), ..Deadlines::default() });
    machine.until(|_| true).await;
    machine.hung.send_replace(true);
    let hung = machine.client().state(WITHIN).await.unwrap_err();
    assert!(matches!(hung, AgentClientError::RuntimeSilent(_)), "{hung:?}");
    let why = chain_text(&hung);
    assert!(why.contains("no response within 0.2 s"), "{why}");
    // The agent stores a config also while the runtime does not respond, and returns the error.
    let finished = machine.apply(&config(2, "b", &["etcd-0"])).await.unwrap();
    assert!(finished.failures[0].contains("no response within"), "{finished:?}");
    machine.hung.send_replace(false);
    machine
        .until(|state| state.files.values().any(|file| file.sha256 == Some(keelway_api::machine::sha256_hex(b"b"))))
        .await;
    assert_eq!(running(&machine.state().await), running(&before));
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_no_other() {
    let machine = Machine::new();
    let config = config(1, "a", &["etcd-0"]);
    let stalled = machine.client().watch(WITHIN).await.unwrap();
    machine.settle(&config).await;
    for _ in 0..50 {
        fs::write(machine.root.path().join("var/lib/keelway/0123456789abcdef/etcd-0/files/key"), "changed").unwrap();
        machine.settle(&config).await;
    }
    // The stream skips revisions that the client has missed, and continues with the newest.
    let told: Vec<u64> = timeout(WITHIN, stalled.take(2).collect()).await.unwrap();
    assert!(told.windows(2).all(|two| two[0] < two[1]), "{told:?}");
}

impl Machine {
    fn directory(&self, path: &str) -> PathBuf {
        self.root.path().join("var/lib/keelway/0123456789abcdef/etcd-0").join(path)
    }

    /// Sends a snapshot. The program that restores it creates its data, and ends with this code.
    async fn restore(&self, term: u64, (snapshot, length): (&'static str, u64), code: i32) -> Result<(), String> {
        let leader = Leader { installation: config(1, "", &[]).installation, term };
        let command = vec!["etcdutl".to_owned(), "snapshot".to_owned(), "restore".to_owned()];
        let order = DataRestoreOrder { leader, pod: name("etcd-0"), command, length };
        let parts: Vec<Vec<u8>> = snapshot.as_bytes().chunks(3).map(<[u8]>::to_vec).collect();
        let (client, snapshot) = (self.client(), snapshot.to_owned());
        let restoring = async move { client.restore_data(order, futures::stream::iter(parts), WITHIN).await };
        let running = async {
            let file = self.directory("restore/snapshot.db");
            // The member may run, too.
            self.until(|state| !running(state).is_empty() && file.exists()).await;
            assert_eq!(fs::read_to_string(&file).unwrap(), snapshot);
            let found = fs::metadata(&file).unwrap();
            assert_eq!((found.uid(), found.mode() & 0o7777), (20_000, 0o600));
            fs::create_dir_all(self.directory("restore/data/member/snap")).unwrap();
            assert_eq!(self.fake.exit_container("restore", code), 1);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            restored = restoring => restored.map_err(|error| chain_text(&error)),
            () = running => unreachable!(),
        }
    }
}

/// The data appears as a whole, and only if the program succeeds. Nothing else of the snapshot stays.
#[tokio::test]
async fn a_snapshot_becomes_the_data_of_a_member() {
    let machine = Machine::new();
    let mut wanted = config(1, "a", &["etcd-0"]);
    wanted.pods.get_mut(&name("etcd-0")).unwrap().start = Start::Never;
    machine.settle(&wanted).await;
    let clean = async |used| {
        let state = machine.state().await;
        let data = state.data_of(&name("etcd-0"), "data");
        assert_eq!((data.marked, data.used, state.sandboxes.len()), (true, used, 0));
        assert!(!machine.directory("restore").exists() && machine.directory("data/member").exists() == used);
    };
    let failed = machine.restore(1, ("snapshot", 8), 1).await.unwrap_err();
    assert!(failed.contains("failed with exit code 1"), "{failed}");
    clean(false).await;
    let short = machine.restore(1, ("snapshot", 9), 0).await.unwrap_err();
    assert!(short.contains("has 8 bytes instead of 9"), "{short}");
    clean(false).await;
    machine.restore(1, ("snapshot", 8), 0).await.unwrap();
    clean(true).await;
    let again = machine.restore(1, ("snapshot", 8), 0).await.unwrap_err();
    assert!(again.contains("is not empty"), "{again}");
    clean(true).await;

    wanted.generation += 1;
    wanted.pods.get_mut(&name("etcd-0")).unwrap().start = Start::OnUsedData;
    machine.settle(&wanted).await;
    assert_eq!(running(&machine.state().await).len(), 1);
    let started = machine.restore(1, ("snapshot", 8), 0).await.unwrap_err();
    assert!(started.contains("may start already"), "{started}");
    let led = Leader { installation: wanted.installation.clone(), term: 5 };
    assert_eq!(machine.client().fence(&led, WITHIN).await.unwrap(), 5);
    let earlier = machine.restore(1, ("snapshot", 8), 0).await.unwrap_err();
    assert!(earlier.contains("the machine obeys term 5"), "{earlier}");
}
