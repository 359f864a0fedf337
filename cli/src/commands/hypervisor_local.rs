//! `keelway hypervisor local`.

use std::{ffi::OsString, path::PathBuf};

use clap::{ArgAction, Args, Subcommand};
use keelway_api::{Documents, Hypervisor, Shared};
use keelway_local_hypervisor::{
    AgentProgram, CreateRequest, FLEET_LABEL, Fleet, FleetStep, Launcher, PowerState, ProgramSearch, create, destroy,
    destroy_machines, power, run_machine,
};

use super::{hypervisor_local_enroll, print_documents, session::runtime};
use crate::{
    args::GlobalArguments,
    commands::hypervisor_local_enroll::LocalEnrollArguments,
    directories::{cache_directory, state_directory},
    exit::{Code, CommandFailure},
    input::Input,
    last_documents,
    progress::ProgressLine,
};

#[derive(Subcommand)]
pub(crate) enum LocalCommand {
    /// Create local hypervisors and write their documents
    #[command(
        after_help = "Example:\n  keelway hypervisor local create --public 1 --private 1 > world.yaml\n  keelway hypervisor local create --agent=false > world.yaml"
    )]
    Create(LocalCreateArguments),
    /// Delete the local hypervisors of the documents, and write the remaining documents
    #[command(
        after_help = "Example:\n  keelway hypervisor local destroy < empty.yaml\n  keelway hypervisor local destroy --fleet local"
    )]
    Destroy(LocalDestroyArguments),
    /// Enroll the agents of local hypervisors on the network between them, and write documents with these addresses. Run the following
    /// commands in a namespace of that network
    #[command(
        after_help = "Example:\n  keelway hypervisor local create | keelway hypervisor local enroll > world.yaml\n  nsenter --net=/run/keelway-local/local/public-1/net keelway reconcile < world.yaml"
    )]
    Enroll(LocalEnrollArguments),
    /// Power off local hypervisors
    #[command(after_help = "Example:\n  keelway hypervisor local stop private-1")]
    Stop(LocalMachines),
    /// Power on local hypervisors that are off, or whose containerd or agent exited
    #[command(after_help = "Example:\n  keelway hypervisor local start private-1")]
    Start(LocalMachines),
    /// Power off local hypervisors, and power them on again
    #[command(after_help = "Example:\n  keelway hypervisor local reboot private-1")]
    Reboot(LocalMachines),
    /// Run a machine's containerd or agent
    #[command(hide = true)]
    RunMachine {
        /// The description of the program to run
        launch: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct LocalCreateArguments {
    /// The number of public hypervisors
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) public: u8,
    /// The number of private hypervisors
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) private: u8,
    /// Zones, separated by commas; hypervisors are assigned to them in turn
    #[arg(long, value_delimiter = ',', value_name = "ZONE,..")]
    pub(crate) zones: Vec<String>,
    /// The name of this set of machines
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) fleet: String,
    /// Run keelway-hypervisor-agent on each new hypervisor; without it, only passes restart components
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub(crate) agent: bool,
}

#[derive(Args)]
pub(crate) struct LocalMachines {
    /// The name of the set of machines
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) fleet: String,
    /// Names of hypervisors, as in their documents
    #[arg(required = true, value_name = "MACHINE")]
    pub(crate) machines: Vec<String>,
}

#[derive(Args)]
pub(crate) struct LocalDestroyArguments {
    /// Delete this whole set of machines and all their data, without reading documents
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    pub(crate) fleet: Option<String>,
}

/// The hidden command that becomes the containerd or the agent of a machine.
const RUN_MACHINE: &str = "run-machine";

pub(super) fn run(global: &GlobalArguments, command: LocalCommand) -> Result<Code, CommandFailure> {
    match command {
        LocalCommand::Create(arguments) => make(global, &arguments),
        LocalCommand::Destroy(LocalDestroyArguments { fleet: Some(fleet) }) => destroy_fleet(global, &fleet),
        LocalCommand::Destroy(LocalDestroyArguments { fleet: None }) => destroy_documents(global),
        LocalCommand::Enroll(arguments) => hypervisor_local_enroll::run(global, &arguments),
        LocalCommand::Stop(machines) => switch(global, &machines, PowerState::Off),
        LocalCommand::Start(machines) => switch(global, &machines, PowerState::On),
        LocalCommand::Reboot(machines) => switch(global, &machines, PowerState::Cycle),
        LocalCommand::RunMachine { launch } => {
            let Err(error) = run_machine(&launch);
            Err(CommandFailure::other(error))
        }
    }
}

/// Returns where to look for the programs of machines.
pub(super) fn search() -> ProgramSearch {
    ProgramSearch { cache_bin: cache_directory().join("bin"), path: std::env::var_os("PATH").unwrap_or_default() }
}

/// Returns the launcher, which runs this program as the program of a machine.
pub(super) fn launcher() -> Result<Launcher, CommandFailure> {
    let program = std::env::current_exe().map_err(CommandFailure::other)?;
    Ok(Launcher { program, arguments: ["hypervisor", "local", RUN_MACHINE].map(OsString::from).to_vec() })
}

/// Creates a request without machines. The agent's program is in the directory of this one.
pub(super) fn request(fleet: &str, agent: bool) -> Result<CreateRequest, CommandFailure> {
    let launcher = launcher()?;
    let agent = agent.then(|| AgentProgram {
        program: launcher.program.with_file_name("keelway-hypervisor-agent"),
        archives: cache_directory().join("images"),
    });
    Ok(CreateRequest {
        fleet: Fleet::new(fleet).map_err(CommandFailure::other)?,
        public: 0,
        private: 0,
        zones: Vec::new(),
        search: search(),
        launcher,
        agent,
    })
}

fn make(global: &GlobalArguments, arguments: &LocalCreateArguments) -> Result<Code, CommandFailure> {
    let request = CreateRequest {
        public: arguments.public,
        private: arguments.private,
        zones: arguments.zones.clone(),
        ..request(&arguments.fleet, arguments.agent)?
    };
    let line = ProgressLine::of_terminal(global.quiet);
    let made = runtime()?.block_on(create(&request, &|step: &FleetStep| line.show(&step.to_string())));
    let mut documents = Documents::default();
    for machine in made.map_err(CommandFailure::other)? {
        let name = machine.metadata.name.clone().unwrap_or_default();
        documents.hypervisors.insert(name.parse().map_err(CommandFailure::other)?, machine);
    }
    drop(line);
    print_documents(&documents)?;
    Ok(Code::Done)
}

fn switch(global: &GlobalArguments, machines: &LocalMachines, to: PowerState) -> Result<Code, CommandFailure> {
    let request = request(&machines.fleet, true)?;
    let line = ProgressLine::of_terminal(global.quiet);
    let say = |step: &FleetStep| line.show(&step.to_string());
    runtime()?.block_on(power(&request, &machines.machines, to, &say)).map_err(CommandFailure::other)?;
    Ok(Code::Done)
}

fn destroy_fleet(global: &GlobalArguments, fleet: &str) -> Result<Code, CommandFailure> {
    let fleet = Fleet::new(fleet).map_err(CommandFailure::other)?;
    let line = ProgressLine::of_terminal(global.quiet);
    runtime()?
        .block_on(destroy(&fleet, &|step: &FleetStep| line.show(&step.to_string())))
        .map_err(CommandFailure::other)?;
    Ok(Code::Done)
}

fn destroy_documents(global: &GlobalArguments) -> Result<Code, CommandFailure> {
    let input = Input::read(&global.files)?;
    let left = destroy_those_of(global, &input).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&left)?;
    Ok(Code::Done)
}

/// Destroys the local hypervisors, and returns the documents without them.
fn destroy_those_of(global: &GlobalArguments, input: &Input) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    let holds = |machine: &Hypervisor| {
        let name = machine.metadata.name.as_deref();
        documents.components.values().any(|component| Some(component.spec.hypervisor.as_str()) == name)
    };
    let local = documents.hypervisors.values().filter(|machine| is_local(machine));
    let local: Vec<Hypervisor> = local.cloned().map(Shared::into_inner).collect();
    if let Some(machine) = local.iter().find(|machine| holds(machine)) {
        let name = machine.metadata.name.clone().unwrap_or_default();
        return Err(CommandFailure::usage(
            format!("hypervisor {name} still runs components"),
            "delete their clusters first: keelway cluster delete --name NAME | keelway reconcile",
        ));
    }
    let line = ProgressLine::of_terminal(global.quiet);
    runtime()?
        .block_on(destroy_machines(&local, &|step: &FleetStep| line.show(&step.to_string())))
        .map_err(CommandFailure::other)?;
    let before = documents.clone();
    documents.hypervisors.retain(|_, machine| !is_local(machine));
    documents.forget_installations();
    if documents.installation().is_none() {
        last_documents::forget(&state_directory(), &before).map_err(CommandFailure::other)?;
    }
    Ok(documents)
}

fn is_local(machine: &Hypervisor) -> bool {
    machine.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(FLEET_LABEL))
}
