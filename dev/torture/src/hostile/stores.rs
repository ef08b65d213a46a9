//! Files of a store, and of a spool, that are not what an agent wrote.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::witness::{self, ResourceUse, USUAL};
use crate::SuiteLength;
use crate::bombs::Random;
use crate::fleet::dump_json;

/// The day of the dumps.
const DAY: &[&str] = &["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
const COMMANDS: &[(&str, &[&str])] = &[
    ("doctor", &[]),
    ("top", DAY),
    ("growth", DAY),
    ("compact", &[]),
];
const DUMPS: u64 = 5;

pub(super) fn run(length: SuiteLength) -> Result<String> {
    let agent = Agent::new()?;
    let mut worst = agent.once().context("an agent")?;
    let whole = files(&agent.store())?;
    ensure!(!whole.is_empty(), "no file in the store");

    // Another's object does not hold back what waits behind it.
    let foreign = agent.path("spool/outbox").join("!samples!foreign.parquet");
    fs::write(&foreign, "PAR1 is not all")?;
    agent.put(DUMPS)?;
    worst = worst.worst(
        agent
            .once()
            .context("an agent with an object of another's")?,
    );
    let count = files(&agent.store())?.len();
    ensure!(count > whole.len(), "nothing more is in the store");

    let rounds = length.pick(5, 500);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for round in 0..rounds {
        let store = tempfile::tempdir()?;
        for (path, bytes) in &whole {
            let path = store.path().join(path.strip_prefix(agent.store())?);
            fs::create_dir_all(path.parent().context("a directory")?)?;
            fs::write(path, damaged(bytes, &mut random))?;
        }
        let url = format!("file://{}", store.path().display());
        for (command, words) in COMMANDS {
            let words = [&["fleet", command, "--store", &url], *words].concat();
            let taken = witness::run("memprof-fleet", &words, USUAL);
            worst = worst.worst(taken.with_context(|| format!("{command}, round {round}"))?);
        }
    }
    Ok(format!(
        "{} damaged files of a store: {worst} at most",
        rounds * whole.len()
    ))
}

/// An agent's directory.
struct Agent(TempDir);

impl Agent {
    fn new() -> Result<Self> {
        let agent = Self(tempfile::tempdir()?);
        let (store, spool) = (agent.store(), agent.path("spool"));
        let store = format!("file://{}", store.display());
        let text = format!("store = {store:?}\nspool = {spool:?}\nbatch = \"0s\"\nservice = []\n");
        fs::write(agent.path("fleet.toml"), text)?;
        fs::create_dir_all(spool.join("dumps"))?;
        (0..DUMPS).try_for_each(|number| agent.put(number))?;
        Ok(agent)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn store(&self) -> PathBuf {
        self.path("store")
    }

    fn put(&self, number: u64) -> Result<()> {
        let path = self.path("spool/dumps").join(format!("{number}.json"));
        Ok(fs::write(path, dump_json(number).to_string())?)
    }

    fn once(&self) -> Result<ResourceUse> {
        let config = self.path("fleet.toml").display().to_string();
        witness::run(
            "memprof-fleet",
            &["agent", "--once", "--config", &config],
            USUAL,
        )
    }
}

/// All below a directory, with their bytes.
fn files(directory: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(files(&path)?),
            false => found.push((path.clone(), fs::read(&path)?)),
        }
    }
    found.sort();
    Ok(found)
}

/// The same with a few other bytes, most of them in the footer, which says where all else lies.
fn damaged(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    const FOOTER: usize = 600;
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.below(8) {
        let far = match random.below(3) {
            0 => bytes.len(),
            _ => bytes.len().min(FOOTER),
        };
        let at = bytes.len() - 1 - random.below(far);
        bytes[at] = match random.below(3) {
            0 => random.below(256) as u8,
            1 => bytes[at] ^ (1 << random.below(8)),
            _ => [0, 1, 0x7f, 0x80, 0xfe, 0xff][random.below(6)],
        };
    }
    bytes
}
