-- Sends its arguments as one message.
local memory_profile = require "memory_profile"

local reply, why = memory_profile.send(table.concat(arg, " "))
if not reply then
    io.stderr:write(why, "\n")
    os.exit(1)
end
print(reply)
