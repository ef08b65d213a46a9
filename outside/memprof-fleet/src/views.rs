//! `memprof fleet views`: SQL views of the store's tables.

use std::process::ExitCode;

use memprof_output::{USAGE, print, with_exit_code};

use crate::args::Engine;
use crate::config::Config;
use crate::schema::{INCOMING_FOLDER, SOURCES_KEY, Table};
use crate::store::ProfileStore;

/// Runs `memprof fleet views`: prints SQL that creates a view for each table of the store. Fails if the store cannot be
/// read, or its path has a character that the engine cannot read (exit code 2).
pub(crate) fn run(engine: Engine, config: &Config) -> anyhow::Result<ExitCode> {
    let store = ProfileStore::open(&config.store)?;
    let root = engine.pattern_root(store.url())?;
    let mut views = Vec::new();
    for table in Table::ALL {
        let has = |prefix: &str| anyhow::Ok(!store.list(prefix)?.is_empty());
        let has_merged = has(table.name())?;
        let has_incoming = has(&format!("{INCOMING_FOLDER}/{}", table.name()))?;
        views.push(view_sql(engine, &root, table, has_merged, has_incoming));
    }
    print(&views.join("\n"));
    Ok(ExitCode::SUCCESS)
}

/// Returns the SQL of a table's view; `root` is the store's path as the engine reads it. `has_merged` and
/// `has_incoming` say whether the table has merged files and files of agents: DuckDB refuses a pattern that matches no
/// file, so the view reads only those that exist. A view for `ClickHouse` reads merged files only.
fn view_sql(
    engine: Engine,
    root: &str,
    table: Table,
    has_merged: bool,
    has_incoming: bool,
) -> String {
    let name = table.name();
    let files = engine.sql_literal(&format!("{root}/{name}/date=*/hour=*/*.parquet"));
    let incoming = engine.sql_literal(&format!(
        "{root}/{INCOMING_FOLDER}/{name}/date=*/hour=*/*.parquet"
    ));
    let distinct = |rows: String| match table {
        // Agents may write a stack twice: a join would count its samples twice.
        Table::Stacks => format!(
            "SELECT stack_id, any_value(leaf) AS leaf, any_value(function) AS function, \
             any_value(frames) AS frames, any_value(modules) AS modules FROM ({rows}) GROUP BY stack_id"
        ),
        Table::Samples | Table::Profiles => rows,
    };
    match engine {
        Engine::Duckdb => {
            let read = |files: &str| {
                format!(
                    "read_parquet({files}, hive_partitioning = true, union_by_name = true, \
                     filename = true, hive_types = {{'date': VARCHAR, 'hour': VARCHAR}})"
                )
            };
            // Copies of files do not count: a merged one is known by its sources, an agent's by its name, the hash of
            // its bytes.
            let merged = format!(
                "SELECT * FROM {} WHERE filename IN (SELECT min(file_name) FROM parquet_kv_metadata({files}) \
                 WHERE decode(key) = '{SOURCES_KEY}' GROUP BY value)",
                read(&files)
            );
            let fresh = format!(
                "SELECT * FROM {} WHERE filename IN (SELECT min(file) FROM glob({incoming}) \
                 WHERE regexp_matches(file, '/[0-9a-f]{{32}}[.]parquet$') GROUP BY parse_filename(file))",
                read(&incoming)
            );
            let rows = match (has_merged, has_incoming) {
                (true, false) => merged,
                (false, _) => fresh,
                // A file whose rows are in a merged one does not count. Its name in the store is the last
                // five parts of its path; DuckDB may write the start of the path in another way than the
                // configuration does (`//`, `..`).
                (true, true) => format!(
                    "{merged} UNION ALL BY NAME {fresh} AND \
                     array_to_string(string_split(filename, '/')[-5:], '/') NOT IN \
                     (SELECT unnest(string_split(decode(value), chr(10))) \
                     FROM parquet_kv_metadata({files}) WHERE decode(key) = '{SOURCES_KEY}')"
                ),
            };
            format!("CREATE OR REPLACE VIEW {name} AS {};", distinct(rows))
        }
        Engine::Clickhouse => {
            let rows = format!("SELECT * FROM file({files}, Parquet)");
            format!(
                "-- hours that `memprof fleet compact` has merged\nCREATE VIEW {name} AS {} \
                 SETTINGS use_hive_partitioning = 1;",
                distinct(rows)
            )
        }
    }
}

impl Engine {
    /// Returns the start of file patterns for a store, as this engine reads them: without `file://`, and with the
    /// characters escaped that have a meaning in patterns. Fails if the path has a character that cannot be escaped
    /// (exit code 2).
    fn pattern_root(self, store: &str) -> anyhow::Result<String> {
        // For a directory, engines need the path instead of the URL.
        let path = store.strip_prefix("file://").unwrap_or(store);
        let path = path.trim_end_matches('/');
        // DuckDB reads a backslash as a slash. ClickHouse cannot escape its wildcards.
        let (name, unsupported) = match self {
            Self::Duckdb => ("DuckDB", "\\"),
            Self::Clickhouse => ("ClickHouse", "*?{}"),
        };
        let is_unsupported = |c: &char| unsupported.contains(*c) || c.is_control();
        if let Some(character) = path.chars().find(is_unsupported) {
            let message = format!(
                "{store} has a {character:?} in its path, which {name} cannot be given: name the store by a \
                 symbolic link without it"
            );
            return Err(with_exit_code(USAGE, message));
        }
        Ok(match self {
            Self::Duckdb => {
                let quoted = path.chars().map(|c| match c {
                    '*' | '?' | '[' => format!("[{c}]"),
                    c => c.to_string(),
                });
                quoted.collect()
            }
            Self::Clickhouse => path.to_owned(),
        })
    }

    /// Quotes a text as an SQL literal of this engine.
    fn sql_literal(self, text: &str) -> String {
        let text = match self {
            Self::Duckdb => text.replace('\'', "''"),
            Self::Clickhouse => text.replace('\\', "\\\\").replace('\'', "\\'"),
        };
        format!("'{text}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_with_characters_of_sql_or_globs_is_quoted_or_refused() {
        let check = |engine: Engine, path: &str, expected: Option<&str>| {
            let root = engine.pattern_root(&format!("file://{path}/"));
            let view = root.map(|root| view_sql(engine, &root, Table::Profiles, true, true));
            assert_eq!(view.is_ok(), expected.is_some(), "{path}: {view:?}");
            if let (Ok(view), Some(expected)) = (view, expected) {
                let pattern = format!("('{expected}/profiles/date=*/hour=*/*.parquet'");
                assert!(view.contains(&pattern), "{path}: {view}");
            }
        };
        for engine in [Engine::Duckdb, Engine::Clickhouse] {
            check(engine, "/s/plain date=1", Some("/s/plain date=1"));
            check(engine, "/s/\u{1b}[2J", None);
        }
        check(Engine::Duckdb, "/s/it's", Some("/s/it''s"));
        check(Engine::Duckdb, "/s/q*x?", Some("/s/q[*]x[?]"));
        check(Engine::Duckdb, "/s/a[1]b", Some("/s/a[[]1]b"));
        check(Engine::Duckdb, "/s/a{1,2}", Some("/s/a{1,2}"));
        check(Engine::Duckdb, r"/s/w\y", None);
        check(Engine::Clickhouse, "/s/it's", Some(r"/s/it\'s"));
        check(Engine::Clickhouse, r"/s/w\y", Some(r"/s/w\\y"));
        check(Engine::Clickhouse, "/s/a[1]b", Some("/s/a[1]b"));
        check(Engine::Clickhouse, "/s/q*x", None);
        check(Engine::Clickhouse, "/s/q?x", None);
        check(Engine::Clickhouse, "/s/a{1,2}", None);
    }
}
