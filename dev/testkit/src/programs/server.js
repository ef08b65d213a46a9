// GET /grow fills the cache, GET / answers.
let cache = [];
require("http")
  .createServer((request, response) => {
    if (request.url === "/grow") {
      cache = Array.from({ length: 1000 }, () => Buffer.alloc(8192, 1));
    }
    response.end("hello\n");
  })
  .listen(Number(process.argv[2]), "127.0.0.1");
