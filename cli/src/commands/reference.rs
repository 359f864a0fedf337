//! `keelway reference`: the parts of the documentation that are generated from the program.

use std::{
    fmt::Write,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{CommandFactory, Subcommand};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};
use keelway_api::{
    argument, condition, event,
    explain::{Explanation, explain, kinds},
    machine,
    role::{EGRESS, HEALTH, PEER, Role},
};

use super::print;
use crate::{
    args::CliArguments,
    exit::{Code, CommandFailure},
};

#[derive(Subcommand)]
pub(crate) enum ReferenceCommand {
    /// Write a man page for each command into a directory
    #[command(after_help = "Example:\n  keelway reference man target/man")]
    Man {
        /// The directory; it is created if it is missing
        directory: PathBuf,
    },
    /// List every field of every document
    #[command(after_help = "Example:\n  keelway reference fields > docs/fields.md")]
    Fields,
    /// List every reason of conditions and events
    #[command(after_help = "Example:\n  keelway reference reasons > docs/reasons.md")]
    Reasons,
    /// List every port of every component
    #[command(after_help = "Example:\n  keelway reference ports > docs/ports.md")]
    Ports,
    /// List every argument that a cluster can set for its components
    #[command(after_help = "Example:\n  keelway reference arguments > docs/arguments.md")]
    Arguments,
    /// List every command, one per line
    #[command(after_help = "Example:\n  keelway reference commands")]
    Commands,
}

pub(super) fn run(command: ReferenceCommand) -> Result<Code, CommandFailure> {
    match command {
        ReferenceCommand::Man { directory } => pages(&directory).map_err(CommandFailure::other)?,
        ReferenceCommand::Fields => print(&fields()?)?,
        ReferenceCommand::Reasons => print(&reasons())?,
        ReferenceCommand::Arguments => print(&arguments())?,
        ReferenceCommand::Ports => print(&ports())?,
        ReferenceCommand::Commands => print(&commands())?,
    }
    Ok(Code::Done)
}

/// The exit codes, which are on every page.
const EXIT_STATUS: [(&str, &str); 7] = [
    ("0", "Success; for reconcile: settled."),
    ("1", "Failed."),
    ("2", "Bad input or usage. Nothing was done."),
    ("3", "reconcile: not settled before the timeout."),
    ("4", "plan and diff with --exit-code: found a difference; recover: something needs attention."),
    ("130, 143", "Ended by SIGINT or SIGTERM."),
    ("other", "exec: the exit code of its command."),
];

fn pages(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("could not create {}", directory.display()))?;
    let mut command = CliArguments::command().disable_help_subcommand(true);
    command.build();
    page(directory, &command, "keelway")
}

/// `keelway-cluster-get.1`, and those of the commands below.
fn page(directory: &Path, command: &clap::Command, name: &str) -> anyhow::Result<()> {
    let path = directory.join(format!("{name}.1"));
    let write = || -> io::Result<()> {
        let mut file = File::create(&path)?;
        let shown = command.clone().display_name(name.to_owned());
        let man = Man::new(shown).title(name.to_uppercase());
        man.render_title(&mut file)?;
        man.render_name_section(&mut file)?;
        man.render_synopsis_section(&mut file)?;
        man.render_description_section(&mut file)?;
        man.render_options_section(&mut file)?;
        if command.get_subcommands().any(|command| !command.is_hide_set()) {
            man.render_subcommands_section(&mut file)?;
        }
        exit_status().to_writer(&mut file)?;
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        examples(&help).to_writer(&mut file)
    };
    write().with_context(|| format!("could not write {}", path.display()))?;
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    below.into_iter().try_for_each(|command| page(directory, command, &format!("{name}-{}", command.get_name())))
}

fn exit_status() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_STATUS {
        roff.control("TP", []).text([roman(code)]).text([roman(meaning)]);
    }
    roff
}

/// Returns the section with the examples.
fn examples(help: &str) -> Roff {
    let mut roff = Roff::new();
    let examples = help.strip_prefix("Example:\n").unwrap_or(help);
    let examples = examples.split("\n\n").next().unwrap_or_default();
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in examples.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

/// Every command that can be run, as the words of its name.
fn commands() -> String {
    fn add(text: &mut String, command: &clap::Command, words: &str) {
        let below: Vec<_> = command.get_subcommands().filter(|below| !below.is_hide_set()).collect();
        if below.is_empty() {
            text.push_str(words.trim());
            text.push('\n');
        }
        for command in below {
            add(text, command, &format!("{words} {}", command.get_name()));
        }
    }
    let mut text = String::new();
    add(&mut text, &CliArguments::command(), "");
    text
}

fn fields() -> Result<String, CommandFailure> {
    let mut text =
        "# Every field\n\nWritten by `cargo xtask docs`. `keelway explain KIND.FIELD` prints the same text.\n"
            .to_owned();
    for kind in kinds() {
        let found = explain(kind).map_err(CommandFailure::other)?;
        let _ = write!(text, "\n## {kind}\n\n| Field | Type | Required | Default | Meaning |\n|---|---|---|---|---|\n");
        rows(&mut text, kind, &found)?;
    }
    Ok(text)
}

/// A line for each field, and for those below it.
fn rows(text: &mut String, kind: &str, of: &Explanation) -> Result<(), CommandFailure> {
    for field in &of.fields {
        let path = if of.path.is_empty() { field.name.to_owned() } else { format!("{}.{}", of.path, field.name) };
        let found = explain(&format!("{kind}.{path}")).map_err(CommandFailure::other)?;
        let default = found.default.as_ref().filter(|_| found.fields.is_empty()).map(|value| format!("`{value}`"));
        let required = if field.required { "yes" } else { "" };
        let meaning = field.description.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        let form = field.form.replace('|', "\\|");
        let _ = writeln!(text, "| `{path}` | {form} | {required} | {} | {meaning} |", default.unwrap_or_default());
        // Kubernetes defines the fields below metadata.
        if path != "metadata" {
            rows(text, kind, &found)?;
        }
    }
    Ok(())
}

fn arguments() -> String {
    let mut text = "\
# Every extra argument

Written by `cargo xtask docs`.

A Cluster can set these arguments of its components, by their names without dashes, in `spec.controlPlane.kubeAPIServer.extraArgs`, and in
`extraArgs` of `kubeControllerManager` and `kubeScheduler`:

```yaml
spec:
  controlPlane:
    kubeAPIServer: {extraArgs: {event-ttl: 2h, max-requests-inflight: \"800\"}}
    kubeScheduler: {extraArgs: {v: \"4\"}}
```

Keelway checks values when it reads documents, so that no value prevents a program from starting. A change replaces the components, and API
servers one at a time. Keelway sets all other arguments itself and refuses them in documents: those that protect the API, those that
expose secrets, and those on which the components have to agree.

| Component | Argument | Value | Releases |
|---|---|---|---|
"
    .to_owned();
    for role in Role::ALL {
        for argument in argument::of_role(role) {
            let releases = argument.since.map_or_else(|| "all".to_owned(), |minor| format!("1.{minor} and later"));
            let _ = writeln!(text, "| {role} | `{}` | {} | {releases} |", argument.name, argument.form);
        }
    }
    text
}

fn ports() -> String {
    let mut text = "\
# Every port

Written by `cargo xtask docs`.

Keelway takes port numbers from `spec.portRange` of the machine, outside of its `ip_local_port_range`, that no other program listens on. A
component keeps its numbers for its lifetime. `keelway component get -o wide` shows them. Machines connect to each other on their private
addresses. All components of a machine share its loopback.

| Component | Port | On | Clients | Protection |
|---|---|---|---|---|
"
    .to_owned();
    for role in Role::ALL {
        for port in role.row().ports {
            let (on, who, kept) = port_of(role, port);
            let _ = writeln!(text, "| {role} | {port} | {on} | {who} | {kept} |");
        }
    }
    text.push_str(
        "\nAn ingress has the same number on all public machines of its cluster: `spec.ingress.port` of the Cluster, or else one from `spec.portRange` of the\n\
         machines. The gateway beside it has the same number in UDP, on all addresses of the\n\
         machine, for WireGuard, and in TCP on loopback, where the ingress forwards tunnels over TLS. It responds only to workers\n\
         and to the other gateways of the cluster.\n\
         Agents listen on a port only with `keelway-hypervisor-agent run --listen ADDRESS:PORT` (TLS,\n\
         certificates on both sides). An agent that Keelway starts behind a proxy listens on port 7443 of the machine's first private address, or on the port\n\
         of `spec.endpoint.cri.agentAddress`. On a hypervisor, Keelway listens on no other port. The sockets of agents, and the metrics of ingresses,\n\
         gateways, egresses, cluster-controllers and fleet-controllers, are Unix sockets that only root and the component can use.\n",
    );
    text
}

/// The machine of a port, the clients that connect to it, and how they are authenticated.
fn port_of(role: Role, port: &str) -> (&'static str, &'static str, &'static str) {
    const MUTUAL: &str = "TLS, certificates on both sides";
    match (role, port) {
        (Role::Etcd, PEER) => ("private address", "the other members", MUTUAL),
        (Role::Etcd, _) => ("private address", "API servers, `keelway` and agents", MUTUAL),
        (Role::KubeApiserver, EGRESS)
        | (Role::ClusterController | Role::FleetController, _)
        | (Role::Gateway, HEALTH) => ("loopback", "`keelway` and agents", "health, open to every user of the machine"),
        (Role::KubeApiserver, _) => (
            "private address",
            "ingresses, controllers, `keelway` and agents",
            "TLS; unauthenticated clients get only the health paths",
        ),
        (Role::KubeControllerManager | Role::KubeScheduler, _) => {
            ("loopback", "`keelway` and agents", "TLS; unauthenticated clients get only the health path")
        }
        (Role::Ingress, _) => (
            "public addresses, or `spec.addresses.bind` of the machine",
            "users of the cluster",
            "forwards bytes to API servers and to the gateway beside it; opens no other connection",
        ),
        (Role::Gateway, _) => (
            "private address",
            "the egress beside each API server of the cluster",
            "TLS, certificates on both sides; reaches workers of the cluster and nothing else",
        ),
    }
}

fn reasons() -> String {
    let mut text = "\
# Every reason

Written by `cargo xtask docs`.

## Conditions

`keelway get -o yaml` shows them under `status.conditions`; `keelway status` shows what is wrong and what to do.

| Kind | Condition | Reason | Meaning | What to do |
|---|---|---|---|---|
"
    .to_owned();
    for reason in condition::reason::ALL {
        let of = reason.explained();
        let _ = writeln!(text, "| {} | {} | `{}` | {} | {} |", of.kind, of.condition, of.name, of.meaning, of.help);
    }
    text.push_str(
        "\
\n## Events of documents

In a management cluster, `kubectl describe kwc NAME` and `kubectl events --for kwc/NAME` show them. Each change of a condition is also an
event, with the condition's reason.

| Kind | Reason | Meaning |
|---|---|---|
",
    );
    for (happening, kind, meaning) in event::reason::ALL {
        let _ = writeln!(text, "| {kind} | `{}` | {meaning} |", happening.as_str());
    }
    text.push_str("\n## Events of machines\n\n`keelway events` shows them.\n\n| Reason | Meaning |\n|---|---|\n");
    for (reason, meaning) in machine::event::reason::ALL {
        let _ = writeln!(text, "| `{reason}` | {meaning} |");
    }
    text
}
