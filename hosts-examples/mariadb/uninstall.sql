-- Not for the binary log: a replica without the function would stop with error 1305.
SET sql_log_bin = 0;
DROP FUNCTION memory_profile;
SET sql_log_bin = 1;
