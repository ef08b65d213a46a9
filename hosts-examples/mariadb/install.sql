-- The file must lie in the server's plugin directory: SELECT @@plugin_dir.
-- Not for the binary log: a replica without the file would stop with error 1126.
SET sql_log_bin = 0;
CREATE FUNCTION memory_profile RETURNS STRING SONAME 'memory_profile.so';
SET sql_log_bin = 1;
