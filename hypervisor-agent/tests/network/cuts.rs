//! A network that cuts connections at any byte.

use std::{net::SocketAddr, sync::Arc};

use keelway_agent_api::client::{HypervisorAgentClient, channel};
use keelway_api::machine::MachineConfig;
use keelway_hypervisor_agent::agent::ConnectionLimits;
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

/// More bytes than a round sends to the agent and to the driver: a handshake, a config and queries.
const SAID: [u32; 2] = [32_000, 6_000];
/// How many of these bytes are a file of the config.
const FILE: usize = 20_000;

/// The point at which a connection is cut.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// How many more bytes the proxy relays to the agent and to the driver.
    after: [u32; 2],
}

impl Cut {
    const NEVER: Self = Self { after: [u32::MAX; 2] };

    /// Chooses a random point in one of the two directions.
    fn somewhere(random: &mut ChaCha8Rng) -> Self {
        let [to_agent, to_driver] = SAID;
        let after = match random.random_range(0..2) {
            0 => [random.random_range(0..to_agent), u32::MAX],
            _ => [u32::MAX, random.random_range(0..to_driver)],
        };
        Self { after }
    }
}

/// A proxy in front of an agent. `cut` applies to connections that begin after it is set.
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

/// Relays until one direction has reached its limit or its end.
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

/// Returns a config that replaces one container, and the content of its file.
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

/// Retries as a driver does, until the config is applied: after each cut it reads the state, and sends the config again if the agent has not
/// applied it. Returns the number of cuts.
async fn insist(network: &Network, driver: &TempDir, config: &MachineConfig, random: &mut ChaCha8Rng) -> u32 {
    let mut cuts = 0;
    loop {
        // After 8 cuts the network no longer cuts connections.
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
        // All remaining work is done before this returns.
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
