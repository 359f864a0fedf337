//! Bad tokens and bad machines: one clear error, and nothing is changed.

use std::fs;

use k8s_openapi::jiff::SignedDuration;
use keelway_pki::AuthorityHash;

use crate::{found, machine::JOIN, world::World};

pub(crate) async fn table(world: &World) {
    let good = world.token(SignedDuration::from_hours(1)).await;
    let text = good.encode();
    let before = found::look(&world.machine);

    let asked = world.ingress.connections();
    refused(world, &text[..text.len() - 9], 2, &["damaged"]).await;
    refused(world, "kwj1.!", 2, &["damaged"]).await;
    assert_eq!(world.ingress.connections(), asked, "a token that cannot be read was used");

    // Another authority's hash: the endpoint is asked whom it is, and nothing more.
    let mut wrong = good.clone();
    wrong.authorities = vec![format!("sha256:{}", "0".repeat(64)).parse::<AuthorityHash>().unwrap()];
    refused(world, &wrong.encode(), 1, &["the token was not sent", "shows no authority of the token"]).await;
    assert_eq!(world.ingress.connections(), asked + 1);

    let expired = world.token(-SignedDuration::from_hours(1)).await;
    refused(world, &expired.encode(), 1, &["does not take the token", "expired"]).await;

    let output = world.machine.node(&["join", "-", "--containerd-socket", "/run/none.sock"], &text).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for word in ["no container runtime answers on /run/none.sock", "--containerd-socket", "--allow-cgroup-v1"] {
        assert!(said.contains(word), "{word}: {said}");
    }

    // A network of the machine that the cluster has, too.
    world.machine.said("ip", &["addr", "add", "10.96.7.7/24", "dev", "lo"]);
    refused(world, &text, 2, &["10.96.0.0/16 meets this machine's network 10.96.7.7/32"]).await;
    world.machine.said("ip", &["addr", "del", "10.96.7.7/24", "dev", "lo"]);

    fs::create_dir_all(world.machine.file("/var/lib/kubelet/pki")).unwrap();
    refused(world, &text, 2, &["holds the state of another kubelet"]).await;
    fs::remove_dir_all(world.machine.file("/var/lib/kubelet")).unwrap();

    let output = world.machine.node(&["status"], "").await;
    assert!(String::from_utf8_lossy(&output.stderr).contains("is no worker"));
    assert_eq!(found::look(&world.machine), before);
}

async fn refused(world: &World, token: &str, code: i32, words: &[&str]) {
    let output = world.machine.node(&JOIN, token).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
    let secret = token.get(5..).filter(|secret| !secret.is_empty()).unwrap_or("none");
    assert!(!said.contains(secret), "{said}");
}
