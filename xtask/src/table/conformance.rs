//! The programs and images of Kubernetes' conformance tests.
//!
//! The images have the names under which the tests use them (`test/utils/image/manifest.go`). They are made from Debian packages and from the module of
//! the release, not from Alpine as the public images are, so only what the tests call is in them.

use super::{AGNHOST, GoBuild, ImageDefinition, ImageFile, Product, ProductSet, ProgramOrigin, release};

/// Where the tests find their images.
const REGISTRY: &str = "registry.k8s.io/e2e-test-images";

/// The applets of `busybox` that the tests call.
const APPLETS: &str = "\
[ ash awk base64 basename cat chgrp chmod chown cmp cp cut date dd df diff dirname dmesg du echo egrep env expr false \
fgrep find fold free grep groups gunzip gzip head hexdump hostname httpd id ifconfig ip kill ln ls md5sum mkdir mkfifo \
mknod mktemp mount mv netstat nproc nslookup od paste pidof ping ping6 printf ps pwd readlink realpath rm rmdir route \
sed seq setsid sha256sum sleep sort stat sync sysctl tac tail tar tee telnet test timeout top touch tr traceroute true \
umount uname uniq uptime usleep vi wc wget which whoami xargs yes";

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";
/// Tests of supplementary groups look for this user and its group.
const AGNHOST_PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n";
const AGNHOST_GROUP: &str =
    "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n";

const NGINX: &str = "\
user root root;
pid /tmp/nginx.pid;
error_log stderr;
events {}
http {
  access_log /dev/stdout;
  client_body_temp_path /tmp/body;
  proxy_temp_path /tmp/proxy;
  fastcgi_temp_path /tmp/fastcgi;
  uwsgi_temp_path /tmp/uwsgi;
  scgi_temp_path /tmp/scgi;
  server {
    listen 80;
    location / { return 200 \"Welcome to nginx!\\n\"; }
  }
}
";

pub(super) fn products() -> Vec<Product> {
    let programs = ["e2e.test", "ginkgo"].map(|name| Product::Program(ProgramOrigin::Go(GoBuild::Conformance, name)));
    programs.into_iter().chain(images().into_iter().map(Product::Image)).collect()
}

/// Returns the Go package of a program.
pub(super) fn package(program: &str) -> &'static str {
    match program {
        "e2e.test" => "k8s.io/kubernetes/test/e2e",
        "nnp" => "k8s.io/kubernetes/test/images/nonewprivs",
        "sample-apiserver" => "k8s.io/sample-apiserver",
        _ => "github.com/onsi/ginkgo/v2/ginkgo",
    }
}

fn images() -> Vec<ImageDefinition> {
    vec![
        agnhost(AGNHOST),
        // Tests of updates replace this image with the newer one.
        agnhost("2.55"),
        busybox(),
        glibc_dns_testing(),
        nginx("1.27.0-2"),
        nginx("1.28.0-2"),
        picture("kitten", "/kitten.jpg", "test/images/kitten/html/kitten.jpg", "{\"image\": \"kitten.jpg\"}\n"),
        picture(
            "nautilus",
            "/nautilus.jpg",
            "test/images/nautilus/html/nautilus.jpg",
            "{\"image\": \"nautilus.jpg\"}\n",
        ),
        sample_apiserver(),
        nonewprivs(),
    ]
}

fn image(name: &str, files: Vec<ImageFile>) -> ImageDefinition {
    let reference = format!("{REGISTRY}/{name}");
    ImageDefinition { reference, files, set: ProductSet::Conformance, ..ImageDefinition::default() }
}

fn debian(package: &'static str, path: &'static str, at: &'static str) -> ImageFile {
    ImageFile { at, origin: ProgramOrigin::Debian { package, path, version: None } }
}

/// Returns a shell with its tools. The shell is `bash`, because `dash` drops variables whose names it cannot use. `nc` is OpenBSD's, whose options the
/// tests use.
fn tools() -> Vec<ImageFile> {
    vec![
        debian("bash", "/bin/bash", "/bin/bash"),
        debian("busybox", "/bin/busybox", "/bin/busybox"),
        debian("curl", "/usr/bin/curl", "/usr/bin/curl"),
        debian("netcat-openbsd", "/bin/nc.openbsd", "/bin/nc"),
    ]
}

fn links() -> Vec<(String, &'static str)> {
    let applets = APPLETS.split(' ').map(|applet| (format!("/bin/{applet}"), "busybox"));
    applets.chain([("/bin/sh".to_owned(), "bash")]).collect()
}

/// Returns programs that resolve names, for tests of DNS.
fn resolvers() -> [ImageFile; 2] {
    [debian("bind9-dnsutils", "/usr/bin/dig", "/usr/bin/dig"), debian("libc-bin", "/usr/bin/getent", "/usr/bin/getent")]
}

fn glibc_dns_testing() -> ImageDefinition {
    let files = tools().into_iter().chain(resolvers()).collect();
    ImageDefinition {
        texts: vec![("/etc/passwd", PASSWD), ("/etc/group", GROUP)],
        links: links(),
        ..image("glibc-dns-testing:2.1.1", files)
    }
}

fn busybox() -> ImageDefinition {
    ImageDefinition {
        command: vec!["sh"],
        texts: vec![("/etc/passwd", PASSWD), ("/etc/group", GROUP)],
        links: links(),
        ..image("busybox:1.37.0-2", tools())
    }
}

fn agnhost(version: &str) -> ImageDefinition {
    let module =
        |path, at| ImageFile { at, origin: ProgramOrigin::ModuleFile(GoBuild::Kubernetes(release().row), path) };
    let mut files = tools();
    files.extend([
        ImageFile { at: "/agnhost", origin: ProgramOrigin::Go(GoBuild::Kubernetes(release().row), "agnhost") },
        ImageFile { at: "/coredns", origin: ProgramOrigin::Go(GoBuild::CoreDns(release().row), "coredns") },
        module("test/images/agnhost/porter/localhost.crt", "/localhost.crt"),
        module("test/images/agnhost/porter/localhost.key", "/localhost.key"),
        debian("iproute2", "/bin/ss", "/usr/bin/ss"),
    ]);
    files.extend(resolvers());
    let mut links = links();
    links.push(("/agnhost-2".to_owned(), "agnhost"));
    ImageDefinition {
        entrypoint: vec!["/agnhost"],
        command: vec!["pause"],
        texts: vec![("/etc/passwd", AGNHOST_PASSWD), ("/etc/group", AGNHOST_GROUP), ("/uploads/.keep", "")],
        links,
        ..image(&format!("agnhost:{version}"), files)
    }
}

/// Returns a web server that serves a picture, which tests of updates look for.
fn picture(name: &str, at: &'static str, path: &'static str, data: &'static str) -> ImageDefinition {
    ImageDefinition {
        entrypoint: vec!["/agnhost"],
        command: vec!["test-webserver"],
        texts: vec![("/data.json", data)],
        ..image(
            &format!("{name}:1.8"),
            vec![
                ImageFile { at: "/agnhost", origin: ProgramOrigin::Go(GoBuild::Kubernetes(release().row), "agnhost") },
                ImageFile { at, origin: ProgramOrigin::ModuleFile(GoBuild::Kubernetes(release().row), path) },
            ],
        )
    }
}

/// Returns a web server under the names of two versions of nginx. The tests only need two different ones.
fn nginx(version: &str) -> ImageDefinition {
    let mut files = tools();
    files.push(debian("nginx-light", "/usr/sbin/nginx", "/usr/sbin/nginx"));
    ImageDefinition {
        command: vec!["nginx", "-g", "daemon off;"],
        texts: vec![
            ("/etc/nginx/nginx.conf", NGINX),
            ("/etc/passwd", PASSWD),
            ("/etc/group", GROUP),
            ("/var/log/nginx/.keep", ""),
        ],
        links: links(),
        ..image(&format!("nginx:{version}"), files)
    }
}

/// Returns the API server that a test aggregates. The public image has an older version of the same program.
fn sample_apiserver() -> ImageDefinition {
    let origin = ProgramOrigin::Go(GoBuild::Conformance, "sample-apiserver");
    ImageDefinition {
        entrypoint: vec!["/sample-apiserver"],
        ..image("sample-apiserver:1.29.2", vec![ImageFile { at: "/sample-apiserver", origin }])
    }
}

fn nonewprivs() -> ImageDefinition {
    let origin = ProgramOrigin::Go(GoBuild::Conformance, "nnp");
    ImageDefinition {
        command: vec!["nnp"],
        set_user_id: true,
        ..image("nonewprivs:1.4", vec![ImageFile { at: "/usr/local/bin/nnp", origin }])
    }
}
