-- The command `memory_profile MESSAGE` of the stats socket.
package.cpath = "/usr/lib/memprof/?.so;" .. package.cpath
local memory_profile = require("memory_profile")
local usage = "memory_profile MESSAGE : heap profiling by memprof"

core.register_cli({ "memory_profile" }, usage, function(applet, _, ...)
    local reply, why = memory_profile.send(table.concat({ ... }, " "))
    applet:send((reply or why) .. "\n")
end)
