//! A network that cuts connections anywhere, in the middle of anything that is said on them.

use std::{net::SocketAddr, sync::Arc};

use keelway_api::machine::MachineConfig;
use keelway_hypervisor_agent::{
    agent::ConnectionLimits,
    client::{HypervisorAgentClient, channel},
};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use crate::{
    WITHIN,
    installation::{Installation, MACHINE, files},
    machine::{Machine, config},
};

/// What a whole round says to the agent and to the driver, and a little more, in bytes: a handshake, a config, looks.
const SAID: [u32; 2] = [32_000, 6_000];
/// How much of that is a file of the config.
const FILE: usize = 20_000;

/// Where a connection ends.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Bytes that still get through, to the agent and to the driver.
    after: [u32; 2],
}

impl Cut {
    const NEVER: Self = Self { after: [u32::MAX; 2] };

    /// In one of both directions.
    fn somewhere(random: &mut ChaCha8Rng) -> Self {
        let [to_agent, to_driver] = SAID;
        let after = match random.random_range(0..2) {
            0 => [random.random_range(0..to_agent), u32::MAX],
            _ => [u32::MAX, random.random_range(0..to_driver)],
        };
        Self { after }
    }
}

/// A proxy in front of an agent, and what it does to the connections that begin from now on.
struct Network {
    address: SocketAddr,
    cut: watch::Sender<Cut>,
}

impl Network {
    async fn before(agent: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, cuts) = watch::channel(Cut::NEVER);
        tokio::spawn(async move {
            while let Ok((driver, _)) = listener.accept().await {
                let cut = *cuts.borrow();
                tokio::spawn(async move { pass(driver, TcpStream::connect(agent).await.unwrap(), cut).await });
            }
        });
        Self { address, cut }
    }

    fn client(&self, identity: &TempDir) -> HypervisorAgentClient {
        let identity = keelway_tls::TlsClient::new(files(identity.path())).unwrap();
        let name = MACHINE.parse().unwrap();
        HypervisorAgentClient::on_channel(channel(&self.address.to_string(), &name, Arc::new(identity)).unwrap())
    }
}

/// Until one direction has passed as much as it may, or ends.
async fn pass(driver: TcpStream, agent: TcpStream, cut: Cut) {
    let [to_agent, to_driver] = cut.after;
    let ((from_driver, driver), (from_agent, agent)) = (driver.into_split(), agent.into_split());
    tokio::select! {
        () = carry(from_driver, agent, to_agent) => {}
        () = carry(from_agent, driver, to_driver) => {}
    }
}

async fn carry(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, most: u32) {
    let mut from = from.take(most.into());
    let mut bytes = [0; 1024];
    loop {
        match from.read(&mut bytes).await {
            Ok(read) if read > 0 => {
                if to.write_all(bytes.get(..read).unwrap()).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

/// A config whose effect is one container that begins anew.
fn of_round(round: u64) -> (MachineConfig, String) {
    let content = format!("{round:08}").repeat(FILE / 8);
    let mut config = config(round, &content);
    for pod in config.pods.values_mut() {
        for container in &mut pod.containers {
            container.command.push(format!("--round={round}"));
        }
    }
    (config, content)
}

/// What a driver does until it knows that a config is in effect: as often as it is cut off it looks again, and says it again where
/// the agent has not taken it. Returns how often it was cut off.
async fn insist(network: &Network, driver: &TempDir, config: &MachineConfig, random: &mut ChaCha8Rng) -> u32 {
    let mut cuts = 0;
    loop {
        // It gets through in the end.
        let cut = if cuts < 8 { Cut::somewhere(random) } else { Cut::NEVER };
        network.cut.send(cut).unwrap();
        let client = network.client(driver);
        let applied = async {
            let state = client.state(WITHIN).await.ok()?;
            if state.applied.is_some_and(|applied| applied.digest == config.digest()) {
                return Some(());
            }
            let finished = client.apply(config, &|_| {}).await.ok()?;
            assert_eq!(finished.failures, Vec::<String>::new());
            Some(())
        };
        if timeout(WITHIN, applied).await.unwrap().is_some() {
            return cuts;
        }
        cuts += 1;
    }
}

async fn each_config_has_effect_once(rounds: u64, seed: u64) {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let (network, direct) = (Network::before(machine.address).await, machine.client(&driver));
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut cuts = 0;
    for round in 1..=rounds {
        let (config, content) = of_round(round);
        cuts += insist(&network, &driver, &config, &mut random).await;
        // Whatever there is to do still is done before this ends.
        let finished = timeout(WITHIN, direct.apply(&config, &|_| {})).await.unwrap().unwrap();
        assert_eq!(finished.failures, Vec::<String>::new(), "round {round} of seed {seed}");
        let (created, started) = (machine.calls("CreateContainer"), machine.calls("StartContainer"));
        assert_eq!((created, started), (round, round), "round {round} of seed {seed}");
        let applied = direct.state(WITHIN).await.unwrap().applied.unwrap();
        assert_eq!((applied.generation, applied.digest), (round, config.digest()), "round {round} of seed {seed}");
        let file = std::fs::read_to_string(machine.state_file("0123456789abcdef/etcd-0/files/key")).unwrap();
        assert!(file == content, "round {round} of seed {seed}: another file, of {} bytes", file.len());
    }
    assert!(u64::from(cuts) > rounds / 4, "{cuts} cuts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_config_has_effect_once_whatever_is_cut() {
    each_config_has_effect_once(100, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn each_config_has_effect_once_whatever_is_cut_for_long() {
    each_config_has_effect_once(1_000, 2).await;
}
