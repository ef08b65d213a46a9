<?php
// Sends a message through the library in the first argument.
$library = FFI::cdef('
    char *memory_profile_send(const char *message);
    void memory_profile_free(char *reply);
', $argv[1]);
$reply = $library->memory_profile_send(implode(' ', array_slice($argv, 2)));
echo FFI::string($reply), "\n";
$library->memory_profile_free($reply);
