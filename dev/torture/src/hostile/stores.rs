//! Damaged files in a fleet store, and a foreign file in an agent's spool.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use testkit::Random;

use super::witness::{self, ResourceUse, USUAL_LIMIT};
use crate::SuiteLength;
use crate::fleet::dump_json;

/// Arguments that select the day of the dumps.
const DAY_ARGS: &[&str] = &["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
const COMMANDS: &[(&str, &[&str])] = &[
    ("doctor", &[]),
    ("top", DAY_ARGS),
    ("growth", DAY_ARGS),
    ("compact", &[]),
];
const DUMP_COUNT: u64 = 5;

/// Lets an agent fill a store, also with a dump that waits behind a foreign object in its outbox. Then queries copies
/// of the store with random damage in their files. Returns the figures as text. Fails if an object is not stored, or if
/// a command exceeds its limits of time or memory, panics, or leaves something behind.
pub(super) fn query_damaged_stores(length: SuiteLength) -> Result<String> {
    let agent = AgentDir::create()?;
    let mut worst = agent.run_until_stored().context("an agent")?;
    let intact = read_files(&agent.store())?;
    ensure!(!intact.is_empty(), "no file in the store");

    // A foreign object must not delay the dumps that wait behind it in the outbox.
    let foreign = agent.path("spool/outbox").join("!samples!foreign.parquet");
    fs::write(&foreign, "PAR1 is not all")?;
    agent.write_dump(DUMP_COUNT)?;
    worst = worst.max(
        agent
            .run_until_stored()
            .context("an agent with an object of another's")?,
    );
    let count = read_files(&agent.store())?.len();
    ensure!(count > intact.len(), "nothing more is in the store");

    let rounds = length.pick(5, 500);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for round in 0..rounds {
        let store = tempfile::tempdir()?;
        for (path, bytes) in &intact {
            let path = store.path().join(path.strip_prefix(agent.store())?);
            fs::create_dir_all(path.parent().context("a directory")?)?;
            fs::write(path, damage_bytes(bytes, &mut random))?;
        }
        let url = format!("file://{}", store.path().display());
        for (command, args) in COMMANDS {
            let args = [&["fleet", command, "--store", &url], *args].concat();
            let used = witness::run_within_limit("memprof-fleet", &args, USUAL_LIMIT);
            worst = worst.max(used.with_context(|| format!("{command}, round {round}"))?);
        }
    }
    Ok(format!(
        "{} damaged files of a store: {worst} at most",
        rounds * intact.len()
    ))
}

/// Temporary directory of an agent, with its configuration, spool and store.
struct AgentDir(TempDir);

impl AgentDir {
    /// Creates a configuration, and a spool with [`DUMP_COUNT`] dumps.
    fn create() -> Result<Self> {
        let agent = Self(tempfile::tempdir()?);
        let (store, spool) = (agent.store(), agent.path("spool"));
        let store = format!("file://{}", store.display());
        let text = format!("store = {store:?}\nspool = {spool:?}\nbatch = \"0s\"\nservice = []\n");
        fs::write(agent.path("fleet.toml"), text)?;
        fs::create_dir_all(spool.join("dumps"))?;
        (0..DUMP_COUNT).try_for_each(|number| agent.write_dump(number))?;
        Ok(agent)
    }

    /// Returns the path of a file in the agent's directory.
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the directory in which the agent has its store.
    fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Writes the dump of [`dump_json`] with this number to the spool.
    fn write_dump(&self, number: u64) -> Result<()> {
        let path = self.path("spool/dumps").join(format!("{number}.json"));
        Ok(fs::write(path, dump_json(number).to_string())?)
    }

    /// Runs the agent until it has stored the spool's dumps. Fails as [`witness::run_within_limit`] does.
    fn run_until_stored(&self) -> Result<ResourceUse> {
        let config = self.path("fleet.toml").display().to_string();
        witness::run_within_limit(
            "memprof-fleet",
            &["agent", "--once", "--config", &config],
            USUAL_LIMIT,
        )
    }
}

/// Reads all files below a directory. Returns their paths and contents, sorted by path.
fn read_files(directory: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(read_files(&path)?),
            false => found.push((path.clone(), fs::read(&path)?)),
        }
    }
    found.sort();
    Ok(found)
}

/// Returns a copy of a file's bytes with up to eight random changes. Two of three are in the last 600 bytes, the
/// footer, which has the offsets of all other data. `bytes` must not be empty.
fn damage_bytes(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    const FOOTER_BYTES: usize = 600;
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.next_below(8) {
        let range = match random.next_below(3) {
            0 => bytes.len(),
            _ => bytes.len().min(FOOTER_BYTES),
        };
        let index = bytes.len() - 1 - random.next_below(range);
        bytes[index] = match random.next_below(3) {
            0 => random.next_below(256) as u8,
            1 => bytes[index] ^ (1 << random.next_below(8)),
            _ => [0, 1, 0x7f, 0x80, 0xfe, 0xff][random.next_below(6)],
        };
    }
    bytes
}
