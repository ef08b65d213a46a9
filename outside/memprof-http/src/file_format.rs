//! File formats in which a dump is served.

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use memprof_report::{FLAMEGRAPH_POLICY, Format, POLICY};

use crate::headers;
use crate::problem::{Problem, Result};

/// A file format by its name in a query.
#[derive(Clone, Copy, Debug)]
pub struct FileFormat {
    /// Method by which a file is created.
    pub source: FormatSource,
    content_type: &'static str,
    /// Extension of the file's name.
    extension: &'static str,
}

/// Method by which a file of a format is created.
#[derive(Clone, Copy, Debug)]
pub enum FormatSource {
    /// Copied as the allocator wrote it, without what other tools cannot read.
    AsStored,
    /// Rendered by memprof-report.
    Rendered(Format),
}

/// Names of all formats.
pub(crate) const FORMATS: &[&str] = &[
    "heap",
    "pprof",
    "collapsed",
    "flamegraph",
    "html",
    "view",
    "text",
    "tree",
    "jeprof",
    "json",
    "svg",
    "dot",
];

const TEXT: &str = "text/plain; charset=utf-8";
const SVG: &str = "image/svg+xml";

impl FileFormat {
    /// Returns the format that a query names, such as `pprof` or `flamegraph`.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn from_name(name: &str) -> Result<Self> {
        use FormatSource::{AsStored, Rendered};
        let (source, content_type, extension) = match name {
            "heap" => (AsStored, "application/x-jemalloc-heap-profile", "heap"),
            "pprof" => (Rendered(Format::Pprof), "application/octet-stream", "pb.gz"),
            "collapsed" => (Rendered(Format::Collapsed), TEXT, "collapsed.txt"),
            "flamegraph" => (Rendered(Format::Flamegraph), SVG, "flamegraph.svg"),
            "html" => (Rendered(Format::Html), "text/html; charset=utf-8", "html"),
            "view" => (Rendered(Format::View), "application/json", "view.json"),
            "text" => (Rendered(Format::Text), TEXT, "txt"),
            "tree" => (Rendered(Format::Tree), TEXT, "tree.txt"),
            "jeprof" => (Rendered(Format::Jeprof), TEXT, "jeprof"),
            "json" => (Rendered(Format::Json), "application/json", "json"),
            "svg" => (Rendered(Format::Svg), SVG, "svg"),
            "dot" => (
                Rendered(Format::Dot),
                "text/vnd.graphviz; charset=utf-8",
                "dot",
            ),
            other => {
                return Err(Problem::invalid(format!("unknown format {other:?}"))
                    .remedy(format!("valid formats: {}", FORMATS.join(", "))));
            }
        };
        Ok(Self {
            source,
            content_type,
            extension,
        })
    }

    /// Returns an HTTP response that shows `bytes` as a file. `name` is the file's name without its extension, and goes
    /// into a quoted header value as it is.
    pub fn file_response(&self, name: &str, bytes: Bytes) -> Response {
        self.streamed_file_response(self.content_type.to_owned(), name, bytes.into())
    }

    /// Like [`file_response`](Self::file_response), but with another content type and a streamed body.
    pub(crate) fn streamed_file_response(
        &self,
        content_type: String,
        name: &str,
        body: Body,
    ) -> Response {
        let file = format!("inline; filename=\"{name}.{}\"", self.extension);
        let headers = [
            (CONTENT_TYPE, content_type),
            (CONTENT_DISPOSITION, file),
            (CONTENT_SECURITY_POLICY, self.content_security_policy()),
        ];
        (headers, body).into_response()
    }

    /// Returns the `Content-Security-Policy` of a reply in this format, which may contain untrusted names.
    fn content_security_policy(&self) -> String {
        headers::untrusted_document_policy(match self.source {
            FormatSource::Rendered(Format::Html) => &POLICY,
            FormatSource::Rendered(Format::Flamegraph) => &FLAMEGRAPH_POLICY,
            FormatSource::Rendered(_) | FormatSource::AsStored => {
                "default-src 'none'; style-src 'unsafe-inline'"
            }
        })
    }
}
