package.cpath = "/usr/lib/memprof/?.so;" .. package.cpath
local reply, why = require("memory_profile").send("status")
pdnslog(reply or why)
