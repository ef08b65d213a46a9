# Sends its arguments as one message.
require "memory_profile"

begin
  puts MemoryProfile.send_message(ARGV.join(" "))
rescue RuntimeError => error
  abort error.message
end
