"""Prints the sums of a store by several engines, as JSON: rows, bytes and objects of all samples, of the newest profile
of each process in a time window, and the bytes of the mean profiles of all processes.

    totals.py STORE DUCKDB_VIEWS CLICKHOUSE_VIEWS FROM TO

The views are files with the output of `memprof fleet views`, and the times are milliseconds since 1970.
"""

import json
import sys

import chdb.session
import duckdb
import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet

store, duckdb_views, clickhouse_views, start, end = sys.argv[1:]

ALL = "SELECT count(*), sum(inuse_bytes), sum(inuse_objects) FROM samples"
NEWEST = """SELECT count(*), sum(inuse_bytes), sum(inuse_objects) FROM samples JOIN
    (SELECT instance, max(time) AS latest FROM profiles WHERE {millis}(time) BETWEEN {start} AND {end} GROUP BY instance)
    AS newest ON samples.instance = newest.instance AND samples.time = newest.latest"""
MEAN = """SELECT sum(bytes / profiles) FROM
    (SELECT instance, sum(inuse_bytes) AS bytes FROM samples GROUP BY instance) AS held JOIN
    (SELECT instance, count(*) AS profiles FROM profiles GROUP BY instance) AS profile_counts USING (instance)"""


def sums_by_sql(query, millis):
    newest = NEWEST.format(millis=millis, start=start, end=end)
    return {"all": query(ALL), "newest": query(newest), "mean": query(MEAN)[0]}


def sums_by_duckdb():
    connection = duckdb.connect()
    with open(duckdb_views) as views:
        connection.execute(views.read())
    return sums_by_sql(lambda sql: [float(value) for value in connection.execute(sql).fetchone()], "epoch_ms")


def sums_by_chdb():
    session = chdb.session.Session()
    session.query("CREATE DATABASE fleet ENGINE = Atomic")
    session.query("USE fleet")
    with open(clickhouse_views) as views:
        for view in views.read().split(";\n"):
            if view.strip():
                session.query(view)
    return sums_by_sql(
        lambda sql: [float(value) for value in str(session.query(sql, "CSV")).strip().split(",")],
        "toUnixTimestamp64Milli",
    )


def tables(name, columns):
    """Yields the table of each file, with texts as plain strings and times as integers."""
    for file in sorted(pyarrow.dataset.dataset(f"{store}/{name}", format="parquet").files):
        table = pyarrow.parquet.read_table(file, columns=columns, partitioning=None)
        at = table.schema.get_field_index("instance")
        table = table.set_column(at, "instance", table["instance"].cast(pyarrow.string()))
        time = table["time"].cast(pyarrow.int64())
        yield table.set_column(table.schema.get_field_index("time"), "time", time)


def sums_by_pyarrow():
    compute = pyarrow.compute
    profiles = pyarrow.concat_tables(tables("profiles", ["instance", "time"]))
    profile_counts = profiles.group_by("instance").aggregate([("time", "count")]).to_pylist()
    profile_counts = {row["instance"]: row["time_count"] for row in profile_counts}
    time = profiles["time"]
    is_in_window = compute.and_(compute.greater_equal(time, int(start)), compute.less_equal(time, int(end)))
    newest = profiles.filter(is_in_window).group_by("instance").aggregate([("time", "max")])
    newest = newest.rename_columns({"time_max": "time"})
    columns = ["inuse_bytes", "inuse_objects"]
    whole, newest_sums, mean = [0, 0, 0], [0, 0, 0], 0
    for table in tables("samples", ["instance", "time", *columns]):
        whole = add(whole, table, columns)
        # Filtering by time first makes the join fast.
        times = compute.and_(
            compute.greater_equal(table["time"], int(start)), compute.less_equal(table["time"], int(end))
        )
        newest_sums = add(newest_sums, table.filter(times).join(newest, ["instance", "time"], join_type="inner"), columns)
        for row in table.group_by("instance").aggregate([("inuse_bytes", "sum")]).to_pylist():
            mean += row["inuse_bytes_sum"] / profile_counts[row["instance"]]
    return {"all": whole, "newest": newest_sums, "mean": mean}


def add(sums, table, columns):
    values = [table.num_rows] + [pyarrow.compute.sum(table[name]).as_py() or 0 for name in columns]
    return [before + more for before, more in zip(sums, values)]


print(json.dumps({"duckdb": sums_by_duckdb(), "chdb": sums_by_chdb(), "pyarrow": sums_by_pyarrow()}))
