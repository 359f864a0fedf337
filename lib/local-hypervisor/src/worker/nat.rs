//! The rules of a NAT, and operations on it.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use super::{
    record::WorkersRecord,
    wiring::{self, OUTSIDE},
};
use crate::{
    Fleet, FleetProgress, LocalHypervisorError,
    create::{blocking, require_root},
    files::remove_tree,
    ip,
    lock::FleetLock,
    mounts, namespace,
};

/// Each new connection uses a random source port, so that a connection that the NAT forgot gets another port.
const RULES: &str = "
table ip nat {
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    oifname \"outside\" masquerade fully-random
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    iifname \"inside\" accept
    ct state established,related accept
  }
}
";

/// Loads the rules. Call it in the NAT's namespace.
pub(super) fn masquerade() -> Result<(), LocalHypervisorError> {
    run("nft", &["-f", "-"], RULES)
}

/// Makes a NAT forget all connections, as after a restart.
pub async fn forget(fleet: &Fleet, nat: &str, progress: FleetProgress<'_>) -> Result<(), LocalHypervisorError> {
    require_root()?;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    let pin = existing(fleet, nat)?;
    blocking(move || namespace::within(&pin, forget_all)).await
}

/// Changes the public address of a NAT, as a provider may do. All connections through the NAT break. Returns the new address.
pub async fn renumber(
    fleet: &Fleet,
    nat: &str,
    progress: FleetProgress<'_>,
) -> Result<std::net::Ipv4Addr, LocalHypervisorError> {
    require_root()?;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    let pin = existing(fleet, nat)?;
    let network = super::network(fleet)?;
    let mut workers = WorkersRecord::load(fleet)?;
    let found = workers.nats.get(nat).ok_or_else(|| no_nat(fleet, nat))?;
    let octet = workers.free(found.place.behind.as_ref())?;
    let mut place = found.place.clone();
    place.octet = octet;
    let new = workers.address(&place, network);
    let (moved, before, after) = (workers.clone(), found.place.clone(), place.clone());
    let owned = fleet.clone();
    blocking(move || {
        wiring::rename_port(&owned, &before, &after)?;
        namespace::within(&pin, || {
            ip::batch(&[format!("address flush dev {OUTSIDE}"), format!("address add {new} dev {OUTSIDE}")])?;
            wiring::default_route(&moved, &after)?;
            forget_all()
        })
    })
    .await?;
    if let Some(found) = workers.nats.get_mut(nat) {
        found.place = place;
    }
    workers.save(fleet)?;
    Ok(new.addr())
}

pub(super) fn remove(fleet: &Fleet, nat: &str) -> Result<(), LocalHypervisorError> {
    mounts::unmount_below(&fleet.nat_run(nat))?;
    remove_tree(&fleet.nat_run(nat))
}

fn existing(fleet: &Fleet, nat: &str) -> Result<std::path::PathBuf, LocalHypervisorError> {
    let pin = fleet.nat(nat);
    if namespace::is_pinned(&pin) { Ok(pin) } else { Err(no_nat(fleet, nat)) }
}

fn no_nat(fleet: &Fleet, nat: &str) -> LocalHypervisorError {
    LocalHypervisorError::NoNat { name: nat.to_owned(), fleet: fleet.name().to_owned() }
}

fn forget_all() -> Result<(), LocalHypervisorError> {
    run("conntrack", &["-F"], "")
}

fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<(), LocalHypervisorError> {
    let spawned = || -> std::io::Result<_> {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(stdin.as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = spawned().map_err(|source| LocalHypervisorError::Spawn { program: program.into(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LocalHypervisorError::Nat { command: format!("{program} {}", arguments.join(" ")), stderr })
}
