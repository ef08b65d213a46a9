//! The formats in which a kept dump is had.

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use memprof_report::{FLAMEGRAPH_POLICY, Format, POLICY};

use crate::headers;
use crate::problem::{Problem, Result};

/// A format, as a query names it.
#[derive(Clone, Copy, Debug)]
pub struct FileFormat {
    /// How it is made.
    pub made: FormatSource,
    content_type: &'static str,
    /// Of a file that it is saved to.
    extension: &'static str,
}

/// How a file of a format is made.
#[derive(Clone, Copy, Debug)]
pub enum FormatSource {
    /// As the allocator wrote it, as far as other tools can read that.
    AsStored,
    /// By memprof-report.
    Rendered(Format),
}

const TEXT: &str = "text/plain; charset=utf-8";
const SVG: &str = "image/svg+xml";

impl FileFormat {
    /// The format of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn of(name: &str) -> Result<Self> {
        use FormatSource::{AsStored, Rendered};
        let (made, content_type, extension) = match name {
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
                return Err(Problem::invalid(format!("unknown format {other:?}")).remedy(
                    "valid formats: heap, pprof, collapsed, flamegraph, html, view, text, tree, \
                     jeprof, json, svg, dot",
                ));
            }
        };
        Ok(Self {
            made,
            content_type,
            extension,
        })
    }

    /// The reply with the file of that name, without its extension.
    pub fn reply(&self, name: &str, bytes: Bytes) -> Response {
        self.reply_as(self.content_type.to_owned(), name, bytes.into())
    }

    /// The same of what has a content type of its own.
    pub(crate) fn reply_as(&self, content_type: String, name: &str, body: Body) -> Response {
        let file = format!("inline; filename=\"{name}.{}\"", self.extension);
        let headers = [
            (CONTENT_TYPE, content_type),
            (CONTENT_DISPOSITION, file),
            (CONTENT_SECURITY_POLICY, self.policy()),
        ];
        (headers, body).into_response()
    }

    fn policy(&self) -> String {
        headers::untrusted_document_policy(match self.made {
            FormatSource::Rendered(Format::Html) => &POLICY,
            FormatSource::Rendered(Format::Flamegraph) => &FLAMEGRAPH_POLICY,
            FormatSource::Rendered(_) | FormatSource::AsStored => {
                "default-src 'none'; style-src 'unsafe-inline'"
            }
        })
    }
}
