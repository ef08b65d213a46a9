//! `OpenAPI` document of the JSON API: `/api/v1/openapi.json`.

use axum::Json;
use memprof_messages::{
    ArgumentSpec, ArgumentType, DumpList, Effect, EmptyReply, ErrorReply, MessageSpec, ReplyType,
    find_message,
};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::api::{HostRows, forwarded_messages};
use crate::report_parameters::{FORMS, REPORT_PARAMETERS, ReportValue};

/// A route of the API.
struct Route {
    method: &'static str,
    path: String,
    summary: &'static str,
    /// Parameters of the query, or of the body's object.
    parameters: Vec<Parameter>,
    reply: Content,
}

/// Kind of body that a route replies with.
#[derive(Clone, Copy)]
enum Content {
    /// Reply of the plugin to a message.
    Message(ReplyType),
    /// JSON of the server's own.
    Json(fn(&mut SchemaGenerator) -> Schema),
    /// Any other content type.
    Other(&'static str),
}

/// Name and schema of a parameter; the schema has a description.
type Parameter = (&'static str, Value);

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
/// Largest pid of Linux (`proc_sys_kernel(5)`).
const PID_MAX: u32 = 1 << 22;
const ID: &str = "A kept dump's id, from the list";

/// Describes the routes that are not about a single host.
fn global_routes() -> [Route; 3] {
    let hosts = Content::Json(SchemaGenerator::subschema_for::<HostRows>);
    [
        Route::for_get("/api/v1/hosts", "The hosts that run", hosts),
        Route::for_get(
            "/targets",
            "The hosts as scrapers discover them",
            Content::Other(JSON),
        ),
        Route::for_get(
            "/api/v1/openapi.json",
            "This document",
            Content::Other(JSON),
        ),
    ]
}

/// Describes the routes of one host, which are at the root for the only host and below `/host/{pid}` for each.
fn host_routes() -> Vec<Route> {
    let mut routes: Vec<_> = forwarded_messages().map(Route::for_message).collect();
    routes.extend(find_message("dump").map(Route::for_message));
    routes.push(Route::for_get(
        "/api/v1/dumps",
        "The kept heap profiles, newest first",
        Content::Json(SchemaGenerator::subschema_for::<DumpList>),
    ));
    let described = |(name, value, help): (&'static str, ReportValue, &str)| {
        let mut schema = value.schema();
        schema["description"] = help.into();
        (name, schema)
    };
    routes.push(Route {
        parameters: REPORT_PARAMETERS.map(described).to_vec(),
        ..Route::for_get(
            "/api/v1/dumps/{id}",
            "A kept heap profile in any format",
            Content::Other("*/*"),
        )
    });
    routes.push(Route::for_get(
        "/metrics",
        "Figures for Prometheus",
        Content::Other("application/openmetrics-text"),
    ));
    routes
}

impl Route {
    /// Creates the description of a GET route without parameters.
    fn for_get(path: &str, summary: &'static str, reply: Content) -> Self {
        Self {
            method: "get",
            path: path.to_owned(),
            summary,
            parameters: Vec::new(),
            reply,
        }
    }

    /// Describes the route of a message: GET if it is read-only, else POST, with the message's arguments as parameters.
    fn for_message(message: &MessageSpec) -> Self {
        let parameter = |argument| describe_parameter(message.effect, argument);
        Self {
            method: match message.effect {
                Effect::ReadOnly => "get",
                Effect::Mutating => "post",
            },
            parameters: message.arguments.iter().map(parameter).collect(),
            ..Self::for_get(
                &format!("/api/v1/{}", message.name),
                message.help,
                Content::Message(message.reply),
            )
        }
    }
}

impl Content {
    /// Returns the `OpenAPI` object `content`: each media type of the reply, with its schema if it has one. Adds the
    /// types of the schema to `types`.
    fn to_openapi(self, types: &mut SchemaGenerator) -> Value {
        let json = |schema: Schema| json!({ JSON: { "schema": schema } });
        match self {
            Self::Json(schema) => json(schema(types)),
            Self::Other(content_type) => json!({ content_type: {} }),
            Self::Message(reply) => {
                let mut content = reply.schema(types).map_or_else(|| json!({}), json);
                // With keep=off or format=text, the reply is no JSON.
                if matches!(
                    reply,
                    ReplyType::DumpReport | ReplyType::Stats | ReplyType::Profile
                ) {
                    content[TEXT] = json!({});
                }
                content
            }
        }
    }
}

/// Describes an argument of a message as a parameter of `OpenAPI`: its name, and its schema with help text and default.
/// Messages that change something (`effect`) take the argument from a JSON body, whose schema also allows `true` for
/// `on` and `false` for `off`.
fn describe_parameter(effect: Effect, argument: &ArgumentSpec) -> Parameter {
    let mut schema = match argument.values {
        // JSON has booleans for these values.
        ArgumentType::OneOf(["on", "off"]) if effect == Effect::Mutating => {
            json!({ "enum": ["on", "off", true, false] })
        }
        ArgumentType::OneOf(words) | ArgumentType::NamedOneOf(_, words) if !words.is_empty() => {
            json!({ "type": "string", "enum": words })
        }
        ArgumentType::Integer { min, max, .. } => {
            json!({ "type": "integer", "minimum": min, "maximum": max.unwrap_or(u32::MAX) })
        }
        ArgumentType::OneOf(examples)
        | ArgumentType::NamedOneOf(_, examples)
        | ArgumentType::Examples(examples) => {
            json!({ "type": "string", "examples": examples })
        }
    };
    let form = FORMS.iter().find(|(key, _)| *key == argument.key);
    if let Some((key, form)) = form.filter(|_| schema["type"] == "string") {
        schema["pattern"] = (*form).into();
        // Examples without J, which contradicts format=text.
        if *key == "opts" {
            schema["examples"] = json!(["gmdablxeh", "g"]);
        }
    }
    // JSON has a boolean for `off`.
    let has_off = argument.values.completions().contains(&"off");
    if effect == Effect::Mutating && has_off && schema["type"] == "string" {
        schema = json!({ "anyOf": [schema, { "const": false }] });
    }
    schema["description"] = argument.help.into();
    // An HTTP client reads the reply, so statistics are not written to the host's log.
    let default = match (effect, argument.key) {
        (Effect::ReadOnly, "log") => Some("off"),
        _ => argument.default,
    };
    if let Some(default) = default {
        let number = || {
            default
                .parse::<u32>()
                .ok()
                .filter(|_| schema["type"] == "integer")
        };
        schema["default"] = number().map_or(default.into(), Value::from);
    }
    (argument.key, schema)
}

/// Serves `GET /api/v1/openapi.json`: the global routes and, both at the root and below `/host/{pid}`, the routes of a
/// host, with the schemas of their replies.
pub(crate) async fn serve_openapi_document() -> Json<Value> {
    let mut types = SchemaSettings::draft2020_12()
        .for_serialize()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let error = types.subschema_for::<ErrorReply<EmptyReply>>();
    let mut paths = Map::new();
    let host_routes = host_routes();
    for route in global_routes().iter().chain(&host_routes) {
        let operation =
            json!({ route.method: describe_operation(route, false, &error, &mut types) });
        paths.insert(route.path.clone(), operation);
    }
    for route in &host_routes {
        let operation =
            json!({ route.method: describe_operation(route, true, &error, &mut types) });
        paths.insert(format!("/host/{{pid}}{}", route.path), operation);
    }
    Json(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "memprof",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Heap profiles of running processes. The replies to messages are those \
                            of the plugin memory_profile, as they are: the schemas are those of \
                            this version, and a later one may reply more fields and words.",
        },
        "paths": paths,
        "components": {
            "schemas": types.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "token": [] }],
    }))
}

/// Describes a route as an `OpenAPI` operation, at the root or, with `below_host`, below `/host/{pid}`. `error` is the
/// schema of an error reply. Adds the types of the route's reply to `types`.
fn describe_operation(
    route: &Route,
    below_host: bool,
    error: &Schema,
    types: &mut SchemaGenerator,
) -> Value {
    let in_path = |name: &str, help: &str| {
        json!({
            "name": name, "in": "path", "required": true, "description": help,
            "schema": match name {
                "pid" => json!({ "type": "integer", "minimum": 1, "maximum": PID_MAX }),
                _ => json!({ "type": "string" }),
            },
        })
    };
    let mut parameters = Vec::new();
    if below_host {
        parameters.push(in_path("pid", "The host's pid"));
    }
    if route.path.contains("{id}") {
        parameters.push(in_path("id", ID));
    }
    let mut operation = json!({
        "summary": route.summary,
        "responses": {
            "200": { "description": "Success", "content": route.reply.to_openapi(types) },
            "default": {
                "description": "Error: `error.kind`, `error.message`, `error.remedy`. 400: invalid \
                                arguments; 401: the token is missing; 403: a page of another origin; 404: \
                                unknown id or pid; 409: profiling is off, nothing to show, or not supported \
                                by this process; 421: unknown host name; 429: a dump is running; 503: the \
                                host is gone, or the server is overloaded. With 429 and 503, Retry-After \
                                says when to try again",
                "content": { JSON: { "schema": error } },
            },
        },
    });
    if route.method == "post" && !route.parameters.is_empty() {
        let schema = body_schema(route);
        let is_required = schema.get("required").is_some();
        operation["requestBody"] =
            json!({ "required": is_required, "content": { JSON: { "schema": schema } } });
    } else {
        parameters.extend(route.parameters.iter().map(|(name, schema)| {
            json!({
                "name": name, "in": "query", "description": schema["description"], "schema": schema,
            })
        }));
    }
    operation["parameters"] = parameters.into();
    operation
}

/// Returns the schema of a JSON request body with the route's parameters as properties. The schema excludes
/// combinations of parameters that contradict each other.
fn body_schema(route: &Route) -> Value {
    let properties = route.parameters.iter().cloned();
    let properties: Map<String, Value> = properties
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    let mut schema =
        json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let has = |name: &str| route.parameters.iter().any(|(known, _)| *known == name);
    if has("sample_interval") && has("lg_sample") {
        schema["not"] = json!({ "required": ["sample_interval", "lg_sample"] });
    }
    // The message gdump: `files` and `for` limit dumps that are on, so they contradict `off`.
    if has("state") && has("files") {
        let off = json!({ "properties": { "state": { "enum": ["off", false] } } });
        let limits = ["files", "for"].map(|name| json!({ "required": [name] }));
        schema["not"] = json!({ "allOf": [off, { "anyOf": limits }] });
        schema["required"] = json!(["state"]);
    }
    schema
}

#[cfg(test)]
mod tests {
    use memprof_messages::MESSAGES;
    use memprof_report::compile_pattern;

    use super::*;

    #[test]
    fn examples_of_arguments_have_their_form() {
        let mut checked = 0;
        for argument in MESSAGES.iter().flat_map(|message| message.arguments) {
            let (key, schema) = describe_parameter(Effect::ReadOnly, argument);
            let Some(form) = schema["pattern"].as_str() else {
                let examples = schema["examples"].as_array();
                assert!(examples.is_none_or(Vec::is_empty), "{key} has no form");
                continue;
            };
            // Rust's regular expressions have no look-ahead, which those of OpenAPI (ECMA-262) have.
            let form = form.replacen(r"(?!.*(.).*\1)", "", 1);
            let form = compile_pattern(&form).unwrap();
            for example in schema["examples"].as_array().unwrap() {
                assert!(form.is_match(example.as_str().unwrap()), "{key}={example}");
                checked += 1;
            }
        }
        assert!(checked > 10, "{checked}");
    }
}
