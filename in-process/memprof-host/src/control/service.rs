//! Handles the requests of the control protocol.

use std::fs::File;
use std::sync::Arc;

use memprof_own::GuardedFd;
use memprof_plugin_abi::{Failure, escape_controls};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::NO_ID;
use crate::protocol::{
    BASIC_MESSAGE, BasicMessage, HOST, HostInfo, INVALID_PARAMS, INVALID_REQUEST, MESSAGE,
    METHOD_NOT_FOUND, MessageParams, PARSE_ERROR, PLUGINS, PluginInfo, Request, RpcError,
    UNKNOWN_PLUGIN, error_line, result_line, split_message, split_reply,
};
use crate::reply::Reply;
use crate::router::Router;

/// Handler of requests.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) router: Arc<Router>,
    pub(super) info: HostInfo,
}

/// A response: its line, and a file to pass with it.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) line: String,
    pub(super) file: Option<GuardedFd<File>>,
}

impl Service {
    /// Handles a frame, one line with a request of JSON-RPC 2.0, and waits for the plugin if it is a message. The
    /// response to an invalid frame is an error. `None` if the request has no id: a notification, which has no
    /// response.
    pub(super) fn respond_to_frame(&self, frame: &[u8]) -> Option<Response> {
        let request = match parse_request(frame) {
            Ok(request) => request,
            Err(error) => return Some(line_response(error_line(&NO_ID, &error))),
        };
        let id = request.id.clone();
        let response = self.call_method(request).unwrap_or_else(|error| {
            let id = id.as_ref().unwrap_or(&NO_ID);
            line_response(error_line(id, &error))
        });
        id.map(|_| response)
    }

    /// Calls the method that the request names. Fails with `METHOD_NOT_FOUND` if there is none of that name, or with
    /// the error of the method.
    fn call_method(&self, request: Request) -> Result<Response, RpcError> {
        let id = request.id.unwrap_or(NO_ID);
        match request.method.as_str() {
            MESSAGE => self.handle_message(&id, parse_params(request.params)?),
            PLUGINS => Ok(line_response(result_line(&id, &self.plugins()))),
            HOST => Ok(line_response(result_line(&id, &self.info))),
            BASIC_MESSAGE => self.handle_basic_message(&id, &parse_params(request.params)?),
            method => Err(RpcError::new(
                METHOD_NOT_FOUND,
                format!(
                    "no such method: {method:?}; valid methods: {MESSAGE}, {PLUGINS}, {HOST}, \
                     {BASIC_MESSAGE}"
                ),
            )),
        }
    }

    /// Implements the method [`MESSAGE`]: sends the message, waits, and returns the plugin's reply, also if the plugin
    /// refuses the message. If the body must be passed as a file and no file can be created, the reply is the error of
    /// that. Fails if no plugin has the requested name.
    fn handle_message(&self, id: &Value, params: MessageParams) -> Result<Response, RpcError> {
        let reply = self.send_to_plugin(&params.plugin, &params.message, &params.args)?;
        let (mut result, mut body) = split_reply(reply, params.deliver);
        let file = match body_into_file(body.take()) {
            Ok(file) => file,
            Err(error) => {
                let failure = Failure::io("pass the reply as a file", &error);
                (result, _) = split_reply(Reply::failed(&failure), None);
                None
            }
        };
        Ok(Response {
            line: result_line(id, &result),
            file,
        })
    }

    /// Implements the method [`BASIC_MESSAGE`]: sends the message and logs the plugin's reply. The response is a
    /// success even if the plugin refuses the message. Fails if no plugin has the requested name.
    fn handle_basic_message(
        &self,
        id: &Value,
        params: &BasicMessage,
    ) -> Result<Response, RpcError> {
        let (name, args) = split_message(&params.data);
        let reply = self.send_to_plugin(&params.tag, name, args)?;
        let level = if reply.status_code == 0 {
            log::Level::Info
        } else {
            log::Level::Warn
        };
        // Each line of the reply is a log record. Control characters are escaped, so that none can imitate another
        // record.
        let [tag, name] = [&params.tag, name].map(escape_controls);
        for line in reply.into_text().lines() {
            log::log!(level, "{tag} {name}: {}", escape_controls(line));
        }
        Ok(line_response(result_line(id, &"success")))
    }

    /// Sends a message to a plugin and waits for its reply. Fails only if there is no such plugin.
    fn send_to_plugin(&self, plugin: &str, name: &str, args: &str) -> Result<Reply, RpcError> {
        let reply = self.router.message(plugin, name, args);
        reply.map_err(|unknown| RpcError::new(UNKNOWN_PLUGIN, unknown.to_string()))
    }

    /// Returns the result of the method [`PLUGINS`], which includes the plugins that could not be created.
    fn plugins(&self) -> Vec<PluginInfo> {
        let plugins = self.router.plugins();
        plugins.map(|(info, _)| info.clone()).collect()
    }
}

/// Parses a request of JSON-RPC 2.0. Fails with `PARSE_ERROR` for a text that is not JSON, otherwise with
/// `INVALID_REQUEST`.
fn parse_request(frame: &[u8]) -> Result<Request, RpcError> {
    let value: Value = serde_json::from_slice(frame)
        .map_err(|error| RpcError::new(PARSE_ERROR, format!("the line is not JSON: {error}")))?;
    let request: Request = serde_json::from_value(value)
        .map_err(|error| RpcError::new(INVALID_REQUEST, format!("no JSON-RPC request: {error}")))?;
    if request.jsonrpc != "2.0" {
        return Err(RpcError::new(INVALID_REQUEST, "jsonrpc must be \"2.0\""));
    }
    Ok(request)
}

/// Parses the parameters of a method. Fails with `INVALID_PARAMS`.
fn parse_params<T: DeserializeOwned>(value: Value) -> Result<T, RpcError> {
    serde_json::from_value(value).map_err(|error| RpcError::new(INVALID_PARAMS, error.to_string()))
}

/// Converts a body to a file that can be passed. `None` if there is no body. Fails if no file can be created in memory.
fn body_into_file(body: Option<crate::Body>) -> std::io::Result<Option<GuardedFd<File>>> {
    body.map(|body| body.into_file().and_then(GuardedFd::new))
        .transpose()
}

/// Creates a response that is only a line, without a file beside it.
fn line_response(line: String) -> Response {
    Response { line, file: None }
}
