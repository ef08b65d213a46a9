//! Query parameters of a request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memprof_http::Problem;
use memprof_report::SampleType;
use serde::Deserialize;

use crate::query::{Notes, ProfileQuery};
use crate::store::ProfileStore;
use crate::target::Target;
use crate::time::{Instant, parse_instant};

/// Default length of the time window.
const DEFAULT_LENGTH: Duration = Duration::from_secs(3600);

/// Parameters of a query. Unknown ones are errors.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct QueryParams {
    /// Processes, as `--target` takes them.
    target: String,
    /// End of the time window, as `--at` takes it.
    at: Option<String>,
    /// Length of the time window before `at`, as `6h`.
    #[serde(rename = "for")]
    length: Option<String>,
    pub(super) build: Option<String>,
    /// Build to compare with: values are differences between a process of `build` and one of this build.
    pub(super) base: Option<String>,
    /// End of the time window to compare with: values are differences between a process in the window and one
    /// in this window.
    base_at: Option<String>,
    pub(super) format: Option<String>,
    sample_type: Option<String>,
}

impl QueryParams {
    /// Returns the query of the requested time window on a store. The window ends at the parameter `at`, by default
    /// now. Fails if a parameter is malformed.
    pub(super) fn to_query(&self, store: Arc<ProfileStore>) -> Result<ProfileQuery, Problem> {
        self.query_until(store, self.at.as_deref())
    }

    /// Returns the query of the time window to compare with, which ends at the parameter `base_at`. `None` if there is
    /// no such parameter. Fails if a parameter is malformed.
    pub(super) fn base_query(
        &self,
        store: Arc<ProfileStore>,
    ) -> Result<Option<ProfileQuery>, Problem> {
        let base_end = self.base_at.as_deref();
        base_end
            .map(|end| self.query_until(store, Some(end)))
            .transpose()
    }

    /// Returns the query of the time window that ends at `end`, by default now. Its length is the parameter `for`, by
    /// default [`DEFAULT_LENGTH`]. Fails if a parameter is malformed.
    fn query_until(
        &self,
        store: Arc<ProfileStore>,
        end: Option<&str>,
    ) -> Result<ProfileQuery, Problem> {
        let Ok(target) = self.target.parse::<Target>();
        let end = end.map(parse_instant).transpose();
        let to = end.map_err(Problem::invalid)?.unwrap_or_else(Instant::now);
        let length = self.length.as_deref().map(humantime::parse_duration);
        let length = length.transpose();
        let length = length.map_err(|error| Problem::invalid(format!("for: {error}")))?;
        Ok(ProfileQuery {
            store,
            from: to.minus(length.unwrap_or(DEFAULT_LENGTH)),
            to,
            target,
            notes: Notes::Collect(Mutex::default()),
        })
    }

    /// Returns the requested sample type, by default bytes in use. Fails for every type but bytes and objects in use.
    pub(super) fn sample_type(&self) -> Result<SampleType, Problem> {
        match self.sample_type.as_deref() {
            None | Some("inuse_space") => Ok(SampleType::InuseSpace),
            Some("inuse_objects") => Ok(SampleType::InuseObjects),
            Some(other) => Err(Problem::invalid(format!("unknown sample_type {other:?}"))
                .remedy("valid sample types: inuse_space, inuse_objects")),
        }
    }
}
