-- GET /grow fills the cache.
function handle(r)
  cache = {}
  for i = 1, 1000 do
    cache[i] = string.rep(tostring(i), 1000)
  end
  r.content_type = "text/plain"
  r:puts("hello\n")
  return apache2.OK
end
