"""Prints what engines count in a store, as JSON: rows and sums of all samples, of the newest profile of each process in
a time, and of the mean profile of each process.

    totals.py STORE DUCKDB_VIEWS CLICKHOUSE_VIEWS FROM TO

The views are files with what `memprof fleet views` prints, and the times are milliseconds since 1970.
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
    (SELECT instance, count(*) AS profiles FROM profiles GROUP BY instance) AS taken USING (instance)"""


def of_sql(ask, millis):
    newest = NEWEST.format(millis=millis, start=start, end=end)
    return {"all": ask(ALL), "newest": ask(newest), "mean": ask(MEAN)[0]}


def of_duckdb():
    connection = duckdb.connect()
    with open(duckdb_views) as views:
        connection.execute(views.read())
    return of_sql(lambda sql: [float(value) for value in connection.execute(sql).fetchone()], "epoch_ms")


def of_chdb():
    session = chdb.session.Session()
    session.query("CREATE DATABASE fleet ENGINE = Atomic")
    session.query("USE fleet")
    with open(clickhouse_views) as views:
        for view in views.read().split(";\n"):
            if view.strip():
                session.query(view)
    return of_sql(
        lambda sql: [float(value) for value in str(session.query(sql, "CSV")).strip().split(",")],
        "toUnixTimestamp64Milli",
    )


def tables(name, columns):
    """The rows of each file, texts as texts."""
    for file in sorted(pyarrow.dataset.dataset(f"{store}/{name}", format="parquet").files):
        table = pyarrow.parquet.read_table(file, columns=columns, partitioning=None)
        at = table.schema.get_field_index("instance")
        table = table.set_column(at, "instance", table["instance"].cast(pyarrow.string()))
        time = table["time"].cast(pyarrow.int64())
        yield table.set_column(table.schema.get_field_index("time"), "time", time)


def of_pyarrow():
    compute = pyarrow.compute
    profiles = pyarrow.concat_tables(tables("profiles", ["instance", "time"]))
    taken = profiles.group_by("instance").aggregate([("time", "count")]).to_pylist()
    taken = {row["instance"]: row["time_count"] for row in taken}
    time = profiles["time"]
    asked = compute.and_(compute.greater_equal(time, int(start)), compute.less_equal(time, int(end)))
    newest = profiles.filter(asked).group_by("instance").aggregate([("time", "max")])
    newest = newest.rename_columns({"time_max": "time"})
    columns = ["inuse_bytes", "inuse_objects"]
    whole, of_newest, mean = [0, 0, 0], [0, 0, 0], 0
    for table in tables("samples", ["instance", "time", *columns]):
        whole = add(whole, table, columns)
        # A join of all rows takes long.
        times = compute.and_(
            compute.greater_equal(table["time"], int(start)), compute.less_equal(table["time"], int(end))
        )
        of_newest = add(of_newest, table.filter(times).join(newest, ["instance", "time"], join_type="inner"), columns)
        for row in table.group_by("instance").aggregate([("inuse_bytes", "sum")]).to_pylist():
            mean += row["inuse_bytes_sum"] / taken[row["instance"]]
    return {"all": whole, "newest": of_newest, "mean": mean}


def add(sums, table, columns):
    values = [table.num_rows] + [pyarrow.compute.sum(table[name]).as_py() or 0 for name in columns]
    return [before + more for before, more in zip(sums, values)]


print(json.dumps({"duckdb": of_duckdb(), "chdb": of_chdb(), "pyarrow": of_pyarrow()}))
