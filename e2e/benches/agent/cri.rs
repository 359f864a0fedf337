//! Compares container runtime calls through the agent over the network with calls on the runtime's socket.

use std::{collections::BTreeMap, process::Command, time::Instant};

use keelway_api::{
    Documents, Hypervisor,
    machine::{CLUSTER_LABEL, COMPONENT_LABEL},
    name::PodName,
    release,
};
use keelway_cri::{ContainerSpec, CriRuntime, Deadlines, SandboxSpec, exec::ExecStreams, testing::cache};
use keelway_e2e::{TestFleet, TestMachine, command::run, deadline};
use keelway_reconciler::{
    agent_way,
    reach::{self, ReachedMachine},
};
use tokio::{io, sync::mpsc};

use crate::table::{self, Table};

/// Calls in each round, on each path.
const CALLS: usize = 500;
/// Bytes of output that the command writes in each round, on each path.
const BYTES: usize = 256 << 20;
/// The image provides `head`.
const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.66.1";

pub(crate) fn measure(rounds: usize, table: &mut Table) {
    let mut world = TestFleet::new("e2ebag");
    let made = world.create_two();
    let enrolled = world.keelway.run(&["hypervisor", "local", "enroll", "--from", "public"], &made).succeeded();
    let documents = Documents::read(&enrolled.stdout).unwrap();
    let machines = world.machines();
    let machine = machines.iter().find(|machine| machine.is_public()).unwrap();
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    executor.block_on(compare(&documents, machine, rounds, table));
}

async fn compare(documents: &Documents, machine: &TestMachine, rounds: usize, table: &mut Table) {
    let document: &Hypervisor =
        documents.hypervisors.values().find(|found| found.metadata.name == machine.document.metadata.name).unwrap();
    let on_socket = CriRuntime::on_socket(machine.socket(), Deadlines::default()).unwrap();
    let pod = writer(&on_socket, machine).await;
    let (mut calls, mut streams) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        let way = agent_way(documents, document).unwrap();
        let through = CriRuntime::on_channel(way.channel(), Deadlines::default());
        for (figures, runtime) in calls.iter_mut().zip([&through, &on_socket]) {
            figures.push(call(runtime).await);
        }
        let [through, behind] =
            [ReachedMachine::over(way), ReachedMachine::on_runtime_socket(&machine.socket()).await.unwrap()];
        for (figures, reached) in streams.iter_mut().zip([&through, &behind]) {
            figures.push(stream(reached, &pod).await);
        }
    }
    table.difference("a CRI call (`Version`) through the agent beside the same on the socket", "ms", &calls, 1.0);
    table.ratio(
        "256 MiB of a command's output through the agent beside the runtime's own stream",
        "s",
        &streams,
        // This limit is a throughput of at least 0.7 of the direct stream.
        1.428,
    );
}

/// Returns the median duration of one call in milliseconds, over [`CALLS`] calls.
async fn call(runtime: &CriRuntime) -> f64 {
    runtime.version().await.unwrap();
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let begun = Instant::now();
        runtime.version().await.unwrap();
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    table::median(&times)
}

/// Returns the duration in seconds of a command that writes [`BYTES`] bytes of output.
async fn stream(machine: &ReachedMachine, pod: &PodName) -> f64 {
    let command = ["/usr/bin/head", "-c", &BYTES.to_string(), "/dev/zero"].map(str::to_owned);
    let asked = reach::ContainerCommand {
        pod: pod.clone(),
        container: None,
        command: command.into(),
        stdin: false,
        terminal: false,
    };
    let streams = ExecStreams { stdin: io::empty(), stdout: io::sink(), stderr: io::sink(), sizes: mpsc::channel(1).1 };
    let begun = Instant::now();
    assert_eq!(machine.exec(asked, streams).await.unwrap(), 0);
    begun.elapsed().as_secs_f64()
}

/// Starts a container for [`stream`]. Its cluster is not in the config of the agent, so the agent does not touch it.
async fn writer(runtime: &CriRuntime, machine: &TestMachine) -> PodName {
    for image in [IMAGE.to_owned(), release::newest().pause_image(None)] {
        import(machine, &image);
    }
    let pod = PodName { cluster: "0123456789abcdef".parse().unwrap(), component: "etcd-0".parse().unwrap() };
    let labels = BTreeMap::from([
        (CLUSTER_LABEL.to_owned(), pod.cluster.to_string()),
        (COMPONENT_LABEL.to_owned(), pod.component.to_string()),
    ]);
    let sandbox = SandboxSpec {
        name: "writer".to_owned(),
        namespace: "others".to_owned(),
        uid: "writer".to_owned(),
        labels: labels.clone(),
        ..SandboxSpec::default()
    };
    let id = runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let container = ContainerSpec {
        name: "etcd".to_owned(),
        image: IMAGE.to_owned(),
        command: ["/agnhost", "pause"].map(str::to_owned).into(),
        labels,
        ..ContainerSpec::default()
    };
    let container = runtime.create_container(&id, &sandbox, &container).await.unwrap();
    runtime.start_container(&container).await.unwrap();
    pod
}

fn import(machine: &TestMachine, image: &str) {
    let cache = cache().unwrap();
    let archive = cache.join("images").join(format!("{}.tar", image.replace(['/', ':'], "_")));
    let mut import = Command::new(cache.join("bin/ctr"));
    import.arg("--address").arg(machine.socket()).args(["--namespace", "k8s.io", "images", "import"]).arg(archive);
    let _ = run(&mut import, &[], deadline::SETTLE).succeeded();
}
