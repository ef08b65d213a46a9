# GET /grow fills the cache, GET / answers.
require "socket"

cache = []
server = TCPServer.new("127.0.0.1", ARGV[0].to_i)
loop do
  client = server.accept
  request = client.gets
  while (line = client.gets) && line != "\r\n"; end
  cache = Array.new(1000) { "x" * 4000 } if request.to_s.include?("/grow")
  client.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello\n")
  client.close
rescue SystemCallError
  next
end
