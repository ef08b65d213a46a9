//! What is asked for.

use std::time::Duration;

use crate::code_origin::OriginRules;
use crate::filter::Filter;
use crate::fold::Granularity;
use crate::label::Label;
use crate::limits::Limits;
use crate::profile::SampleType;

/// What a report shows, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The output's format.
    pub format: Format,
    /// Which value; pprof and JSON have all of them.
    pub sample_type: SampleType,
    /// Whether functions are split into lines.
    pub granularity: Granularity,
    /// Which stacks.
    pub filter: Filter,
    /// Tables tell how old each function's memory is.
    pub ages: bool,
    /// Only what was allocated at least so long before the profile was taken.
    pub older: Option<Duration>,
    /// Only what was allocated under this label.
    pub label: Option<Label>,
    /// The rows of a table are the values of this label.
    pub by: Option<String>,
    /// Tables are sorted by cumulative value.
    pub by_cum: bool,
    /// Rows of a table, nodes of a tree or a graph; the format's default when there is none. The formats that
    /// hold every stack refuse it.
    pub top: Option<usize>,
    /// Scale the base to the profile's total, to see what changed in proportion.
    pub normalize: bool,
    /// Read truncated dumps. Names are forced in [`Sources`](crate::Sources).
    pub force: bool,
    /// When the profile was taken, in nanoseconds of Unix time, for pprof. It comes in as an argument, so
    /// that equal inputs give equal outputs.
    pub time_nanos: i64,
    /// Whose functions the rows are.
    pub blame: OriginRules,
    /// What is refused.
    pub limits: Limits,
}

/// What a report is written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A table of functions.
    #[default]
    Text,
    /// The call tree.
    Tree,
    /// Callers and callees of the functions in focus.
    Peek,
    /// A line per stack: `root;…;leaf value`.
    Collapsed,
    /// An SVG with zoom and search.
    Flamegraph,
    /// A page with flamegraph, table, tree and search, which needs no other file.
    Html,
    /// The data of that page, as JSON for [`VIEWER`](crate::VIEWER).
    View,
    /// The call graph for graphviz.
    Dot,
    /// The call graph, drawn by graphviz.
    Svg,
    /// `profile.proto` in gzip.
    Pprof,
    /// A symbolized heap dump, which jeprof opens without the binary.
    Jeprof,
    /// Totals, mappings, functions.
    Json,
}

impl Format {
    /// Whether it is for other tools: every stack as it was sampled, and nothing folded or left out.
    pub(crate) fn is_for_tools(self) -> bool {
        matches!(self, Self::Collapsed | Self::Pprof | Self::Jeprof)
    }
}
