# Sends a message through the library in the first argument.
require "fiddle/import"

path, *message = ARGV
Library = Module.new do
  extend Fiddle::Importer
  dlload path
  extern "char *memory_profile_send(const char *)"
  extern "void memory_profile_free(char *)"
end

reply = Library.memory_profile_send(message.join(" "))
puts reply.to_s
Library.memory_profile_free(reply)
