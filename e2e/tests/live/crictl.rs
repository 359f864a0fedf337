//! The runtime of a machine that only its agent can reach, used by `crictl` through `keelway hypervisor proxy`.

use std::{fs, path::Path, process::Command};

use keelway_cri::{CriRuntime, Deadlines, testing::cache};
use keelway_e2e::{Keelway, TestControlPlane, command::run, deadline, machine::find, process};
use rustix::process::Signal;

const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.66.1";
/// The port on which the test's own container serves, in the network of its machine.
const PORT: u16 = 18_080;
const POD: &str = r#"{"metadata": {"name": "tools", "namespace": "others", "uid": "tools", "attempt": 0},
    "linux": {"security_context": {"namespace_options": {"network": 2}}}}"#;

/// `crictl` works while the proxy runs, and the proxy removes its socket when it ends. `crictl` runs as root, which may use every socket.
pub(crate) fn works(plane: &TestControlPlane<'_>, of_root: &Keelway) {
    let driver = plane.keelway;
    let machine = plane.private();
    let socket = driver.directory().join("nobody/hv.sock");
    let listen = format!("unix://{}", socket.display());
    let proxy = driver.start(&["hypervisor", "proxy", machine.name(), "--listen", &listen], &plane.text);
    deadline::until("the proxy's socket", deadline::READ, || socket.exists());
    let crictl = |line: &str| of_root.shell(&format!("crictl -t 30s -r {listen} {line}")).succeeded().text().to_owned();

    assert!(crictl("version").contains("RuntimeName:  containerd"));
    let (_, etcd) = find(&plane.machines, "etcd-0");
    let id = &etcd.container;
    assert_eq!(crictl("ps -q --no-trunc --name ^etcd$").trim(), id);
    assert!(crictl(&format!("inspect {id}")).contains("\"etcd-0\""));
    assert!(crictl("images").contains("registry.k8s.io/etcd"));
    assert!(crictl(&format!("stats {id}")).contains("etcd"));
    let refused = of_root.shell(&format!("crictl -t 30s -r {listen} pull 127.0.0.1:1/none:1"));
    assert!(refused.code() != 0 && refused.stderr.contains("connection refused"), "{}", refused.stderr);

    let of = Tools::run(plane, &crictl, driver.directory());
    assert!(crictl(&format!("exec {id} etcdctl version")).starts_with("etcdctl version: "));
    of.streams(&listen, of_root);
    of.events(&listen, driver.directory(), of_root);
    websocket(&socket, id, of_root);
    crictl(&format!("rmp -f {}", of.pod));
    process::signal(proxy.pid(), Signal::INT);
    assert_eq!(driver.end(proxy).code(), 130);
    assert!(!socket.exists(), "the socket stays");
}

/// Containers that belong to the test.
struct Tools {
    pod: String,
    shell: String,
    reader: String,
}

impl Tools {
    fn run(plane: &TestControlPlane<'_>, crictl: &dyn Fn(&str) -> String, folder: &Path) -> Self {
        let cache = cache().unwrap();
        let archive = cache.join("images").join(format!("{}.tar", AGNHOST.replace(['/', ':'], "_")));
        let runtime = plane.private().socket();
        let mut import = Command::new(cache.join("bin/ctr"));
        import.arg("--address").arg(runtime).args(["--namespace", "k8s.io", "images", "import"]).arg(archive);
        let _ = run(&mut import, &[], deadline::SETTLE).succeeded();
        fs::write(folder.join("pod.json"), POD).unwrap();
        let pod = crictl(&format!("runp {}/pod.json", folder.display())).trim().to_owned();
        let start = |name: &str, command: &str, stdin: bool| {
            let config = format!(
                r#"{{"metadata": {{"name": "{name}"}}, "image": {{"image": "{AGNHOST}"}}, "command": {command}, "stdin": {stdin}}}"#
            );
            let file = folder.join(format!("{name}.json"));
            fs::write(&file, config).unwrap();
            let created = crictl(&format!("create --no-pull {pod} {} {}/pod.json", file.display(), folder.display()));
            crictl(&format!("start {}", created.trim()));
            created.trim().to_owned()
        };
        let shell = start("netexec", &format!(r#"["/agnhost", "netexec", "--http-port={PORT}"]"#), false);
        let reader = start("reader", r#"["/bin/cat"]"#, true);
        Self { pod, shell, reader }
    }

    fn streams(&self, listen: &str, of_root: &Keelway) {
        let Self { pod, shell, reader } = self;
        let crictl = format!("timeout 60 crictl -t 30s -r {listen}");
        let output_of = |line: &str| of_root.shell(line).succeeded().text().to_owned();
        // `timeout` must leave `crictl` in the foreground process group of its terminal.
        let crictl_on_terminal = crictl.replacen("timeout ", "timeout --foreground ", 1);
        let asked = format!("{crictl_on_terminal} exec -it {shell} /bin/sh -c 'test -t 0 && echo has a terminal'");
        assert!(output_of(&format!("script -qec \"{asked}\" /dev/null < /dev/null")).contains("has a terminal"));
        let failed = of_root.shell(&format!("{crictl} exec {shell} /bin/sh -c 'exit 7'"));
        assert!(failed.code() != 0 && failed.stderr.contains("exit code 7"), "{}", failed.stderr);
        let many = output_of(&format!("{crictl} exec {shell} /bin/sh -c 'head -c 10000000 /dev/zero' | wc -c"));
        assert_eq!(many.trim(), "10000000");
        // The container keeps reading, so `crictl` would not end by itself.
        let attach = format!("timeout 5 crictl -t 30s -r {listen} attach -i {reader}");
        let attached = output_of(&format!("(echo is attached; sleep 5) | {{ {attach} || true; }} | head -n 1"));
        assert_eq!(attached.trim(), "is attached");
        let forward = format!("{crictl} port-forward {pod} {PORT}:{PORT}");
        let answer = "curl -s --retry 50 --retry-connrefused --retry-delay 1 --max-time 30";
        let asked = format!("{answer} http://127.0.0.1:{PORT}/echo?msg=forwarded");
        assert_eq!(output_of(&format!("{forward} >&2 & forward=$!; {asked}; kill $forward")), "forwarded");
    }

    /// Two subscribers receive events of containers. A subscription does not report when it is in effect, so the test creates and removes containers
    /// until both have received one.
    fn events(&self, listen: &str, folder: &Path, of_root: &Keelway) {
        let crictl = format!("timeout 60 crictl -t 30s -r {listen}");
        let (pod, folder) = (&self.pod, folder.display());
        let config = format!(r#"{{"metadata": {{"name": "brief"}}, "image": {{"image": "{AGNHOST}"}}}}"#);
        fs::write(format!("{folder}/brief.json"), config).unwrap();
        let subscribe = |name: &str| format!("{crictl} events > {folder}/{name} & {name}=$!");
        let received = |name: &str| format!("grep -q CONTAINER_DELETED_EVENT {folder}/{name}");
        let create = format!("{crictl} create --no-pull {pod} {folder}/brief.json {folder}/pod.json");
        let until =
            format!("until {} && {}; do {crictl} rm -f $({create}); done", received("first"), received("second"));
        let line = format!("{}; {}; {until}; kill $first $second", subscribe("first"), subscribe("second"));
        let _ = of_root.shell(&format!("timeout 60 bash -c '{line}'")).succeeded();
        for name in ["first", "second"] {
            let events = fs::read_to_string(format!("{folder}/{name}")).unwrap();
            assert!(events.contains(pod), "{events}");
        }
    }
}

/// The same URL also serves WebSocket. containerd speaks `v4.channel.k8s.io`, and `crictl` only `v5`, so the test uses `curl`.
fn websocket(socket: &Path, container: &str, of_root: &Keelway) {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = executor.block_on(async {
        let runtime = CriRuntime::on_socket(socket, Deadlines::default()).unwrap();
        let command = ["etcdctl", "version"].map(str::to_owned);
        runtime.exec(container, &command, (false, false)).await.unwrap().uri().to_string()
    });
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let headers = "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Origin: http://a' -H 'Sec-WebSocket-Version: 13' \
        -H 'Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==' -H 'Sec-WebSocket-Protocol: v4.channel.k8s.io'";
    let ask = || of_root.shell(&format!("curl -siN --http1.1 --max-time 30 {headers} {url}"));
    let response = String::from_utf8_lossy(&ask().stdout).into_owned();
    let wanted = ["HTTP/1.1 101 ", "v4.channel.k8s.io", "etcdctl version: ", r#""status":"Success""#];
    assert!(wanted.iter().all(|wanted| response.to_lowercase().contains(&wanted.to_lowercase())), "{response}");
    let response = String::from_utf8_lossy(&ask().stdout).into_owned();
    assert!(response.starts_with("HTTP/1.1 404 "), "a path is good once: {response}");
}
