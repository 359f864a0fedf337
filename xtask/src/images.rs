//! `cargo xtask images`: makes the products that the cache lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::archive::{Archive, sha256};
use crate::cache::{self, Cache};
use crate::progress::ProgressOutput;
use crate::table::{GoBuild, ImageDefinition, Product, ProductSet, ProgramOrigin};
use crate::{agent, debian, go, prepared, process, table};

/// The version of the rules that turn recipes into files. A different number makes all products again.
const FORMAT: u32 = 1;

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Options {
    /// Skip products that exist and were made from the same inputs.
    pub(crate) missing: bool,
    /// The names of the products to make. Empty means all.
    pub(crate) only: BTreeSet<String>,
    /// List the products and make nothing.
    pub(crate) list: bool,
    pub(crate) part: ProductScope,
    pub(crate) set: ProductSet,
    /// Skip products that only tests run.
    pub(crate) no_tests: bool,
    /// Images can be pulled, and programs in PATH are sufficient: make only the other programs.
    pub(crate) pull: bool,
    /// Print progress in lines that are not overwritten.
    pub(crate) plain: bool,
}

/// Selects products by the origin of their programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ProductScope {
    /// All products, after a build of the workspace.
    #[default]
    All,
    /// Products with programs of Keelway, from the last build of the workspace.
    Own,
    /// Products with programs of other projects only. They need no build of the workspace.
    Others,
}

impl ProductScope {
    fn has(self, product: &Product) -> bool {
        match self {
            Self::All => true,
            Self::Own => product.is_own(),
            Self::Others => !product.is_own(),
        }
    }
}

/// A product and all inputs that determine its bytes.
struct ProductRecipe {
    product: Product,
    path: String,
    recipe: String,
}

/// The output directory of each finished Go build.
type Builds = BTreeMap<GoBuild, PathBuf>;

pub(crate) fn run(options: &Options, cache: &Cache) -> Result<()> {
    if options.part == ProductScope::All && options.set == ProductSet::Standard && !options.list {
        agent::build_workspace()?;
    }
    let wanted = wanted(options)?;
    if options.list {
        return list(&wanted, cache);
    }
    let progress = ProgressOutput::new(options.plain);
    make_all(options, wanted, cache, progress)?;
    // The other images alone would be prepared twice.
    if options.part == ProductScope::Others || options.set != ProductSet::Standard {
        return Ok(());
    }
    prepared::refresh(cache, progress)
}

fn make_all(options: &Options, wanted: Vec<ProductRecipe>, cache: &Cache, progress: ProgressOutput) -> Result<()> {
    let count = wanted.len();
    let current = format!("all {count} exist, in {}", cache.root().display());
    let stale = |wanted: Vec<ProductRecipe>| -> Vec<ProductRecipe> {
        let needed = |one: &ProductRecipe| !options.missing || !cache.has(&one.path, &one.recipe);
        wanted.into_iter().filter(needed).collect()
    };
    let wanted = stale(wanted);
    if wanted.is_empty() {
        progress.print(&current);
        return Ok(());
    }
    let lock = cache.lock(|| progress.print("waiting for another run"))?;
    let wanted = stale(wanted);
    let scratch = cache.scratch(&lock)?;
    let made = Workshop { cache, scratch: &scratch, progress }.make(&wanted);
    let cleared = cache::remove(&scratch);
    made.and(cleared)?;
    progress.print(&current);
    Ok(())
}

fn wanted(options: &Options) -> Result<Vec<ProductRecipe>> {
    let products = options.set.products();
    let names: BTreeSet<&str> = products.iter().map(Product::name).collect();
    if let Some(unknown) = options.only.iter().find(|name| !names.contains(name.as_str())) {
        let names: Vec<&str> = names.into_iter().collect();
        bail!("unknown product {unknown}; must be one of {}", names.join(", "));
    }
    products
        .into_iter()
        .filter(|product| options.only.is_empty() || options.only.contains(product.name()))
        .filter(|product| options.part.has(product))
        .filter(|product| !(options.no_tests && product.is_for_tests()))
        .filter(|product| !options.pull || must_be_made(product))
        .map(|product| Ok(ProductRecipe { path: product.path(), recipe: recipe(&product)?, product }))
        .collect()
}

/// Returns whether the product can neither be pulled nor found in PATH.
fn must_be_made(product: &Product) -> bool {
    match product {
        Product::Image(_) => product.is_own(),
        Product::Program(origin) => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            !std::env::split_paths(&path).any(|directory| directory.join(origin.name()).is_file())
        }
    }
}

fn list(wanted: &[ProductRecipe], cache: &Cache) -> Result<()> {
    let mut stdout = io::stdout().lock();
    for one in wanted {
        let state = if cache.has(&one.path, &one.recipe) { "present" } else { "missing" };
        let what = match &one.product {
            Product::Program(origin) => origin.name(),
            Product::Image(image) => &image.reference,
        };
        writeln!(stdout, "{state:8} {what:50} {}", cache.file(&one.path).display())?;
    }
    Ok(())
}

/// Returns the inputs of a product as text. An input that can change under the same name, such as a file of a Debian package, is identified
/// by its size and date.
fn recipe(product: &Product) -> Result<String> {
    let mut recipe = format!("format {FORMAT}\n");
    match product {
        Product::Program(origin) => recipe += &ingredient(*origin)?,
        Product::Image(image) => {
            let ImageDefinition { reference, entrypoint, command, stop_signal, .. } = image;
            let _ = writeln!(recipe, "{reference} {entrypoint:?} {command:?}");
            if let Some(signal) = stop_signal {
                let _ = writeln!(recipe, "stops at {signal}");
            }
            for (at, text) in &image.texts {
                let _ = writeln!(recipe, "{at} has {text:?}");
            }
            for (at, target) in &image.links {
                let _ = writeln!(recipe, "{at} links to {target}");
            }
            if image.set_user_id {
                recipe += "runs as root\n";
            }
            for file in &image.files {
                let _ = write!(recipe, "{} {}", file.at, ingredient(file.origin)?);
            }
        }
    }
    Ok(recipe)
}

fn ingredient(origin: ProgramOrigin) -> Result<String> {
    Ok(match origin {
        ProgramOrigin::Go(build, program) => {
            format!("{}@v{} {}\n", build.package(program), build.version(), build.ldflags())
        }
        ProgramOrigin::ModuleFile(build, path) => format!("{build} {path}\n"),
        ProgramOrigin::Workspace(name) => {
            let program = agent::built(name)?;
            match fs::read(&program) {
                Ok(bytes) => format!("{name} {}\n{}", sha256(&bytes), debian::fingerprint(&libraries(&program)?)?),
                Err(_) => format!("{name} is not built\n"),
            }
        }
        ProgramOrigin::C { source, version, .. } => format!("{version}\n{source}"),
        ProgramOrigin::Debian { path, .. } => debian::fingerprint(&debian::closure(Path::new(path))?)?,
    })
}

struct Workshop<'a> {
    cache: &'a Cache,
    scratch: &'a Path,
    progress: ProgressOutput,
}

impl Workshop<'_> {
    /// Makes the products. The modules of all Go builds are downloaded in parallel while the first build compiles: downloads wait for the network,
    /// compilations for processors. Two compilations in parallel would save no time.
    fn make(&self, wanted: &[ProductRecipe]) -> Result<()> {
        let builds = go_programs(wanted);
        if !builds.is_empty() {
            go::check()?;
        }
        let (sender, prepared) = mpsc::channel();
        for (build, programs) in builds.clone() {
            let directory = self.scratch.join(format!("go-{build}"));
            let sender = sender.clone();
            thread::spawn(move || sender.send(go::prepare(build, programs, directory)));
        }
        drop(sender);
        let mut built = BTreeMap::new();
        self.make_those_with(&built, None, wanted)?;
        if builds.is_empty() {
            return Ok(());
        }
        let mut download = self.progress.step("Go modules", Instant::now());
        for _ in &builds {
            let prepared = download.until(&prepared, || "downloading".to_owned());
            let prepared = prepared.context("wait for the download of modules")??;
            let mut step = self.progress.step(prepared.build.to_string(), Instant::now());
            built.insert(prepared.build, prepared.build(&mut step)?);
            step.done();
            self.make_those_with(&built, Some(prepared.build), wanted)?;
        }
        Ok(())
    }

    /// Makes the products for which `newest` was the last missing Go build, or those that need no Go build if it is `None`.
    fn make_those_with(&self, done: &Builds, newest: Option<GoBuild>, wanted: &[ProductRecipe]) -> Result<()> {
        for one in wanted {
            let needed = one.product.go_builds();
            let its_turn = newest.map_or(needed.is_empty(), |newest| needed.contains(&newest));
            if its_turn && needed.iter().all(|build| done.contains_key(build)) {
                self.make_one(one, done).with_context(|| format!("make {}", one.path))?;
            }
        }
        Ok(())
    }

    fn make_one(&self, wanted: &ProductRecipe, done: &Builds) -> Result<()> {
        let finished = match &wanted.product {
            Product::Program(origin) => self.second_name(&self.program(*origin, done)?)?,
            Product::Image(image) => self.image(image, done)?,
        };
        self.cache.publish(&finished, &wanted.path, &wanted.recipe)
    }

    /// Links the program under a second name that the caller may move away, because an image may still need the program.
    fn second_name(&self, program: &Path) -> Result<PathBuf> {
        let name = program.file_name().context("find the program's name")?;
        let second = self.scratch.join(name);
        fs::hard_link(program, &second).with_context(|| format!("link {}", program.display()))?;
        Ok(second)
    }

    /// Returns the path of a program that was built or installed.
    fn program(&self, origin: ProgramOrigin, done: &Builds) -> Result<PathBuf> {
        match origin {
            ProgramOrigin::Go(build, name) => Ok(done.get(&build).context("find its Go build")?.join(name)),
            ProgramOrigin::ModuleFile(build, path) => go::module_file(build, path),
            ProgramOrigin::Workspace(name) => self.stripped(&agent::built(name)?),
            ProgramOrigin::C { name, source, version } => self.compile(name, source, version),
            ProgramOrigin::Debian { package, path, version } => {
                if let Some(version) = version {
                    debian::check_version(package, version)?;
                }
                Ok(PathBuf::from(path))
            }
        }
    }

    /// Removes debug information, which is nine tenths of the file.
    fn stripped(&self, program: &Path) -> Result<PathBuf> {
        ensure!(program.is_file(), "{} does not exist; build it with `cargo build --workspace`", program.display());
        let stripped = self.scratch.join(program.file_name().context("find the program's name")?);
        process::output(Command::new("strip").arg("-o").args([&stripped, program]))?;
        Ok(stripped)
    }

    fn compile(&self, name: &str, source: &str, version: &str) -> Result<PathBuf> {
        let code = self.scratch.join(format!("{name}.c"));
        let program = self.scratch.join(name);
        fs::write(&code, source).with_context(|| format!("write {}", code.display()))?;
        let mut compiler = Command::new("gcc");
        compiler.args(["-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror"]);
        compiler.arg(format!("-DVERSION=\"{version}\"")).arg("-o").args([&program, &code]);
        process::output(&mut compiler)?;
        Ok(program)
    }

    fn image(&self, image: &ImageDefinition, done: &Builds) -> Result<PathBuf> {
        let archive = Archive {
            reference: &image.reference,
            entrypoint: &image.entrypoint,
            command: &image.command,
            stop_signal: image.stop_signal,
            files: self.files(image, done)?,
            mode: if image.set_user_id { 0o4755 } else { 0o755 },
            links: &image.links,
        };
        let path = self.scratch.join(table::archive_name(&image.reference));
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        archive.write(BufWriter::new(file))?;
        Ok(path)
    }

    /// Returns the contents of all files of an image by their path in it.
    fn files(&self, image: &ImageDefinition, done: &Builds) -> Result<BTreeMap<String, Vec<u8>>> {
        let texts = image.texts.iter().map(|(at, text)| ((*at).to_owned(), text.as_bytes().to_vec()));
        let mut files: BTreeMap<String, Vec<u8>> = texts.collect();
        for file in &image.files {
            files.insert(file.at.to_owned(), read(&self.program(file.origin, done)?)?);
            let libraries = match file.origin {
                ProgramOrigin::Debian { path, .. } => libraries(Path::new(path))?,
                ProgramOrigin::Workspace(name) => libraries(&agent::built(name)?)?,
                ProgramOrigin::Go(..) | ProgramOrigin::ModuleFile(..) | ProgramOrigin::C { .. } => Vec::new(),
            };
            for library in libraries {
                files.insert(library.display().to_string(), read(&library)?);
            }
        }
        Ok(files)
    }
}

/// Returns the shared libraries of a program.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    Ok(debian::closure(program)?.into_iter().skip(1).collect())
}

/// Returns the programs to build, grouped by build.
fn go_programs(wanted: &[ProductRecipe]) -> BTreeMap<GoBuild, BTreeSet<&'static str>> {
    let mut builds: BTreeMap<GoBuild, BTreeSet<&'static str>> = BTreeMap::new();
    for origin in wanted.iter().flat_map(|one| one.product.origins()) {
        if let ProgramOrigin::Go(build, program) = origin {
            builds.entry(build).or_default().insert(program);
        }
    }
    builds
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}
