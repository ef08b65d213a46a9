package.cpath = "/usr/lib/memprof/?.so;" .. package.cpath
require("memory_profile").send("status")
