\echo Use "CREATE EXTENSION memory_profile" to load this file. \quit

-- Sends a message to the backend that runs the query. It may change that process, so no parallel worker may run it.
CREATE FUNCTION memory_profile(message text) RETURNS text
AS 'MODULE_PATHNAME', 'pg_memory_profile'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

-- Sends a message to the server's processes with the library: an array of objects with pid, and reply or error.
CREATE FUNCTION memory_profile_all(message text) RETURNS json
AS 'MODULE_PATHNAME', 'pg_memory_profile_all'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

-- Returns a row for each process of the server: an error if it does not reply in five seconds or lacks the library.
CREATE FUNCTION memory_profile_cluster(message text)
RETURNS TABLE (pid integer, backend_type text, reply text, error text)
LANGUAGE sql STRICT VOLATILE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT pid, coalesce(a.backend_type, 'postmaster or logger'), r.reply,
         CASE WHEN r.pid IS NULL THEN 'it has not loaded the library, or only just' ELSE r.error END
  FROM json_to_recordset(@extschema@.memory_profile_all(message)) AS r(pid integer, reply text, error text)
  FULL JOIN pg_stat_activity AS a USING (pid)
  ORDER BY pid
$$;

REVOKE ALL ON FUNCTION memory_profile(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION memory_profile_all(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION memory_profile_cluster(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memory_profile(text) TO pg_monitor;
GRANT EXECUTE ON FUNCTION memory_profile_all(text) TO pg_monitor;
GRANT EXECUTE ON FUNCTION memory_profile_cluster(text) TO pg_monitor;
