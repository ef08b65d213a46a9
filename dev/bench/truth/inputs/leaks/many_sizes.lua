-- Leaves free chunks of so many sizes that few bins of glibc's malloc are empty.
local keep
for round = 1, 3 do
  keep = {}
  for i = 1, 8000 * (1 + round % 3) do keep[i] = {string.rep(tostring(i), 1 + i % 200)} end
  collectgarbage(); collectgarbage()
end
io.stdout:setvbuf('no')
print('ready ' .. io.open('/proc/self/stat'):read('*n'))
io.read()
