//! A fake machine as a process.
//!
//! Prints `ready` on stdout once its socket exists. Reads orders from stdin (see [`SignalOrder`]) and prints `ok` after each. Ends with its stdin,
//! so it never outlives its test.

use std::{
    ffi::CStr,
    fs::{self, File},
    io::{self, BufRead, Write},
    net::IpAddr,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::Mutex,
};

use anyhow::Context;
use clap::{ArgGroup, Parser};
use keelway_base::root_socket::RootSocket;
use keelway_cri::{
    Deadlines,
    fake::{Fake, serve},
};
use keelway_e2e::fake_machine::{FakeNetwork, ProgramRunner, SignalOrder, change_root};
use keelway_hypervisor_agent::agent;
use keelway_machine_io::{access::MachineAccess, local::LocalMachine};
use rustix::{
    mount::{MountFlags, mount},
    process::Pid,
};
use tokio_util::sync::CancellationToken;

/// Serves a fake container runtime and simulates the programs of its containers, until stdin ends.
#[derive(Debug, Parser)]
#[command(group = ArgGroup::new("network").args(["addresses", "beside"]).required(true))]
struct FakeMachineArguments {
    /// The CRI socket to create.
    #[arg(long)]
    socket: PathBuf,
    /// The directory that is the machine's root.
    #[arg(long)]
    root: PathBuf,
    /// A file to append a line to for each call that changes something: method and name.
    #[arg(long)]
    calls: PathBuf,
    /// An address of the machine's new network; can be repeated.
    #[arg(long = "address")]
    addresses: Vec<IpAddr>,
    /// Use the network of this process instead.
    #[arg(long, value_parser = pid)]
    beside: Option<Pid>,
    /// Run an agent beside the runtime: its socket is `/agent.sock`, and its log `/agent.log`.
    #[arg(long)]
    agent: bool,
    /// An image that the machine has; can be repeated.
    #[arg(long = "image")]
    images: Vec<String>,
}

fn pid(text: &str) -> Result<Pid, String> {
    text.parse().ok().and_then(Pid::from_raw).ok_or_else(|| "no process id".to_owned())
}

fn main() -> anyhow::Result<()> {
    let arguments = FakeMachineArguments::parse();
    let network = arguments.beside.map_or(FakeNetwork::New(arguments.addresses), FakeNetwork::Of);
    network.enter()?;
    let listener = UnixListener::bind(&arguments.socket).context("could not listen")?;
    let fake = Fake::new();
    fake.write_calls_to(&arguments.calls).context("could not open the file of calls")?;
    for image in &arguments.images {
        fake.add_image(image);
    }
    if arguments.agent {
        mount_processes(&arguments.root)?;
    }
    change_root(&arguments.root)?;
    run(listener, &fake, arguments.agent)
}

/// Mounts `/proc`, through which an agent opens the sockets of components by their descriptors.
fn mount_processes(root: &Path) -> anyhow::Result<()> {
    let place = root.join("proc");
    fs::create_dir_all(&place)?;
    mount("proc", place, "proc", MountFlags::empty(), None::<&CStr>).context("could not mount /proc")
}

#[tokio::main(flavor = "current_thread")]
async fn run(listener: UnixListener, fake: &Fake, has_agent: bool) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let stage = ProgramRunner::new(fake.clone());
    let socket = if has_agent { Some(RootSocket::bind(Path::new("/agent.sock"))?) } else { None };
    let orders = tokio::task::spawn_blocking({
        let stage = stage.clone();
        move || take_orders(&stage)
    });
    tokio::select! {
        served = serve(listener, fake.clone()) => Ok(served?),
        () = stage.poll_programs() => Ok(()),
        ended = orders => ended?,
        ended = keep(fake.clone(), socket) => ended,
    }
}

/// Runs the machine's agent, if it has one.
async fn keep(fake: Fake, socket: Option<RootSocket>) -> anyhow::Result<()> {
    let Some(socket) = socket else { return std::future::pending().await };
    let log = File::create("/agent.log")?;
    tracing_subscriber::fmt().with_env_filter("info").with_ansi(false).with_writer(Mutex::new(log)).init();
    let access = MachineAccess::of_root(File::open("/")?.into());
    let machine = LocalMachine::new(access, fake.runtime(Deadlines::default()), None);
    Ok(agent::run(machine, socket, CancellationToken::new()).await?)
}

fn take_orders(stage: &ProgramRunner) -> anyhow::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "ready")?;
    for line in io::stdin().lock().lines() {
        stage.take(line?.parse::<SignalOrder>()?);
        writeln!(stdout, "ok")?;
    }
    Ok(())
}
