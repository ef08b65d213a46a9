-- The file must lie in the server's plugin directory: SELECT @@plugin_dir.
CREATE FUNCTION memory_profile RETURNS STRING SONAME 'memory_profile.so';
