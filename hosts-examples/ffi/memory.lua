-- Sends a message through the library in the first argument.
local ffi = require "ffi"

ffi.cdef [[
    char *memory_profile_send(const char *message);
    void memory_profile_free(char *reply);
]]
local library = ffi.load(arg[1])
local reply = library.memory_profile_send(table.concat(arg, " ", 2))
print(ffi.string(reply))
library.memory_profile_free(reply)
