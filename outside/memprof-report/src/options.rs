//! Options of a report.

use std::time::Duration;

use crate::code_origin::OriginRules;
use crate::filter::Filter;
use crate::fold::Granularity;
use crate::label::Label;
use crate::limits::Limits;
use crate::managed::StackFrames;
use crate::profile::SampleType;

/// Selects what a report shows, and in which format.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Output format.
    pub format: Format,
    /// Value to report; pprof and JSON contain all of them.
    pub sample_type: SampleType,
    /// Name of a pprof profile's sample type to report in place of `sample_type`.
    pub sample_type_name: Option<String>,
    /// Splits functions into lines, or not.
    pub granularity: Granularity,
    /// Stacks to include.
    pub filter: Filter,
    /// Adds the ages of each function's memory to tables.
    pub ages: bool,
    /// Includes only memory that was allocated at least this long before the profile was taken.
    pub older: Option<Duration>,
    /// Includes only memory that was allocated under this label.
    pub label: Option<Label>,
    /// Label key whose values become the rows of a table.
    pub by: Option<String>,
    /// Sorts tables by cumulative value.
    pub by_cum: bool,
    /// Most rows of a table, or nodes of a tree or graph. `None`: the format's default. Formats that contain every
    /// stack reject it.
    pub top: Option<usize>,
    /// Scales the base to the profile's total, to show changes in proportion.
    pub normalize: bool,
    /// Reads truncated dumps too. [`Sources`](crate::Sources) has its own option for build ids that differ.
    pub force: bool,
    /// Time of the profile for pprof, in nanoseconds since 1970. An argument, so that equal inputs give equal
    /// outputs.
    pub time_nanos: i64,
    /// Like `time_nanos`, of the base: the difference of both is pprof's duration. 0 if it is unknown.
    pub base_time_nanos: i64,
    /// Decides which functions are rows of their own.
    pub origin_rules: OriginRules,
    /// Writes, in place of the report, why functions with this name are the program's own or not.
    pub why: Option<String>,
    /// Frames of stacks in which an interpreted program runs.
    pub stack_frames: StackFrames,
    /// Notes of the caller, which the report shows before its own.
    pub notes: Vec<String>,
    /// Limits on the input's size.
    pub limits: Limits,
}

/// Output format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A table of functions.
    #[default]
    Text,
    /// The call tree.
    Tree,
    /// Callers and callees of the functions that `focus` matches.
    Peek,
    /// One line per stack: `root;…;leaf value`.
    Collapsed,
    /// A flamegraph as SVG with zoom and search.
    Flamegraph,
    /// A self-contained page with flamegraph, table, tree and search.
    Html,
    /// The data of that page, as JSON for [`VIEWER`](crate::VIEWER).
    View,
    /// The call graph for graphviz.
    Dot,
    /// The call graph, drawn by graphviz.
    Svg,
    /// `profile.proto`, compressed with gzip.
    Pprof,
    /// A symbolized heap dump, which jeprof opens without the binary.
    Jeprof,
    /// Totals, mappings and functions as JSON.
    Json,
}

impl Options {
    /// Frames of stacks that the report shows: native ones in jeprof's format, else those that `stack_frames` selects.
    /// With `flat`, the report shows all frames if `stack_frames` is [`StackFrames::Program`].
    pub(crate) fn shown_frames(&self) -> StackFrames {
        match (self.format, self.stack_frames) {
            // jeprof looks addresses up in files.
            (Format::Jeprof, _) => StackFrames::Native,
            (_, StackFrames::Program) if self.origin_rules.flat => StackFrames::All,
            (_, frames) => frames,
        }
    }

    /// Name of the sample type to report: `sample_type_name` if it is set, else that of `sample_type`.
    pub(crate) fn type_name(&self) -> &str {
        let name = self.sample_type_name.as_deref();
        name.unwrap_or_else(|| self.sample_type.name())
    }
}

impl Format {
    /// Returns whether the format is for other tools: it then has every stack as it was sampled, not filtered by code
    /// origin, and with memprof's own stacks.
    pub(crate) fn is_for_tools(self) -> bool {
        matches!(self, Self::Collapsed | Self::Pprof | Self::Jeprof)
    }
}
