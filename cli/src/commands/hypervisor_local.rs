//! `keelway hypervisor local`.

use std::ffi::OsString;

use keelway_api::{Documents, Hypervisor, Shared};
use keelway_local_hypervisor::{
    AgentProgram, CreateRequest, FLEET_LABEL, Fleet, FleetStep, Launcher, PowerState, ProgramSearch, create, destroy,
    destroy_machines, power, run_machine,
};

use super::{hypervisor_local_enroll, print_documents, session::runtime};
use crate::{
    args::{GlobalArguments, LocalCommand, LocalCreateArguments, LocalDestroyArguments, LocalMachines},
    directories::{cache_directory, state_directory},
    exit::{Code, CommandFailure},
    input::Input,
    last_documents,
    progress::ProgressLine,
};

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
