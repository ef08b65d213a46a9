//! `/etc/memprof/fleet.toml`: where the profiles are, and of what they are taken.

use std::collections::BTreeMap;
use std::env;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;

use crate::args::{BusArgs, StoreArgs};
use crate::output::{USAGE, coded};
use crate::policy::ServiceRule;
use crate::units::{duration, size};

const DEFAULT: &str = "/etc/memprof/fleet.toml";

/// The configuration. Unknown keys are errors.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The store's address.
    pub(crate) store: String,
    /// The directory in which profiles wait for the store.
    pub(crate) spool: PathBuf,
    /// The most bytes that wait there: above that no profile is taken.
    #[serde(deserialize_with = "size")]
    pub(crate) spool_limit: u64,
    /// How long profiles are kept in the store.
    #[serde(deserialize_with = "duration")]
    pub(crate) keep: Duration,
    /// The longest time that a profile waits for others, with which it shares a file.
    #[serde(deserialize_with = "duration")]
    pub(crate) batch: Duration,
    /// How agents are reached.
    pub(crate) nats: Nats,
    /// Where scrapers reach this machine's hosts.
    pub(crate) http: Http,
    /// What each profile of this machine is marked with.
    pub(crate) labels: BTreeMap<String, String>,
    /// Which hosts; the first rule that fits a service counts.
    pub(crate) service: Vec<ServiceRule>,
}

impl Default for Config {
    fn default() -> Self {
        let state = state();
        Self {
            store: format!("file://{}", state.join("fleet").display()),
            spool: state.join("fleet-spool"),
            spool_limit: 1 << 30,
            keep: Duration::from_secs(14 * 24 * 3600),
            batch: Duration::from_secs(600),
            nats: Nats::default(),
            http: Http::default(),
            labels: BTreeMap::new(),
            service: vec![ServiceRule::default()],
        }
    }
}

impl Config {
    /// The file's configuration, and what the command line says of it.
    pub(crate) fn read(at: &StoreArgs) -> anyhow::Result<Self> {
        let path = at.config.as_deref().unwrap_or(Path::new(DEFAULT));
        let mut config = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && at.config.is_none() => {
                Self::default()
            }
            text => {
                let text = text.with_context(|| format!("failed to read {}", path.display()))?;
                let wrong = |error| coded(USAGE, format!("{}: {error}", path.display()));
                toml::from_str(&text).map_err(|error| wrong(error.to_string()))?
            }
        };
        let environment = || env::var("MEMPROF_STORE").ok();
        if let Some(store) = at.store.clone().or_else(environment) {
            config.store = store;
        }
        if let Ok(nats) = env::var("MEMPROF_NATS") {
            config.nats.url = Some(nats);
        }
        Ok(config)
    }

    /// With what the command line says of the bus.
    pub(crate) fn with(mut self, bus: &BusArgs) -> Self {
        let BusArgs {
            nats,
            nkey_file,
            ca_file,
        } = bus.clone();
        self.nats = Nats {
            url: nats.or(self.nats.url),
            nkey_file: nkey_file.or(self.nats.nkey_file),
            ca_file: ca_file.or(self.nats.ca_file),
        };
        self
    }
}

/// `[nats]`: the server over which agents are asked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Nats {
    /// Its address. Without one there is no bus.
    pub(crate) url: Option<String>,
    /// The seed of a user of the server.
    pub(crate) nkey_file: Option<PathBuf>,
    /// The certificates that sign the server's; the system's where it is not set.
    pub(crate) ca_file: Option<PathBuf>,
}

impl Nats {
    /// The address, which must be one.
    pub(crate) fn url(&self) -> anyhow::Result<&str> {
        let missing = "no NATS server is configured: give --nats URL, or set `url` in [nats] of the configuration";
        let url = self.url.as_deref().ok_or_else(|| coded(USAGE, missing))?;
        match url.split_once("://") {
            Some(("nats" | "tls", _)) => Ok(url),
            _ => Err(coded(
                USAGE,
                format!("{url:?} is not a NATS server: give nats://HOST:4222 or tls://HOST:4222"),
            )),
        }
    }
}

/// `[http]`: where an agent serves metrics and profiles.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Http {
    /// The address. Without one nothing is served.
    pub(crate) listen: Option<SocketAddr>,
    /// Whoever asks must bring this token; without it, only this user and root may ask.
    pub(crate) token_file: Option<PathBuf>,
    /// Names by which clients call the server, besides localhost.
    pub(crate) allow_host: Vec<String>,
}

/// Where this user's programs keep what has to last.
fn state() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    match (set("XDG_STATE_HOME"), set("HOME")) {
        (Some(state), _) => PathBuf::from(state).join("memprof"),
        (None, Some(home)) if !rustix::process::geteuid().is_root() => {
            PathBuf::from(home).join(".local/state/memprof")
        }
        _ => PathBuf::from("/var/lib/memprof"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let check = |text: &str, expected: &str| {
            let error = toml::from_str::<Config>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("stor = \"x\"", "unknown field `stor`");
        check("keep = \"14 moons\"", "\"14 moons\" is not a duration");
        check("spool_limit = \"4\"", "\"4\" is not a size");
        check("[[service]]\nshare = \"120%\"", "not a share");
        check("[[service]]\nperiod = \"0s\"", "from 1s to 30d");
        check("[[service]]\nnames = \"x\"", "unknown field `names`");
    }

    #[test]
    fn every_key_is_in_the_reference() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../CONFIGURATION.md");
        let reference = std::fs::read_to_string(file).unwrap();
        let section = reference.split("## The fleet's file").nth(1).unwrap();
        let example = section.split("```").nth(1).unwrap();
        let written: toml::Table = toml::from_str(example.trim_start_matches("toml")).unwrap();
        toml::from_str::<Config>(example.trim_start_matches("toml")).unwrap();
        // A key that does not exist is refused with all that do.
        let known = |text: &str| {
            let error = toml::from_str::<Config>(text).unwrap_err().to_string();
            let listed = error.split("expected ").nth(1).unwrap();
            let keys = listed.split('`').skip(1).step_by(2).map(str::to_owned);
            let mut keys: Vec<_> = keys.collect();
            keys.sort();
            keys
        };
        let keys = |table: &toml::Table| {
            let mut keys: Vec<_> = table.keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&written), known("nonsense = 1"));
        let nats = written["nats"].as_table().unwrap();
        assert_eq!(keys(nats), known("[nats]\nnonsense = 1"));
        let http = written["http"].as_table().unwrap();
        assert_eq!(keys(http), known("[http]\nnonsense = 1"));
        let service = written["service"][0].as_table().unwrap();
        assert_eq!(keys(service), known("[[service]]\nnonsense = 1"));
    }
}
