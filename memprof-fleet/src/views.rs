//! `memprof fleet views`: the store's tables in SQL, for engines that people have.

use std::process::ExitCode;

use crate::args::Engine;
use crate::config::Config;
use crate::output::print;
use crate::schema::{INCOMING, SOURCES, Table};
use crate::store::Store;

pub(crate) fn run(engine: Engine, config: &Config) -> anyhow::Result<ExitCode> {
    let store = Store::open(&config.store)?;
    let mut views = Vec::new();
    for table in Table::ALL {
        let has = |prefix: &str| anyhow::Ok(!store.list(prefix)?.is_empty());
        let has_merged = has(table.name())?;
        let has_incoming = has(&format!("{INCOMING}/{}", table.name()))?;
        views.push(view(engine, store.url(), table, has_merged, has_incoming));
    }
    print(&views.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The view of a table, over the files that there are: engines refuse a pattern that no file has.
fn view(engine: Engine, store: &str, table: Table, has_merged: bool, has_incoming: bool) -> String {
    let name = table.name();
    // Engines know directories by their paths.
    let root = store
        .strip_prefix("file://")
        .unwrap_or(store)
        .trim_end_matches('/');
    let files = format!("{root}/{name}/date=*/hour=*/*.parquet");
    let incoming = format!("{root}/{INCOMING}/{name}/date=*/hour=*/*.parquet");
    let distinct = |rows: String| match table {
        // Agents may write one stack twice: a join would count its samples twice.
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
                    "read_parquet('{files}', hive_partitioning = true, union_by_name = true, \
                     filename = true, hive_types = {{'date': VARCHAR, 'hour': VARCHAR}})"
                )
            };
            let merged = format!("SELECT * FROM {}", read(&files));
            let fresh = format!("SELECT * FROM {}", read(&incoming));
            let rows = match (has_merged, has_incoming) {
                (true, false) => merged,
                (false, _) => fresh,
                // A file whose rows are in a merged one does not count.
                (true, true) => format!(
                    "{merged} UNION ALL BY NAME {fresh} WHERE filename NOT IN \
                     (SELECT '{root}/' || unnest(string_split(decode(value), chr(10))) \
                     FROM parquet_kv_metadata('{files}') WHERE decode(key) = '{SOURCES}')"
                ),
            };
            format!("CREATE OR REPLACE VIEW {name} AS {};", distinct(rows))
        }
        Engine::Clickhouse => {
            let rows = format!("SELECT * FROM file('{files}', Parquet)");
            format!(
                "-- hours that `memprof fleet compact` has merged\nCREATE VIEW {name} AS {} \
                 SETTINGS use_hive_partitioning = 1;",
                distinct(rows)
            )
        }
    }
}
