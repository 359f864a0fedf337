//! The tour of docs/fleet-tour.md: its commands as they stand there.

use std::{fs, os::unix::fs::chown};

use keelway_e2e::{
    transcript::{TourSection, TranscriptStep, of_fleet_tour},
    worker_fleet::WorkerFleet,
};

/// The user that runs `keelway` in these tests. It writes the documents of the tour.
const NOBODY: u32 = 65534;

/// The sections of the tour that were not run yet.
pub(crate) struct FleetTour<'a> {
    worker_fleet: &'a WorkerFleet,
    sections: Vec<TourSection>,
}

impl<'a> FleetTour<'a> {
    /// Begins the tour in the directory of these machines, with their documents.
    pub(crate) fn begin(worker_fleet: &'a WorkerFleet) -> Self {
        let directory = worker_fleet.fleet.keelway.directory();
        chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::write(directory.join("world.yaml"), worker_fleet.documents().write()).unwrap();
        Self { worker_fleet, sections: of_fleet_tour() }
    }

    /// Runs the next section, which has this title.
    pub(crate) fn section(&mut self, title: &str) {
        let section = self.sections.remove(0);
        assert_eq!(section.title, title);
        for (name, content) in &section.files {
            fs::write(self.worker_fleet.fleet.keelway.directory().join(name), content).unwrap();
        }
        section.steps.iter().for_each(|step| self.run(step));
    }

    /// Runs the next section, which writes the documents.
    pub(crate) fn section_with_documents(&mut self, title: &str) {
        self.section(title);
        let documents = fs::read(self.worker_fleet.fleet.keelway.directory().join("fleet.yaml")).unwrap();
        self.worker_fleet.replace_documents(documents);
    }

    /// Fails if a section was left out.
    pub(crate) fn end(self) {
        let left: Vec<String> = self.sections.into_iter().map(|section| section.title).collect();
        assert!(left.is_empty(), "no test runs {left:?} of docs/fleet-tour.md");
    }

    /// Commands on documents run where machines can be reached, and all others on the host of people.
    fn run(&self, step: &TranscriptStep) {
        let keelway = &self.worker_fleet.fleet.keelway;
        let finished = if step.command.contains("--kubeconfig") {
            // The discovery cache of kubectl is below the home directory.
            keelway.on_host().shell(&format!("export HOME=$PWD; {}", step.command))
        } else {
            keelway.shell(&step.command)
        };
        let finished = finished.succeeded();
        if !step.output.is_empty() {
            assert_eq!(finished.text().trim_end(), step.output.trim_end(), "{}", step.command);
        }
    }
}
