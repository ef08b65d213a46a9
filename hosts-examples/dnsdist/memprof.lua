package.cpath = "/usr/lib/memprof/?.so;" .. package.cpath
local reply, reason = require("memory_profile").send("status")
if not reply then errlog("memory_profile: " .. reason) end
