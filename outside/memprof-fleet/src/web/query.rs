//! What a request asks: the parameters of its address.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memprof_http::Problem;
use memprof_report::SampleType;
use serde::Deserialize;

use crate::query::{Notes, ProfileQuery};
use crate::store::Store;
use crate::target::Target;
use crate::time::{Instant, parse_instant};

/// How far back a question looks.
const LENGTH: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct QueryParams {
    /// As `-t` takes it.
    target: String,
    /// The end of the time, as `--at` takes it.
    at: Option<String>,
    /// The length of the time before `at`, as `6h`.
    #[serde(rename = "for")]
    length: Option<String>,
    pub(super) build: Option<String>,
    /// A build: every value is what a process of `build` holds more than one of it.
    pub(super) base: Option<String>,
    /// A time: every value is what a process holds more than in the time before that.
    base_at: Option<String>,
    pub(super) format: Option<String>,
    sample_type: Option<String>,
}

impl QueryParams {
    /// The question, about a store.
    pub(super) fn to_query(&self, store: Arc<Store>) -> Result<ProfileQuery, Problem> {
        self.until(store, self.at.as_deref())
    }

    /// The same about the time that it is compared with.
    pub(super) fn base_query(&self, store: Arc<Store>) -> Result<Option<ProfileQuery>, Problem> {
        let before = self.base_at.as_deref();
        before.map(|at| self.until(store, Some(at))).transpose()
    }

    fn until(&self, store: Arc<Store>, at: Option<&str>) -> Result<ProfileQuery, Problem> {
        let Ok(target) = self.target.parse::<Target>();
        let at = at.map(parse_instant).transpose();
        let to = at.map_err(Problem::invalid)?.unwrap_or_else(Instant::now);
        let length = self.length.as_deref().map(humantime::parse_duration);
        let length = length.transpose();
        let length = length.map_err(|error| Problem::invalid(format!("for: {error}")))?;
        Ok(ProfileQuery {
            store,
            from: to.before(length.unwrap_or(LENGTH)),
            to,
            target,
            notes: Notes::Collect(Mutex::default()),
        })
    }

    pub(super) fn sample_type(&self) -> Result<SampleType, Problem> {
        match self.sample_type.as_deref() {
            None | Some("inuse_space") => Ok(SampleType::InuseSpace),
            Some("inuse_objects") => Ok(SampleType::InuseObjects),
            Some(other) => Err(Problem::invalid(format!("unknown sample_type {other:?}"))
                .remedy("valid sample types: inuse_space, inuse_objects")),
        }
    }
}
