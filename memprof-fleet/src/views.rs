//! `memprof fleet views`: the store's tables in SQL, for engines that people have.

use std::process::ExitCode;

use crate::args::Engine;
use crate::config::Config;
use crate::output::print;
use crate::schema::{INCOMING, SOURCES, Table};

pub(crate) fn run(engine: Engine, config: &Config) -> anyhow::Result<ExitCode> {
    let views: Vec<_> = Table::ALL
        .iter()
        .map(|table| view(engine, &config.store, *table))
        .collect();
    print(&views.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn view(engine: Engine, store: &str, table: Table) -> String {
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
            // A file whose rows are in a merged one does not count.
            let rows = format!(
                "SELECT * FROM {} UNION ALL BY NAME SELECT * FROM {} WHERE filename NOT IN \
                 (SELECT '{root}/' || unnest(string_split(decode(value), chr(10))) \
                 FROM parquet_kv_metadata('{files}') WHERE decode(key) = '{SOURCES}')",
                read(&files),
                read(&incoming)
            );
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
